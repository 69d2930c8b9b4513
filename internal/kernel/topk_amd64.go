package kernel

import "math"

const (
	// least elements for which the assembly pays.
	least = 64
	// firstStep away from the threshold before, in keys: a sixteenth of an octave.
	firstStep = 1 << 19
	// few keys are no longer looked for among all.
	few = 24
)

// search is for the threshold of k among n keys: those above low are k or more,
// those above high fewer.
type search struct {
	k           int
	low, high   int64
	below, over int // how many are above low, and above high
}

// try narrows the search to one side of each of three keys; keys and as many as
// missing that are not among them are counted.
func (b *search) try(keys []uint32, missing int, at [3]int64) {
	var t [3]uint32
	var counts [3]uint64
	for i, v := range at {
		t[i] = uint32(max(b.low+1, min(v, b.high-1)))
	}
	countAboveAVX2(keys, &t, &counts)
	for i, v := range t {
		switch n := missing + int(counts[i]); {
		case n >= b.k:
			if int64(v) > b.low {
				b.low, b.below = int64(v), n
			}
		case int64(v) < b.high:
			b.high, b.over = int64(v), n
		}
	}
}

func (b *search) done() bool { return b.high-b.low == 1 }

// next is where to try: around where the counts suggest, and in the middle, which
// bounds the number of tries whatever the keys are.
func (b *search) next() [3]int64 {
	width := b.high - b.low
	at := b.low + width*int64(b.below-b.k)/int64(b.below-b.over)
	return [3]int64{at - width/16, b.low + width/2, at + width/16}
}

// kthFast finds the k-th largest |x|, 0 < k < len(x), by counting keys above
// bounds. It begins at the threshold of the group before, which is usually near.
func (s *Selector) kthFast(x []float32, k int) (t threshold, ok bool) {
	if !avx2 || len(x) < least {
		return threshold{}, false
	}
	keys, largest := s.fill(x)
	if largest == 0 {
		return threshold{key: 0, take: k, equal: len(x)}, true
	}
	b := search{k: k, low: -1, below: len(x), high: int64(largest)}
	if !b.done() {
		at := int64(s.near)
		b.try(keys, 0, [3]int64{at - firstStep, at, at + firstStep})
	}
	for step := int64(4 * firstStep); b.high-b.low > 2*step; step *= 8 {
		// It lies outside of what was tried.
		switch {
		case b.low == -1:
			b.try(keys, 0, [3]int64{b.high - step, b.high - 2*step, b.high - 4*step})
		case b.high == int64(largest):
			b.try(keys, 0, [3]int64{b.low + step, b.low + 2*step, b.low + 4*step})
		}
	}
	for !b.done() && b.below-b.over > few {
		b.try(keys, 0, b.next())
	}
	if b.done() {
		s.near = uint32(b.high)
		return threshold{uint32(b.high), k - b.over, b.below - b.over}, true
	}
	n := keysBetweenAVX2(s.candidates[:], keys, uint32(b.low), uint32(b.high))
	t = nth(s.candidates[:n], k-b.over)
	s.near = t.key
	return t, true
}

// nth largest of a few keys, from 1.
func nth(keys []uint32, n int) threshold {
	for _, key := range keys {
		above, equal := 0, 0
		for _, other := range keys {
			above += int(uint64(int64(key)-int64(other)) >> 63)
			if other == key {
				equal++
			}
		}
		if above < n && n <= above+equal {
			return threshold{key, n - above, equal}
		}
	}
	panic("kernel: the keys were counted wrongly")
}

// fill makes the keys of x, filled with zeros to a whole block.
func (s *Selector) fill(x []float32) (keys []uint32, largest uint32) {
	n := len(x) &^ 15
	largest = magnitudesAVX2(s.keys[:n], x[:n])
	for i, v := range x[n:] {
		s.keys[n+i] = math.Float32bits(v) &^ (1 << 31)
		largest = max(largest, s.keys[n+i])
	}
	keys = s.keys[:(len(x)+31)&^31]
	clear(keys[len(x):])
	s.filled = len(keys)
	return keys, largest
}

// indicesFast of the keys of the last fill above t, which are k.
func (s *Selector) indicesFast(k int, t uint32) []uint16 {
	indicesAboveAVX2(s.indices[:], s.keys[:s.filled], t)
	return s.indices[:k]
}
