package kernel

import "math"

// SplitSums adds |v| in float64, those up to the bound apart from those above it,
// and says how many are above. Each sum is made in four interleaved lanes, which
// are added at last, so that every machine finds the same.
func SplitSums(v []float32, bound float64) (below, above float64, n int) {
	var sums [8]float64
	done, n := splitSumsFast(v, bound, &sums)
	for i, x := range v[done:] {
		if a := math.Abs(float64(x)); a > bound {
			sums[4+i&3] += a
			n++
		} else {
			sums[i&3] += a
		}
	}
	return sums[0] + sums[1] + sums[2] + sums[3], sums[4] + sums[5] + sums[6] + sums[7], n
}

// TwoLevels replaces each value by low, or by high where its absolute value is
// above the bound, with the sign that it had, and writes the codes of eight values
// at a time: of each, from the lowest bits on, one bit for negative and one for
// high. codes has one entry for each eight values that are begun.
func TwoLevels(codes []uint16, v []float32, bound, low, high float32) {
	sameLength("TwoLevels", len(codes), (len(v)+7)/8)
	done := twoLevelsFast(codes, v, bound, low, high)
	clear(codes[done/8:])
	for i := done; i < len(v); i++ {
		code, level := uint16(0), low
		if float32(math.Abs(float64(v[i]))) > bound {
			code, level = 2, high
		}
		if v[i] < 0 {
			code, level = code|1, -level
		}
		v[i] = level
		codes[i/8] |= code << (2 * (i % 8))
	}
}
