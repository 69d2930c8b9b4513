package kernel

import (
	"fmt"
	"math"
)

// GroupSize is the most elements TopK chooses from.
const GroupSize = 4096

// TopK returns the indices of the k elements of x that are largest by absolute
// value, in ascending order; of equal ones the lower indices win. The result
// reuses idx's memory when it is large enough. k is cut to 0..len(x). x has at
// most GroupSize elements and no NaN: the caller has checked that.
//
// It is a radix selection on the bits of |x|, which order as the values do:
// linear in every case, and without randomness.
func TopK(idx []uint16, x []float32, k int) []uint16 {
	if len(x) > GroupSize {
		panic(fmt.Sprintf("kernel: TopK of %d elements, at most %d", len(x), GroupSize))
	}
	k = max(0, min(k, len(x)))
	if cap(idx) < k {
		idx = make([]uint16, k)
	}
	idx = idx[:k]
	if k == len(x) {
		for i := range idx {
			idx[i] = uint16(i)
		}
		return idx
	}
	if k == 0 {
		return idx
	}
	threshold, take, equal := kth(x, k)
	if take == equal {
		// The usual case: everything at the threshold is in, so that one
		// comparison without a branch decides.
		limit := int64(threshold) - 1
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
		case key > threshold:
		case key == threshold && take > 0:
			take--
		default:
			continue
		}
		idx[j] = uint16(i)
		j++
	}
	return idx
}

// kth finds the k-th largest |x|, 0 < k < len(x): its bits, how many elements
// that equal it belong to the k largest, and how many equal it at all.
func kth(x []float32, k int) (threshold uint32, take, equal int) {
	// 11 bits, then 10, then 10 of the 31 bits of |x|.
	var first [2048]uint16
	for _, v := range x {
		first[math.Float32bits(v)&^(1<<31)>>20]++
	}
	bucket, rest := descend(first[:], k)

	var candidates [GroupSize]uint32
	n := 0
	for _, v := range x {
		key := math.Float32bits(v) &^ (1 << 31)
		candidates[n&(GroupSize-1)] = key
		if key>>20 == bucket {
			n++
		}
	}
	threshold = bucket
	var digits [1024]uint16
	for shift := 10; shift >= 0; shift -= 10 {
		clear(digits[:])
		for _, key := range candidates[:n] {
			digits[key>>shift&1023]++
		}
		var digit uint32
		digit, rest = descend(digits[:], rest)
		kept := 0
		for _, key := range candidates[:n] {
			if key>>shift&1023 == digit {
				candidates[kept] = key
				kept++
			}
		}
		n = kept
		threshold = threshold<<10 | digit
	}
	return threshold, rest, n
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
