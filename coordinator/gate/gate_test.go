package gate

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func m(member string, samples uint64, loss float64) Measure {
	site, _, _ := strings.Cut(member, "/")
	return Measure{Member: member, Site: site, Samples: samples, Loss: &loss}
}

func silent(member string, samples uint64) Measure {
	v := m(member, samples, 0)
	v.Loss = nil
	return v
}

func result(version uint64, ms ...Measure) Result { return Result{Version: version, Measures: ms} }

func TestALossIsHeldAgainstTheBestOfTheSameMembers(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, c := range map[string]struct {
		best, now     []Measure
		want          Kind
		better        bool
		loss, against float64 // NaN: none
		says          string
	}{
		"the first":                   {nil, []Measure{m("a/1", 10, 2), m("b/1", 30, 4)}, Passed, true, 3.5, nan, "the first"},
		"a better one":                {[]Measure{m("a/1", 10, 2)}, []Measure{m("a/1", 10, 1.9)}, Passed, true, 1.9, 2, "best so far"},
		"within the margin":           {[]Measure{m("a/1", 10, 2)}, []Measure{m("a/1", 10, 2.19)}, Passed, false, 2.19, 2, "2.2"},
		"at the margin":               {[]Measure{m("a/1", 10, 2)}, []Measure{m("a/1", 10, 2.2)}, Passed, false, 2.2, 2, ""},
		"beyond the margin":           {[]Measure{m("a/1", 10, 2)}, []Measure{m("a/1", 10, 2.21)}, Worse, false, 2.21, 2, "2.2"},
		"negative, within":            {[]Measure{m("a/1", 1, -2)}, []Measure{m("a/1", 1, -1.81)}, Passed, false, -1.81, -2, ""},
		"negative, beyond":            {[]Measure{m("a/1", 1, -2)}, []Measure{m("a/1", 1, -1.79)}, Worse, false, -1.79, -2, ""},
		"negative, better":            {[]Measure{m("a/1", 1, -2)}, []Measure{m("a/1", 1, -2.1)}, Passed, true, -2.1, -2, ""},
		"noise near zero":             {[]Measure{m("a/1", 1, 1e-8)}, []Measure{m("a/1", 1, 5e-5)}, Passed, false, 5e-5, 1e-8, ""},
		"from zero far up":            {[]Measure{m("a/1", 1, 0)}, []Measure{m("a/1", 1, 1e-3)}, Worse, false, 1e-3, 0, ""},
		"only shared members count":   {[]Measure{m("a/1", 10, 2), m("b/1", 10, 2)}, []Measure{m("a/1", 10, 2), m("c/1", 1000, 90)}, Passed, false, 2, 2, "on a/1"},
		"weights are the reference's": {[]Measure{m("a/1", 1, 1), m("b/1", 3, 1)}, []Measure{m("a/1", 3, 2), m("b/1", 1, 1)}, Worse, false, 1.25, 1, ""},
		"a site under new node names": {[]Measure{m("a/1", 1, 1), m("a/2", 1, 3)}, []Measure{m("a/3", 5, 2.1)}, Passed, false, 2.1, 2, "(on a)"},
		"nobody in both":              {[]Measure{m("a/1", 1, 1)}, []Measure{m("b/1", 1, 9)}, NotComparable, true, 9, nan, "version 7 is the reference from now on"},
		"no samples":                  {[]Measure{m("a/1", 1, 1)}, []Measure{m("a/1", 0, 9)}, NotComparable, false, nan, nan, "nobody told"},
		"NaN":                         {[]Measure{m("a/1", 1, 1)}, []Measure{m("a/1", 1, nan)}, Worse, false, nan, 1, "no finite number on a/1"},
		"infinite on one of two":      {[]Measure{m("a/1", 1, 1), m("b/1", 1, 1)}, []Measure{m("a/1", 1, 0.5), m("b/1", 1, inf)}, Worse, false, nan, 1, "on b/1"},
		"not told any more":           {[]Measure{m("a/1", 1, 1)}, []Measure{silent("a/1", 1)}, Worse, false, nan, 1, "no finite number on a/1"},
		"never told by one":           {[]Measure{m("a/1", 1, 1), silent("b/1", 1)}, []Measure{m("a/1", 1, 1), silent("b/1", 1)}, Passed, false, 1, 1, ""},
		"never told by any":           {nil, []Measure{silent("a/1", 1)}, NotComparable, false, nan, nan, "nobody told"},
		"NaN without a reference":     {nil, []Measure{m("a/1", 1, nan)}, Worse, false, nan, nan, "no finite number"},
		"largest numbers":             {[]Measure{m("a/1", 1, 1)}, []Measure{m("a/1", 1, math.MaxFloat64)}, Worse, false, math.MaxFloat64, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Rollbacks: 2}
			if c.best != nil {
				s.Best = &Result{Version: 4, Measures: c.best}
			}
			v, next := Config{Margin: 0.1}.Judge(s, result(7, c.now...))
			if v.Kind != c.want || !equal(v.Loss, c.loss) || !equal(v.ReferenceLoss, c.against) || !strings.Contains(v.Message, c.says) {
				t.Fatalf("judged %+v (loss %v, against %v)", v, show(v.Loss), show(v.ReferenceLoss))
			}
			if got := next.Best != nil && next.Best.Version == 7; got != c.better {
				t.Errorf("version 7 is the best: %t, want %t", got, c.better)
			}
			if *next.Last != v || s.Last != nil {
				t.Error("the new state has another verdict, or the old one was changed")
			}
			rollbacks := 2
			if c.better && c.best != nil && c.want == Passed {
				rollbacks = 0
			}
			if next.Rollbacks != rollbacks {
				t.Errorf("%d rollbacks in a row, want %d", next.Rollbacks, rollbacks)
			}
		})
	}
}

// More members may tell of a version, or one of them again, after it was judged.
func TestANewerResultOfTheBestVersionTakesThePlaceOfItsOwn(t *testing.T) {
	s := State{Best: &Result{Version: 7, Measures: []Measure{m("a/1", 10, 2)}}, Rollbacks: 2}
	v, next := Config{Margin: 0.1}.Judge(s, result(7, m("a/1", 10, 3), m("b/1", 10, 4)))
	if v.Kind != Passed || !equal(v.Loss, 3.5) || v.ReferenceLoss != nil || len(next.Best.Measures) != 2 || next.Rollbacks != 2 {
		t.Fatalf("judged %+v, the state is %+v", v, next)
	}
	if v, _ := (Config{Margin: 0.1}).Judge(next, result(8, m("b/1", 10, 4.1))); v.Kind != Passed || !equal(v.ReferenceLoss, 4) {
		t.Errorf("b's result is not compared: %+v", v)
	}
}

func equal(got *float64, want float64) bool {
	if math.IsNaN(want) {
		return got == nil
	}
	return got != nil && math.Abs(*got-want) < 1e-12*max(1, math.Abs(want))
}

func show(v *float64) any {
	if v == nil {
		return nil
	}
	return *v
}

// Whatever is measured: a verdict's figures are finite, what is worse is never the
// reference, and the order of the members does not matter.
func TestVerdictsHoldForAnyFigures(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		measures := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a/1", "a/2", "b/1", "c/1"}), 0, 4, rapid.ID[string])
		draw := func(label string) []Measure {
			var out []Measure
			for _, name := range measures.Draw(rt, label) {
				v := m(name, rapid.Uint64Range(0, 1<<53).Draw(rt, "samples"), rapid.Float64().Draw(rt, "loss"))
				if rapid.Bool().Draw(rt, "silent") {
					v.Loss = nil
				}
				out = append(out, v)
			}
			return out
		}
		c := Config{Margin: rapid.Float64Range(0, 10).Draw(rt, "margin")}
		var s State
		for version := range uint64(4) {
			r := result(version, draw("members")...)
			v, next := c.Judge(s, r)
			for _, f := range []*float64{v.Loss, v.ReferenceLoss} {
				if f != nil && !finite(*f) {
					rt.Fatalf("figure %v", *f)
				}
			}
			if v.Kind == Worse && next.Best != s.Best {
				rt.Fatal("a worse version is the reference")
			}
			for i, j := 0, len(r.Measures)-1; i < j; i, j = i+1, j-1 {
				r.Measures[i], r.Measures[j] = r.Measures[j], r.Measures[i]
			}
			if again, _ := c.Judge(s, r); again.Kind != v.Kind {
				rt.Fatalf("in another order %s, was %s", again.Kind, v.Kind)
			}
			s = next
		}
	})
}
