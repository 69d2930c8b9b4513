package corpus

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// bits is a set of small numbers as the simplest thing that can be right.
type bits [64]bool

func (b bits) spans() spans {
	var out spans
	for i, in := range b {
		switch n := len(out); {
		case !in:
		case n > 0 && out[n-1].hi == uint64(i):
			out[n-1].hi++
		default:
			out = append(out, span{uint64(i), uint64(i) + 1})
		}
	}
	return out
}

func drawBits(t *rapid.T, name string) (b bits) {
	set := rapid.Uint64().Draw(t, name)
	for i := range b {
		b[i] = set>>i&1 == 1
	}
	return b
}

func TestSetsOfSpansAreThoseOfTheirSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawBits(t, "a"), drawBits(t, "b")
		var union, without bits
		inside := true
		for i := range a {
			union[i], without[i] = a[i] || b[i], a[i] && !b[i]
			inside = inside && (a[i] || !b[i])
		}
		if got := a.spans().add(b.spans()); !slices.Equal(got, union.spans()) {
			t.Fatalf("%v and %v are %v", a.spans(), b.spans(), got)
		}
		if got := a.spans().remove(b.spans()); !slices.Equal(got, without.spans()) {
			t.Fatalf("%v without %v is %v", a.spans(), b.spans(), got)
		}
		if got := a.spans().holds(b.spans()); got != inside {
			t.Fatalf("%v holds %v: %v", a.spans(), b.spans(), got)
		}
		n, pieces := rapid.Uint64Range(0, 70).Draw(t, "n"), rapid.IntRange(0, 8).Draw(t, "pieces")
		taken, rest := a.spans().take(n, pieces)
		switch {
		case taken.size() > n || len(taken) > pieces:
			t.Fatalf("took %v for %d in %d pieces", taken, n, pieces)
		case taken.size() < n && len(taken) < pieces && len(rest) > 0:
			t.Fatalf("took only %v of %v", taken, a.spans())
		case len(taken) > 0 && len(rest) > 0 && taken[len(taken)-1].hi > rest[0].lo:
			t.Fatalf("took %v, left %v: not the front", taken, rest)
		case !slices.Equal(taken.add(rest), a.spans()):
			t.Fatalf("took %v, left %v of %v", taken, rest, a.spans())
		}
	})
}
