package wire

import "testing"

// What comes back is given out again; memory of other sizes, and what was cut off at its
// beginning, does not get in between.
func TestFramesMemoryIsUsedAgain(t *testing.T) {
	var p framePool
	seen := map[*byte]bool{}
	var held []*[]byte
	for range 2 * hotFrames {
		b := p.Get(frameSize)
		if len(*b) != frameSize || seen[&(*b)[0]] {
			t.Fatalf("%d bytes, given out before: %t", len(*b), seen[&(*b)[0]])
		}
		seen[&(*b)[0]] = true
		held = append(held, b)
	}
	for _, b := range held {
		*b = (*b)[:9] // as short as the frame was
		p.Put(b)
	}
	cut := p.Get(frameSize)
	*cut = (*cut)[1:]
	p.Put(cut)
	for _, n := range []int{1, 4 << 10, 64 << 10} {
		b := p.Get(n)
		if len(*b) != n || seen[&(*b)[0]] {
			t.Errorf("%d bytes, want %d from elsewhere", len(*b), n)
		}
		p.Put(b)
	}
	for range hotFrames - 1 {
		if b := p.Get(5000); len(*b) != 5000 || cap(*b) != frameSize || !seen[&(*b)[0]] {
			t.Fatalf("%d of %d bytes, used before: %t", len(*b), cap(*b), seen[&(*b)[0]])
		}
	}
}
