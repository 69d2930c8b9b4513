package algorithm

import (
	"fmt"
	"strings"

	"girassol.dev/api/federation/v1alpha1"
)

// strategy is a way to merge: what it is called, where it begins and what it
// permits. To add one, write its value and put it into the list.
type strategy struct {
	// name on the wire and in the commit log; spec is what a person writes.
	name string
	spec v1alpha1.Strategy
	// defaults without a name, as measured best.
	defaults Parameters
	// dense says that every element is sent in each round, so that single members
	// can be bounded by element and nothing else can be chosen but fp32 or bf16.
	dense bool
	// adapt fits eta and mu to a commit's members and their agreement; nil where
	// there is no such rule.
	adapt func(eta, mu float64, members int, agreement *float64) (float64, float64)
}

// strategies that there are; the first is the default.
var strategies = []*strategy{&decoupledMomentum, &diLoCo, &fedAvg}

// The strategies by name.
const (
	DecoupledMomentum = "decoupled-momentum"
	DiLoCo            = "diloco"
	FedAvg            = "fedavg"
)

// Strategies are the names of all.
func Strategies() []string {
	var out []string
	for _, s := range strategies {
		out = append(out, s.name)
	}
	return out
}

func find(name string) *strategy {
	for _, s := range strategies {
		if s.name == name {
			return s
		}
	}
	return nil
}

// Defaults returns a strategy's parameters as they were measured best. Its outer
// step is fixed; that of a spec which sets none is Adaptive where there is a rule.
func Defaults(name string) (Parameters, error) {
	s := find(name)
	if s == nil {
		return Parameters{}, fmt.Errorf("algorithm: unknown strategy %q, want one of %s", name, strings.Join(Strategies(), ", "))
	}
	p := s.defaults
	p.Strategy = name
	return p, nil
}

// SpecName is what a person writes for a strategy; empty for an unknown one.
func SpecName(name string) v1alpha1.Strategy {
	if s := find(name); s != nil {
		return s.spec
	}
	return ""
}
