// Package gate judges held-out results: whether a version of the model is worse
// than the best one before it by more than a margin, so that training should go
// on from that one.
//
// Only what was measured on the same held-out data is compared, that is, results
// of the same members, or of the same sites where nodes have come under new
// names. The package is pure. It must not know how a result was gathered, what a
// rollback is made of or where anything is kept.
package gate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Config of a gate.
type Config struct {
	// Margin is the fraction of the best loss by which a later one may exceed it:
	//
	//	worse  <=>  loss > best + Margin * max(|best|, Floor)
	//
	// The absolute value makes it right for negative losses, the floor for those near
	// zero, where a fraction of the best would call any noise worse.
	Margin float64
	// MaxRollbacks without a better version between them end the run.
	MaxRollbacks int
}

// Floor is the least scale of a loss that the margin is a fraction of.
const Floor = 1e-3

// Measure is one member's held-out loss.
type Measure struct {
	Member string `json:"member"`
	Site   string `json:"site"`
	// Samples behind it, above 0.
	Samples uint64 `json:"samples"`
	// Loss is nil where none was told, which is also how trainers tell one that is
	// no finite number.
	Loss *float64 `json:"loss,omitempty"`
}

// Result is what the members measured of one version.
type Result struct {
	Version  uint64    `json:"version"`
	Measures []Measure `json:"measures,omitempty"`
}

// Kind of a verdict.
type Kind string

// The verdicts.
const (
	// Passed: not worse than the best by more than the margin, or the first.
	Passed Kind = "Passed"
	// Worse by more than the margin; or a loss is no finite number, or is not told
	// any more.
	Worse Kind = "Worse"
	// NotComparable: no member or site measured the loss of both this version and
	// the best.
	NotComparable Kind = "NotComparable"
	// Waiting: a result is awaited.
	Waiting Kind = "Waiting"
)

// Verdict is a judgement and its figures: the losses are means over what was
// compared, weighted by the samples of the reference.
type Verdict struct {
	Kind    Kind   `json:"verdict"`
	Message string `json:"message"`
	// Version that was judged; Loss is nil when there is no finite one.
	Version uint64   `json:"version"`
	Loss    *float64 `json:"loss,omitempty"`
	// Reference is the best version, that it was held against; ReferenceLoss is nil
	// when there was none or nothing to compare.
	Reference     uint64   `json:"referenceVersion"`
	ReferenceLoss *float64 `json:"referenceLoss,omitempty"`
}

// State is what a gate remembers, and what a commit log keeps of it.
type State struct {
	// Best is the reference: the best version since results could be compared; nil
	// before the first.
	Best *Result `json:"best,omitempty"`
	// Rollbacks since a version was better than all before it.
	Rollbacks int `json:"rollbacks,omitempty"`
	// Last is the newest verdict, nil before the first.
	Last *Verdict `json:"last,omitempty"`
}

// Judge holds a result against the best and returns the verdict, which is also in
// the new state. A better one becomes the best; so does one that cannot be
// compared, or a gate would be blind for ever once a site is gone. The state's
// Rollbacks begin anew with a better version and are otherwise the caller's.
func (c Config) Judge(s State, r Result) (Verdict, State) {
	v, better := c.judge(s.Best, r)
	if better {
		if v.ReferenceLoss != nil {
			s.Rollbacks = 0
		}
		s.Best = &r
	}
	s.Last = &v
	return v, s
}

// judge also says whether r is the reference from now on.
func (c Config) judge(best *Result, r Result) (v Verdict, better bool) {
	v = Verdict{Version: r.Version}
	var before []Measure
	if best != nil {
		v.Reference, before = best.Version, best.Measures
	}
	all := mean(r.Measures)
	switch bad := notFinite(before, r.Measures); {
	case len(bad) > 0:
		v.Kind, v.ReferenceLoss = Worse, mean(before)
		v.Message = fmt.Sprintf("the held-out loss of version %d is no finite number on %s", r.Version, list(bad))
		if best != nil {
			v.Message += fmt.Sprintf("; version %d had %s", best.Version, number(v.ReferenceLoss))
		}
		return v, false
	case all == nil:
		v.Kind = NotComparable
		v.Message = fmt.Sprintf("nobody told a held-out loss of version %d, which the gate compares", r.Version)
		return v, false
	case best != nil && best.Version == r.Version:
		v.Kind, v.Loss = Passed, all
		v.Message = fmt.Sprintf("version %d, the best so far, has held-out loss %s by a newer result", r.Version, number(all))
		return v, true
	case best == nil:
		v.Kind, v.Loss = Passed, all
		v.Message = fmt.Sprintf("version %d has held-out loss %s, the first to compare others with", r.Version, number(all))
		return v, true
	}
	inBest, inNew, by := shared(before, r.Measures)
	if len(inBest) == 0 {
		v.Kind, v.Loss = NotComparable, all
		v.Message = fmt.Sprintf("nobody evaluated both version %d (%s) and version %d (%s), so the losses are not compared; version %d is the reference from now on",
			best.Version, names(before), r.Version, names(r.Measures), r.Version)
		return v, true
	}
	for i := range inNew {
		inNew[i].Samples = inBest[i].Samples // the same weights on both sides
	}
	v.ReferenceLoss, v.Loss = mean(inBest), mean(inNew)
	if v.Loss == nil || v.ReferenceLoss == nil { // finite ones whose mean is not
		v.Kind, v.Message = Worse, fmt.Sprintf("the held-out losses of version %d are too large to be compared", r.Version)
		return v, false
	}
	loss, reference := *v.Loss, *v.ReferenceLoss
	limit := reference + c.Margin*max(math.Abs(reference), Floor)
	figures := fmt.Sprintf("version %d has held-out loss %.6g, version %d had %.6g (on %s)", r.Version, loss, best.Version, reference, by)
	switch {
	case loss > limit:
		v.Kind, v.Message = Worse, figures+fmt.Sprintf("; up to %.6g is accepted", limit)
	case loss < reference:
		v.Kind, v.Message = Passed, figures+": the best so far"
	default:
		v.Kind, v.Message = Passed, figures+fmt.Sprintf(", within the margin up to %.6g", limit)
	}
	return v, loss < reference
}

// shared are the measures of those who are in both, in one order, and who they
// are: members, or else sites.
func shared(a, b []Measure) (inA, inB []Measure, by string) {
	for _, key := range []func(Measure) string{func(m Measure) string { return m.Member }, func(m Measure) string { return m.Site }} {
		ga, gb := group(a, key), group(b, key)
		var both []string
		for _, m := range ga {
			if i := slices.IndexFunc(gb, func(o Measure) bool { return o.Member == m.Member }); i >= 0 {
				inA, inB, both = append(inA, m), append(inB, gb[i]), append(both, m.Member)
			}
		}
		if len(both) > 0 {
			return inA, inB, list(both)
		}
	}
	return nil, nil, ""
}

// group joins the measures of one key, weighted by samples; the key stands in
// Member.
func group(ms []Measure, key func(Measure) string) []Measure {
	by := map[string][]Measure{}
	for _, m := range ms {
		if m.Loss != nil && m.Samples > 0 {
			by[key(m)] = append(by[key(m)], m)
		}
	}
	var out []Measure
	for k, list := range by {
		slices.SortFunc(list, byMember)
		joined := Measure{Member: k, Loss: mean(list)}
		for _, m := range list {
			joined.Samples += m.Samples
		}
		if joined.Loss != nil {
			out = append(out, joined)
		}
	}
	slices.SortFunc(out, byMember)
	return out
}

func byMember(a, b Measure) int { return cmp.Compare(a.Member, b.Member) }

// mean of the losses, weighted by samples; nil when there is none or it is not
// finite.
func mean(ms []Measure) *float64 {
	sum, n := 0.0, 0.0
	for _, m := range ms {
		if m.Loss != nil {
			n += float64(m.Samples)
		}
	}
	if n == 0 {
		return nil
	}
	for _, m := range ms {
		if m.Loss != nil {
			sum += float64(m.Samples) / n * *m.Loss // a share each: large losses sum up to a finite one
		}
	}
	if !finite(sum) {
		return nil
	}
	return &sum
}

// notFinite names the members whose loss is no finite number, or is missing
// though there was one before.
func notFinite(before, now []Measure) []string {
	had := map[string]bool{}
	for _, m := range before {
		had[m.Member] = m.Loss != nil
	}
	var out []string
	for _, m := range now {
		if m.Loss == nil && had[m.Member] || m.Loss != nil && !finite(*m.Loss) {
			out = append(out, m.Member)
		}
	}
	slices.Sort(out)
	return out
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func number(v *float64) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprintf("%.6g", *v)
}

func names(ms []Measure) string {
	var out []string
	for _, m := range ms {
		out = append(out, m.Member)
	}
	slices.Sort(out)
	return list(out)
}

// list names at most eight.
func list(names []string) string {
	const most = 8
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
