// Package admission judges what a site sends by what the federation's sites send
// as a rule: the norm of an update against those merged lately, its direction
// against the round's others, and how much and how often a site may send.
//
// A norm is that of the parameters in the domain in which updates travel; buffers,
// which are values and no changes, have a norm of their own. Sites are of unequal
// speed, so a norm is judged with its steps: k steps move at most k times as far
// as one, which an update may claim up to eightfold (stepCredit). Fewer steps than
// usual make the bound no tighter, for an update also carries what its site could
// not send before. Weight is the other way to move the model: a weight beyond 64
// times the usual (weightCredit) counts as norm. Steps and weight are the sender's
// word; so much, and no more, can be got by a wrong one.
//
// The usual is a median over sites: each site has one entry per merged round,
// however many members it has, so that a minority of sites cannot move it.
//
// The package is pure: time is an argument, vectors are read through an interface.
// It must not know sessions, how an update arrives, or where its state is kept.
package admission

import (
	"fmt"
	"math"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Config of a federation's admission. The zero value has no bounds and the default
// quotas.
type Config struct {
	// MaxNormFactor times the usual norm is the most that an update may have; 0: any.
	MaxNormFactor float64
	// MinCosine of an update to the round's others; nil: any.
	MinCosine *float64
	// QuarantineRounds after a breach in which no update of the site counts.
	QuarantineRounds uint64
	Quotas           Quotas
}

// Validate says what is wrong with the configuration, with the field's name.
func (c Config) Validate() error {
	if f := c.MaxNormFactor; f != 0 && (!(f > 1) || math.IsInf(f, 1)) {
		return fmt.Errorf("maxNormFactor: %g must be above 1, such as 10", f)
	}
	if v := c.MinCosine; v != nil && !(*v >= -1 && *v <= 1) {
		return fmt.Errorf("minCosine: %g is not between -1 and 1", *v)
	}
	if q := c.Quotas; q.BytesPerRound < 0 || q.Members < 0 || q.CallsPerMinute < 0 {
		return fmt.Errorf("quotas: bytesPerRound %d, members %d and callsPerMinute %d must not be negative", q.BytesPerRound, q.Members, q.CallsPerMinute)
	}
	return nil
}

// Breach of a bound: what the site is told.
type Breach struct {
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
}
