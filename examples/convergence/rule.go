package main

import "girassol.dev/internal/algorithm"

const fixedRule = "fixed"

// rules adapt the outer step to the number of members that a commit merges. The
// coordinator applies them and writes the outcome to the commit's manifest, so
// that replicas need not know them.
var rules = map[string]func(p algorithm.Parameters, members int) algorithm.Parameters{
	fixedRule: func(p algorithm.Parameters, _ int) algorithm.Parameters { return p },
	// members: mu*(1-1/n): none alone.
	"members": func(p algorithm.Parameters, n int) algorithm.Parameters {
		p.OuterMomentum *= 1 - 1/float64(n)
		return p
	},
	// solo: no momentum in a round of one member, the whole of it in all others.
	"solo": func(p algorithm.Parameters, n int) algorithm.Parameters {
		if n == 1 {
			p.OuterMomentum = 0
		}
		return p
	},
}
