package kernel

import (
	"fmt"
	"math"
)

// GroupSize is the most elements TopK chooses from.
const GroupSize = 4096

// spare is how far past its end the assembly may write.
const spare = 32

// Selector chooses the largest elements of one group after the other. It is memory
// to work in: what it gives depends on nothing that it has seen before. The zero
// Selector is ready; it is for one goroutine.
type Selector struct {
	keys       [GroupSize + spare]uint32
	candidates [GroupSize + spare]uint32
	indices    [GroupSize + spare]uint16
	histogram  [2048]uint16
	// near is the threshold of the group before, where the search begins; filled is
	// how many keys the present one has.
	near   uint32
	filled int
}

// threshold is the k-th largest key of a group: how many elements that equal it
// belong to the k largest, and how many equal it at all.
type threshold struct {
	key         uint32
	take, equal int
}

// TopK returns the indices of the k elements of x that are largest by absolute
// value, in ascending order; of equal ones the lower indices win. The result is
// good until the next call. k is cut to 0..len(x). x has at most GroupSize elements
// and no NaN: the caller has checked that.
func (s *Selector) TopK(x []float32, k int) []uint16 {
	if len(x) > GroupSize {
		panic(fmt.Sprintf("kernel: TopK of %d elements, at most %d", len(x), GroupSize))
	}
	k = max(0, min(k, len(x)))
	idx := s.indices[:k]
	if k == len(x) {
		for i := range idx {
			idx[i] = uint16(i)
		}
		return idx
	}
	if k == 0 {
		return idx
	}
	t, fast := s.kthFast(x, k)
	if !fast {
		t = s.kth(x, k)
	}
	if t.take == t.equal {
		// The usual case: everything at the threshold is in.
		if fast {
			return s.indicesFast(k, t.key-1)
		}
		// One comparison without a branch decides.
		limit := int64(t.key) - 1
		j := 0
		for i, v := range x {
			idx[j] = uint16(i)
			j += int(uint64(limit-int64(math.Float32bits(v)&^(1<<31))) >> 63)
			if j == k {
				return idx
			}
		}
		return idx[:j]
	}
	j := 0
	for i, v := range x {
		switch key := math.Float32bits(v) &^ (1 << 31); {
		case key > t.key:
		case key == t.key && t.take > 0:
			t.take--
		default:
			continue
		}
		idx[j] = uint16(i)
		if j++; j == k {
			break
		}
	}
	return idx
}

// kth finds the k-th largest |x|, 0 < k < len(x), by a radix selection on the bits
// of |x|, which order as the values do: linear in every case, and without
// randomness.
func (s *Selector) kth(x []float32, k int) threshold {
	// 11 bits, then 10, then 10 of the 31 bits of |x|.
	clear(s.histogram[:])
	for _, v := range x {
		s.histogram[math.Float32bits(v)&^(1<<31)>>20]++
	}
	bucket, rest := descend(s.histogram[:], k)

	n := 0
	for _, v := range x {
		key := math.Float32bits(v) &^ (1 << 31)
		s.candidates[n&(GroupSize-1)] = key
		if key>>20 == bucket {
			n++
		}
	}
	key := bucket
	digits := s.histogram[:1024]
	for shift := 10; shift >= 0; shift -= 10 {
		clear(digits)
		for _, c := range s.candidates[:n] {
			digits[c>>shift&1023]++
		}
		var digit uint32
		digit, rest = descend(digits, rest)
		kept := 0
		for _, c := range s.candidates[:n] {
			if c>>shift&1023 == digit {
				s.candidates[kept] = c
				kept++
			}
		}
		n = kept
		key = key<<10 | digit
	}
	return threshold{key, rest, n}
}

// descend walks a histogram from its top until k elements are passed, and says
// in which bucket the k-th lies and its rank there, from 1.
func descend(histogram []uint16, k int) (bucket uint32, rank int) {
	b := len(histogram) - 1
	for ; b > 0; b-- {
		n := int(histogram[b])
		if n >= k {
			break
		}
		k -= n
	}
	return uint32(b), k
}

// HalvedGaps sums ((gap>>b)+1)>>1 over the gaps between ascending indices, the
// first one counted from 0: what a Rice code saves in unary bits by one more
// binary bit for each. Indices are below GroupSize.
func HalvedGaps(idx []uint16, b uint) int {
	if len(idx) == 0 {
		return 0
	}
	b &= 15
	sum, next := uint32(idx[0])>>b+1, uint32(idx[0])+1
	sum >>= 1
	n, fast := halvedGapsFast(idx, b)
	sum += fast
	if n > 0 {
		next = uint32(idx[n]) + 1
	}
	for _, i := range idx[n+1:] {
		gap := uint32(i) - next
		next = uint32(i) + 1
		sum += (gap>>b + 1) >> 1
	}
	return int(sum)
}
