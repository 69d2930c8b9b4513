package main

import "girassol.dev/internal/algorithm"

const fixedRule = "fixed"

// rules adapt the outer step to the members that a commit merges and to their
// agreement, nil before there is one. The coordinator applies them and writes the
// outcome to the commit's manifest, so that replicas need not know them.
var rules = map[string]func(p algorithm.Parameters, members int, agreement *float64) algorithm.Parameters{
	fixedRule: func(p algorithm.Parameters, _ int, _ *float64) algorithm.Parameters { return p },
	// members: mu*(1-1/n): none alone.
	"members": func(p algorithm.Parameters, n int, _ *float64) algorithm.Parameters {
		p.OuterMomentum *= 1 - 1/float64(n)
		return p
	},
	"halved": func(p algorithm.Parameters, n int, _ *float64) algorithm.Parameters { return halved(p, n) },
	"adaptive": func(p algorithm.Parameters, n int, agreement *float64) algorithm.Parameters {
		if n > 1 {
			p = cautious(p, agreement)
		}
		return halved(p, n)
	},
}

// halved is mu*(1-1/2n): half of it alone, three quarters with two members. The
// mean of few members is noise that momentum repeats.
func halved(p algorithm.Parameters, n int) algorithm.Parameters {
	p.OuterMomentum *= 1 - 1/float64(2*n)
	return p
}

// The step of sites that do not agree, and the agreement from which on they do.
const (
	cautiousRate     = 0.5
	cautiousMomentum = 0.8
	agreed           = 0.05
)

// cautious goes from the given step, where the sites agree, to a slower and
// smoother one where they pull against each other (A of 0 and less).
func cautious(p algorithm.Parameters, agreement *float64) algorithm.Parameters {
	if agreement == nil {
		return p
	}
	w := max(0, min(1, *agreement/agreed))
	p.OuterLearningRate = w*p.OuterLearningRate + (1-w)*cautiousRate
	p.OuterMomentum = w*p.OuterMomentum + (1-w)*cautiousMomentum
	return p
}
