package main

import "girassol.dev/internal/algorithm"

const (
	// productRule is the strategy's own, algorithm.Parameters.ForCommit.
	productRule = "product"
	fixedRule   = "fixed"
)

// rules to compare with the product's: they fit the outer step to the members of
// a commit.
var rules = map[string]func(p algorithm.Parameters, members int, agreement *float64) algorithm.Parameters{
	productRule: algorithm.Parameters.ForCommit,
	fixedRule:   func(p algorithm.Parameters, _ int, _ *float64) algorithm.Parameters { return p },
	// members: mu*(1-1/n): none alone.
	"members": func(p algorithm.Parameters, n int, _ *float64) algorithm.Parameters {
		p.OuterMomentum *= 1 - 1/float64(n)
		return p
	},
	// halved: mu*(1-1/2n), whatever the agreement.
	"halved": func(p algorithm.Parameters, n int, _ *float64) algorithm.Parameters {
		p.OuterMomentum *= 1 - 1/float64(2*n)
		return p
	},
}
