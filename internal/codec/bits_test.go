package codec

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBitsComeBackAsWritten(t *testing.T) {
	type item struct {
		v    uint32
		n    uint
		rice bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var items []item
		w := newBitWriter(nil, 60*520)
		for range rapid.IntRange(0, 60).Draw(t, "items") {
			if rapid.Bool().Draw(t, "rice") {
				it := item{uint32(rapid.IntRange(0, 4095).Draw(t, "gap")), uint(rapid.IntRange(0, maxRice).Draw(t, "b")), true}
				w.rice(it.v, it.n)
				items = append(items, it)
				continue
			}
			n := uint(rapid.IntRange(0, 32).Draw(t, "n"))
			v := uint32(rapid.Uint64Range(0, 1<<n-1).Draw(t, "v"))
			w.put(uint64(v), n)
			items = append(items, item{v, n, false})
		}
		out := w.flush()
		tail := rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "tail")
		r := bitReader{in: append(slices.Clone(out), tail...)}
		for i, it := range items {
			var got uint32
			if it.rice {
				got = r.rice(it.n, 4095)
			} else {
				got = r.take(it.n)
			}
			if got != it.v || r.out {
				t.Fatalf("item %d: %d (out %v), want %d", i, got, r.out, it.v)
			}
		}
		used, clean := r.align()
		if used != len(out) || !clean {
			t.Fatalf("used %d of %d bytes, clean %v", used, len(out), clean)
		}
	})
}

func TestBitsPastTheEndAreNoticed(t *testing.T) {
	for _, in := range [][]byte{nil, {0}, {0, 0, 0, 0, 0, 0, 0, 0, 0}, {0x10}} {
		r := bitReader{in: in}
		for range 20 {
			r.rice(3, 1<<20)
		}
		if !r.out {
			t.Errorf("% x: reading 20 gaps was not noticed", in)
		}
	}
}

func TestLongRunOfZerosIsCutOff(t *testing.T) {
	r := bitReader{in: make([]byte, 1<<20)}
	if got := r.rice(0, 100); got != 101 {
		t.Fatalf("%d, want 101: above the limit", got)
	}
	if r.pos > 64 {
		t.Errorf("read %d bytes for a limit of 100 bits", r.pos)
	}
}

func TestIndicesComeBackAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, MaxGroupSize).Draw(t, "n")
		b := uint(rapid.IntRange(0, maxRice).Draw(t, "b"))
		one := rapid.SampledFrom([]int{1, 2, 16, 500, 5000}).Draw(t, "one in")
		lead := uint(rapid.IntRange(0, 9).Draw(t, "bits before"))
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var idx []uint16
		for i := range n {
			if r.IntN(one) == 0 {
				idx = append(idx, uint16(i))
			}
		}
		w := newBitWriter(nil, 2*n+2*len(idx)+2)
		w.put(0, lead)
		w.indices(idx, b)
		out := w.flush()
		in := bitReader{in: append(slices.Clone(out), make([]byte, rapid.IntRange(0, 12).Draw(t, "tail"))...)}
		in.take(lead)
		got := make([]uint16, len(idx))
		if !in.indices(got, b, uint32(n)) || !slices.Equal(got, idx) {
			t.Fatalf("%v, want %v", got, idx)
		}
		if used, clean := in.align(); used != len(out) || !clean {
			t.Fatalf("used %d of %d bytes, clean %v", used, len(out), clean)
		}
		if len(idx) > 0 && n > int(idx[len(idx)-1]) {
			in = bitReader{in: out}
			in.take(lead)
			if in.indices(got, b, uint32(idx[len(idx)-1])) {
				t.Fatalf("an index of %d was taken for one below that", idx[len(idx)-1])
			}
		}
	})
}
