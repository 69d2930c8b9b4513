package admission

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// run merges rounds of one member at each of the sites.
func run(rounds uint64, sites map[string]Measure) Norms {
	var n Norms
	for r := range rounds {
		bySite := map[string][]Measure{}
		for s, m := range sites {
			bySite[s] = []Measure{m}
		}
		n = n.Merged(r+1, bySite)
	}
	return n
}

func TestNormsAreNotJudgedBeforeThereIsHistory(t *testing.T) {
	fair := Measure{Norm: 1, Steps: 10, Weight: 100}
	wild := Measure{Norm: 1e30, Steps: 10, Weight: 100}
	for rounds := range uint64(8) {
		if b := run(rounds, map[string]Measure{"a": fair}).Judge(2, wild); b != nil {
			t.Fatalf("after %d rounds of one site: %v", rounds, b)
		}
	}
	b := run(8, map[string]Measure{"a": fair}).Judge(2, wild)
	if b == nil || b.Reason != v1alpha1.ReasonNormTooLarge || !strings.Contains(b.Message, "1e+30") {
		t.Fatalf("after 8 rounds: %v", b)
	}
	if b := run(8, map[string]Measure{"a": fair}).Judge(0, wild); b != nil {
		t.Fatalf("without a bound: %v", b)
	}
	if b := run(8, map[string]Measure{"a": {}}).Judge(2, wild); b != nil {
		t.Fatalf("zeros are nothing to compare with: %v", b)
	}
}

func TestHonestSitesOfUnequalSpeedPass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// k steps go between sqrt(k) (a random walk) and k times (straight on) as far as
		// one; a site is up to eight times as fast as the usual one.
		drift := rapid.Float64Range(0.5, 1).Draw(t, "drift")
		usual := rapid.Uint64Range(1, 1000).Draw(t, "steps")
		speeds := rapid.SliceOfN(rapid.Float64Range(0.02, 8), 3, 9).Draw(t, "speeds")
		n := run(20, map[string]Measure{"x": of(usual, drift), "y": of(usual, drift), "z": of(usual, drift)})
		for round := range uint64(10) {
			bySite := map[string][]Measure{"x": {of(usual, drift)}, "y": {of(usual, drift)}, "z": {of(usual, drift)}}
			for _, speed := range speeds[:1] {
				m := of(uint64(math.Ceil(speed*float64(usual))), drift)
				if b := n.Judge(2.1, m); b != nil {
					t.Fatalf("drift %.2f, %d steps where %d are usual: %v", drift, m.Steps, usual, b)
				}
				bySite["fast"] = []Measure{m}
			}
			n = n.Merged(21+round, bySite)
		}
	})
}

func of(steps uint64, drift float64) Measure {
	return Measure{Norm: math.Pow(float64(steps), drift), Steps: steps, Weight: float64(steps)}
}

func TestAWrongWordOnStepsOrWeightBuysABoundedAmount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := run(10, map[string]Measure{"a": {Norm: 1, Steps: 10, Weight: 100}, "b": {Norm: 1.2, Steps: 12, Weight: 90}, "c": {Norm: 0.8, Steps: 8, Weight: 110}})
		factor := rapid.Float64Range(1.1, 100).Draw(t, "factor")
		m := Measure{
			Norm:   rapid.Float64Range(0, 1e12).Draw(t, "norm"),
			Steps:  rapid.Uint64().Draw(t, "steps"),
			Weight: rapid.Float64Range(1, 1<<53).Draw(t, "weight"),
		}
		if n.Judge(factor, m) != nil {
			return
		}
		if m.Norm > factor*8*1.001 {
			t.Fatalf("norm %g passed a factor of %g", m.Norm, factor)
		}
		if m.Norm > 0.01 && m.Norm*m.Weight > factor*8*64*100*1.001 && m.Weight > 64*100 {
			t.Fatalf("norm %g with weight %g passed a factor of %g", m.Norm, m.Weight, factor)
		}
	})
}

// Whatever a minority of the sites sends, and with however many members: the bound
// stays between those that the honest ones make.
func TestAMinorityOfSitesCannotMoveTheUsual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		honest := rapid.SliceOfN(rapid.Float64Range(0.5, 2), 3, 6).Draw(t, "honest")
		var n Norms
		for round := range uint64(40) {
			bySite := map[string][]Measure{}
			for i, norm := range honest {
				bySite[string(rune('a'+i))] = []Measure{{Norm: norm, Steps: 10, Weight: 10}}
			}
			for i := range len(honest) - 1 {
				for range rapid.IntRange(1, 20).Draw(t, "members") {
					s := string(rune('A' + i))
					bySite[s] = append(bySite[s], Measure{Norm: rapid.Float64Range(0, 1e9).Draw(t, "norm"), Steps: 10, Weight: 10})
				}
			}
			n = n.Merged(round+1, bySite)
		}
		if u := n.usual(); u.Norm < 0.5 || u.Norm > 2 {
			t.Fatalf("the usual norm is %g, the honest ones are within 0.5 to 2", u.Norm)
		}
	})
}

func TestBuffersHaveABoundOfTheirOwn(t *testing.T) {
	n := run(8, map[string]Measure{"a": {Norm: 1, Buffers: 3, Steps: 1, Weight: 1}})
	if b := n.Judge(10, Measure{Norm: 1, Buffers: 31, Steps: 1, Weight: 1}); b == nil || !strings.Contains(b.Message, "buffers") {
		t.Fatal(b)
	}
	if b := n.Judge(10, Measure{Norm: 1, Buffers: 29, Steps: 1, Weight: 1}); b != nil {
		t.Fatal(b)
	}
}

func TestNormsThatAreNoNumbersAreRefusedAndNotRemembered(t *testing.T) {
	n := run(8, map[string]Measure{"a": {Norm: 1, Steps: 1, Weight: 1}})
	for _, v := range []float64{math.NaN(), math.Inf(1)} {
		if n.Judge(10, Measure{Norm: v, Steps: 1, Weight: 1}) == nil {
			t.Errorf("a norm of %v passed", v)
		}
		if got := n.Merged(9, map[string][]Measure{"a": {{Norm: v, Steps: 1, Weight: 1}}}); len(got) != 8 {
			t.Errorf("a norm of %v is remembered", v)
		}
	}
}

func TestHistoryIsBoundedAndFollowsTheRun(t *testing.T) {
	n := run(100, map[string]Measure{"a": {Norm: 100, Steps: 1, Weight: 1}})
	for r := range uint64(100) {
		n = n.Merged(101+r, map[string][]Measure{"a": {{Norm: 1, Steps: 1, Weight: 1}}})
	}
	if len(n) != history || n.Judge(10, Measure{Norm: 11, Steps: 1, Weight: 1}) == nil {
		t.Errorf("%d entries, the usual norm is %g", len(n), n.usual().Norm)
	}
}
