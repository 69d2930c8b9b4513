package kernel

import "math"

const (
	// least elements for which the assembly pays.
	least = 64
	// firstStep away from the threshold before, in keys: a sixteenth of an octave.
	firstStep = 1 << 19
	// few keys are no longer looked for among all.
	few = 32
)

// search is for the threshold of k among n keys: those above low are k or more,
// those above high fewer.
type search struct {
	k           int
	low, high   int64
	below, over int // how many are above low, and above high
}

// try narrows the search to one side of at; keys and as many as missing that are
// not among them are counted.
func (b *search) try(keys []uint32, missing int, at int64) {
	if n := missing + countAboveAVX2(keys, uint32(at)); n >= b.k {
		b.low, b.below = at, n
	} else {
		b.high, b.over = at, n
	}
}

func (b *search) done() bool { return b.high-b.low == 1 }

// next is where to try: in turn where the counts suggest and in the middle, which
// bounds the number of tries whatever the keys are.
func (b *search) next(i int) int64 {
	at := b.low + (b.high-b.low)/2
	if i&1 == 0 {
		at = b.low + (b.high-b.low)*int64(b.below-b.k)/int64(b.below-b.over)
	}
	return max(b.low+1, min(at, b.high-1))
}

// kthFast finds the k-th largest |x|, 0 < k < len(x), by counting keys above a
// bound. It begins at the threshold of the group before, which is usually near.
func (s *Selector) kthFast(x []float32, k int) (t threshold, ok bool) {
	if !avx2 || len(x) < least {
		return threshold{}, false
	}
	keys, largest := s.fill(x)
	if largest == 0 {
		return threshold{key: 0, take: k, equal: len(x)}, true
	}
	b := search{k: k, low: -1, below: len(x), high: int64(largest)}
	at := min(int64(s.near), b.high-1)
	b.try(keys, 0, at)
	up := b.low == at
	for step := int64(firstStep); b.high-b.low > step; step *= 2 {
		if up {
			at = b.low + step
		} else {
			at = b.high - step
		}
		b.try(keys, 0, at)
		if up == (b.high == at) { // it lies between the last two
			break
		}
	}
	for i := 0; !b.done() && b.below-b.over > few; i++ {
		b.try(keys, 0, b.next(i))
	}
	if !b.done() {
		n := keysBetweenAVX2(s.candidates[:], keys, uint32(b.low), uint32(b.high))
		rest := s.candidates[:(n+31)&^31]
		clear(rest[n:])
		for i, over := 0, b.over; !b.done(); i++ {
			b.try(rest, over, b.next(i))
		}
	}
	s.near = uint32(b.high)
	return threshold{uint32(b.high), k - b.over, b.below - b.over}, true
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
