package admission

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

const (
	// leastHistory is how many entries there must be before a norm is judged: the
	// first updates of a run are the largest, and two say nothing of a third.
	leastHistory = 8
	// history is how many are kept.
	history = 64
	// stepCredit and weightCredit bound what a claim of many steps or much weight is
	// worth.
	stepCredit   = 8
	weightCredit = 64
)

// Measure of an update.
type Measure struct {
	// Norm of the parameters' part, Buffers of the buffers' values.
	Norm, Buffers float64
	// Steps and Weight as the sender tells them.
	Steps  uint64
	Weight float64
}

// Entry is what one site's updates of one merged round were like: medians over
// its members.
type Entry struct {
	Round uint64 `json:"round"`
	Site  string `json:"site"`
	// Norm is divided by the credit for its steps.
	Norm    float64 `json:"norm"`
	Buffers float64 `json:"buffers,omitempty"`
	Steps   float64 `json:"steps"`
	Weight  float64 `json:"weight"`
}

// Norms are the entries of the rounds merged lately, oldest first.
type Norms []Entry

// usual is the median entry, field by field.
func (n Norms) usual() Entry {
	return Entry{
		Norm: median(n, func(e Entry) float64 { return e.Norm }), Buffers: median(n, func(e Entry) float64 { return e.Buffers }),
		Steps: median(n, func(e Entry) float64 { return e.Steps }), Weight: median(n, func(e Entry) float64 { return e.Weight }),
	}
}

// credit of an update for its steps, 1 to stepCredit; 1 where nothing is usual.
func (e Entry) credit(steps uint64) float64 {
	if e.Steps <= 0 {
		return 1
	}
	return min(max(float64(steps)/e.Steps, 1), stepCredit)
}

// load is by how much an update's weight counts as norm, at least 1.
func (e Entry) load(weight float64) float64 {
	if e.Weight <= 0 {
		return 1
	}
	return max(weight/(weightCredit*e.Weight), 1)
}

// Judge compares an update with what was merged lately. It is nil if the update may
// count, and always before there is enough to compare with.
func (n Norms) Judge(factor float64, m Measure) *Breach {
	if factor == 0 || len(n) < leastHistory {
		return nil
	}
	usual := n.usual()
	credit, load := usual.credit(m.Steps), usual.load(m.Weight)
	if most := factor * usual.Norm * credit; usual.Norm > 0 && !(m.Norm*load <= most) {
		text := fmt.Sprintf("norm %.4g of %d steps; at most %.4g is taken: %g times the median %.4g of the %d merged lately", m.Norm, m.Steps, most/load, factor, usual.Norm, len(n))
		if credit > 1 {
			text += fmt.Sprintf(", times %.3g for its steps", credit)
		}
		if load > 1 {
			text += fmt.Sprintf(", over %.4g for its weight of %g, which is far from the usual %g", load, m.Weight, usual.Weight)
		}
		return &Breach{v1alpha1.ReasonNormTooLarge, text}
	}
	if most := factor * usual.Buffers; usual.Buffers > 0 && !(m.Buffers <= most) {
		return &Breach{v1alpha1.ReasonNormTooLarge, fmt.Sprintf("the buffers' norm is %.4g; at most %.4g is taken: %g times the median %.4g of the %d merged lately",
			m.Buffers, most, factor, usual.Buffers, len(n))}
	}
	return nil
}

// Merged adds a merged round: the measures of each site's updates.
func (n Norms) Merged(round uint64, bySite map[string][]Measure) Norms {
	usual := n.usual()
	out := slices.Clone(n)
	for _, site := range slices.Sorted(maps.Keys(bySite)) {
		ms := bySite[site]
		e := Entry{
			Round: round, Site: site,
			Norm:    median(ms, func(m Measure) float64 { return m.Norm / usual.credit(m.Steps) }),
			Buffers: median(ms, func(m Measure) float64 { return m.Buffers }),
			Steps:   median(ms, func(m Measure) float64 { return float64(m.Steps) }),
			Weight:  median(ms, func(m Measure) float64 { return m.Weight }),
		}
		if e.valid() {
			out = append(out, e)
		}
	}
	return out[max(0, len(out)-history):]
}

// valid: nothing measured is negative or endless.
func (e Entry) valid() bool {
	for _, v := range []float64{e.Norm, e.Buffers, e.Steps, e.Weight} {
		if !(v >= 0) || math.IsInf(v, 1) {
			return false
		}
	}
	return true
}

// median is the lower of the middle values, 0 of none: it is one that was measured.
func median[T any](s []T, value func(T) float64) float64 {
	if len(s) == 0 {
		return 0
	}
	v := make([]float64, 0, len(s))
	for _, x := range s {
		v = append(v, value(x))
	}
	slices.SortFunc(v, cmp.Compare[float64])
	return v[(len(v)-1)/2]
}
