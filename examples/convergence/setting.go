package main

import (
	"fmt"
	"math/rand/v2"
)

// The ways to cut data between sites.
const (
	iid    = "iid"
	nonIID = "non-iid"
)

// The ways in which sites come and go.
const (
	noChurn = "none"
	// half: in each round each site is away with probability one half.
	half = "half"
	// twice is half over twice the rounds: the sites do as much work as without.
	twice = "twice"
	// spells: sites are there and away for 3 to 7 rounds in turn.
	spells = "spells"
)

// setting is what a run has besides its variant. Two runs with equal settings
// begin with equal weights, have equal data and sites that are away alike.
type setting struct {
	Task  string `json:"task"`
	Split string `json:"split"`
	Churn string `json:"churn"`
	Sites int    `json:"sites"`
	// Steps of a site in a round (H) and Rounds.
	Steps  int    `json:"steps"`
	Rounds int    `json:"rounds"`
	Seed   uint64 `json:"seed"`
}

// length is the number of rounds that the run has.
func (s setting) length() int {
	if s.Churn == twice {
		return 2 * s.Rounds
	}
	return s.Rounds
}

// work is the site-rounds that the run is expected to have: the end of schedules.
func (s setting) work() float64 {
	n := float64(s.Sites) * float64(s.length())
	if s.Churn != noChurn {
		n /= 2
	}
	return n
}

// sensible is false for cells of the grid that say nothing: one site has nobody
// to differ from and must not be away.
func (s setting) sensible() bool {
	return s.Sites > 1 || s.Split == iid && s.Churn == noChurn
}

// present says who takes part in each round: at least one site does.
func (s setting) present() [][]bool {
	r := rand.New(rand.NewPCG(s.Seed, 0x6177_6179))
	out := make([][]bool, s.length())
	for t := range out {
		out[t] = make([]bool, s.Sites)
	}
	for i := range s.Sites {
		on, left := r.IntN(2) == 0, 1+r.IntN(5)
		for t := range out {
			switch s.Churn {
			case noChurn:
				on = true
			case spells:
				if left == 0 {
					on, left = !on, 3+r.IntN(5)
				}
				left--
			default:
				on = r.IntN(2) == 0
			}
			out[t][i] = on
		}
	}
	for t := range out {
		nobody := true
		for _, on := range out[t] {
			nobody = nobody && !on
		}
		if nobody {
			out[t][t%s.Sites] = true
		}
	}
	return out
}

func (s setting) String() string {
	return fmt.Sprintf("%s %s, %d sites, churn %s, %d x %d steps, seed %d", s.Task, s.Split, s.Sites, s.Churn, s.Rounds, s.Steps, s.Seed)
}
