// Package plan turns the quickstart's options into the files that its processes
// read: text lists, electricity traces, Federation and Site; and keeps what a
// stopped run needs to go on.
//
// It owns names, defaults and the layout of the output folder. It must not know
// how processes are started or what they answer.
package plan

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"girassol.dev/internal/algorithm"
	"girassol.dev/signals/synthetic"
)

// Options are the flags.
type Options struct {
	Algorithm string  `json:"algorithm"`
	Sites     int     `json:"sites"` // 0: 3, or a site per sub-folder of Data
	Speed     float64 `json:"speed"`
	Seed      uint64  `json:"seed"`
	Rounds    int64   `json:"-"`
	Out       string  `json:"-"`
	Data      string  `json:"data,omitempty"`
	Redis     string  `json:"-"`
	// Metrics is where the coordinator serves Prometheus; empty: nowhere.
	Metrics string `json:"-"`
	Resume  bool   `json:"-"`
	Compare bool   `json:"-"`
	Plain   bool   `json:"-"`
	Keep    bool   `json:"-"`
	// Trainer are further arguments of every trainer.
	Trainer []string `json:"trainer,omitempty"`
}

// Defaults of the options.
const (
	DefaultAlgorithm = algorithm.DecoupledMomentum
	DefaultSites     = 3
	// DefaultSpeed plays the 18 hours in two minutes.
	DefaultSpeed = 540
	DefaultOut   = "girassol-demo"
	MaxSpeed     = 36000
)

// Check refuses values that cannot work, naming the flag.
func (o Options) Check() error {
	algorithms := algorithm.Strategies()
	switch {
	case !slices.Contains(algorithms, o.Algorithm):
		return fmt.Errorf("--algorithm: %q is none of %s", o.Algorithm, strings.Join(algorithms, ", "))
	case o.Sites < 0 || o.Sites > synthetic.MaxSite:
		return fmt.Errorf("--sites: %d is not between 1 and %d", o.Sites, synthetic.MaxSite)
	case math.IsNaN(o.Speed) || o.Speed < 1 || o.Speed > MaxSpeed:
		return fmt.Errorf("--speed: %v is not between 1 and %d virtual seconds per second", o.Speed, MaxSpeed)
	case o.Rounds < 0:
		return fmt.Errorf("--rounds: %d is negative; 0 runs until the trace ends", o.Rounds)
	case strings.TrimSpace(o.Out) == "":
		return fmt.Errorf("--out: a folder is needed")
	}
	if o.Redis != "" {
		u, err := url.Parse(o.Redis)
		if err != nil || u.Host == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
			return fmt.Errorf("--redis: %q is no URL like redis://host:6379/0", o.Redis)
		}
	}
	return nil
}

// Contradicts names the flags among those given that differ from the run that
// is to be resumed.
func (o Options) Contradicts(run Options, given func(flag string) bool) []string {
	var out []string
	for _, f := range []struct {
		flag  string
		equal bool
	}{
		{"algorithm", o.Algorithm == run.Algorithm}, {"sites", o.Sites == run.Sites}, {"speed", o.Speed == run.Speed},
		{"seed", o.Seed == run.Seed}, {"data", o.Data == run.Data},
	} {
		if given(f.flag) && !f.equal {
			out = append(out, "--"+f.flag)
		}
	}
	if len(o.Trainer) > 0 && !slices.Equal(o.Trainer, run.Trainer) {
		out = append(out, "trainer arguments")
	}
	return out
}

// A round is over after LocalSteps of a site of mean speed, or at its stop time
// on a machine too slow for that: a sparse update of a few steps loses little,
// one of hundreds leaves the shared model far behind the sites. Every
// evaluateEvery rounds a site spends the time of about ten steps on held-out
// text.
const (
	LocalSteps    = 40
	evaluateEvery = 5
)

// timing of a run at a speed. Rounds run in real time, so a fast replay needs
// short ones to have as many.
type timing struct{ train, collect, join, grace int32 }

func timingOf(speed float64) timing {
	const aboutRounds = 42
	real := traceSpan.Seconds() / speed
	train := int32(math.Round(min(max(real/aboutRounds, 1), 600)))
	return timing{train: train, collect: max(5, train), join: cmp.Or(min(train, 5), 5), grace: max(2, min(train, 60))}
}

const traceSpan = (synthetic.Points - 1) * synthetic.Step

// End of a run that starts at start: the trace's 18 hours.
func End(start time.Time) time.Time { return start.Add(traceSpan) }
