package codec

import (
	"bytes"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
)

// Several payloads in one pass, in the domain's order and in another, add what each
// adds alone.
func TestAdderAddsWhatPayloadsAdd(t *testing.T) {
	l := mixedLayout(t)
	for _, e := range allEncodings() {
		d := NewDomain(l, e.Transform)
		var payloads []*Payload
		want := make([]float32, d.Len())
		for i := range uint64(3) {
			p := parse(t, d, e, encode(t, d, e, heavy(i, d.Len()), auxFor(l, 1)))
			payloads = append(payloads, p)
			if err := p.Add(want, 0.5); err != nil {
				t.Fatal(err)
			}
		}
		backwards := slices.Clone(d.Blocks())
		slices.Reverse(backwards)
		for _, blocks := range [][]Block{d.Blocks(), backwards} {
			got := make([]float32, d.Len())
			a := NewAdder(payloads)
			for _, b := range blocks {
				for i := range payloads {
					if err := a.Add(i, got[b.Lo:b.Hi], b, 0.5); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !sameBits(got, want) {
				t.Fatalf("%+v: differs from the payloads' own sum", e)
			}
		}
	}
}

// Split is Block, and leaves what the receiver will not have.
func TestSplitIsBlockAndTheRest(t *testing.T) {
	l := mixedLayout(t)
	for _, e := range allEncodings() {
		d := NewDomain(l, e.Transform)
		x, want := heavy(5, d.Len()), make([]float32, d.Len())
		rest, decoded := slices.Clone(x), heavy(6, d.Len())
		var whole, split bytes.Buffer
		a, b := NewEncoder(&whole, d, e), NewEncoder(&split, d, e)
		for _, block := range d.Blocks() {
			lo, hi := block.Lo, block.Hi
			if err := a.Block(block, x[lo:hi], want[lo:hi]); err != nil {
				t.Fatal(err)
			}
			squares, err := b.Split(block, rest[lo:hi], decoded[lo:hi])
			if err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for _, v := range want[lo:hi] {
				sum += float64(v) * float64(v)
			}
			if squares < sum*(1-1e-9) || squares > sum*(1+1e-9) {
				t.Fatalf("%+v: says %g of a sum of squares of %g", e, squares, sum)
			}
		}
		if !bytes.Equal(whole.Bytes(), split.Bytes()) || !sameBits(decoded, want) {
			t.Fatalf("%+v: other bytes or values", e)
		}
		for i := range rest {
			if rest[i] != x[i]-want[i] {
				t.Fatalf("%+v: element %d of %g leaves %g beside %g", e, i, x[i], rest[i], want[i])
			}
		}
		if e.Values == algorithm.FP32 && e.KeepOneIn == 1 && slices.ContainsFunc(rest, func(v float32) bool { return v != 0 }) {
			t.Fatalf("%+v leaves something", e)
		}
	}
}
