package codec

import (
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
		var w bitWriter
		for range rapid.IntRange(0, 300).Draw(t, "items") {
			if rapid.Bool().Draw(t, "rice") {
				it := item{uint32(rapid.IntRange(0, 4095).Draw(t, "gap")), uint(rapid.IntRange(0, maxRice).Draw(t, "b")), true}
				w.rice(it.v, it.n)
				items = append(items, it)
				continue
			}
			n := uint(rapid.IntRange(0, 32).Draw(t, "n"))
			v := uint32(rapid.Uint64Range(0, 1<<n-1).Draw(t, "v"))
			w.put(v, n)
			items = append(items, item{v, n, false})
		}
		w.flush()
		tail := rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "tail")
		r := bitReader{in: append(w.out, tail...)}
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
		if used != len(w.out) || !clean {
			t.Fatalf("used %d of %d bytes, clean %v", used, len(w.out), clean)
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
