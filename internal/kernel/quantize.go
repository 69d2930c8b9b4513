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
// above the bound, with the sign that it had, and writes the codes of four values
// to a byte: of each, from the lowest bits on, one bit for negative and one for
// high. codes has one byte for each four values that are begun.
func TwoLevels(codes []byte, v []float32, bound, low, high float32) {
	sameLength("TwoLevels", len(codes), (len(v)+3)/4)
	done := twoLevelsFast(codes, v, bound, low, high)
	clear(codes[done/4:])
	for i := done; i < len(v); i++ {
		code, level := byte(0), low
		if float32(math.Abs(float64(v[i]))) > bound {
			code, level = 2, high
		}
		if v[i] < 0 {
			code, level = code|1, -level
		}
		v[i] = level
		codes[i/4] |= code << (2 * (i % 4))
	}
}

// FromTwoLevels is what TwoLevels leaves in v, of its codes.
func FromTwoLevels(v []float32, codes []byte, low, high float32) {
	sameLength("FromTwoLevels", len(codes), (len(v)+3)/4)
	level := [4]float32{low, -low, high, -high}
	for i := fromTwoLevelsFast(v, codes, &level); i < len(v); i++ {
		v[i] = level[codes[i/4]>>(2*(i%4))&3]
	}
}

// OneLevel replaces each value by the level with the sign that it had, zero by the
// positive one, and writes a bit for each that is negative, from the lowest bits
// on. codes has one byte for each eight values that are begun.
func OneLevel(codes []byte, v []float32, level float32) {
	sameLength("OneLevel", len(codes), (len(v)+7)/8)
	done := oneLevelFast(codes, v, level)
	clear(codes[done/8:])
	for i := done; i < len(v); i++ {
		if v[i] < 0 {
			v[i] = -level
			codes[i/8] |= 1 << (i % 8)
		} else {
			v[i] = level
		}
	}
}

// FromOneLevel is what OneLevel leaves in v, of its codes.
func FromOneLevel(v []float32, codes []byte, level float32) {
	sameLength("FromOneLevel", len(codes), (len(v)+7)/8)
	for i := fromOneLevelFast(v, codes, level); i < len(v); i++ {
		v[i] = math.Float32frombits(math.Float32bits(level) ^ uint32(codes[i/8]>>(i%8))<<31)
	}
}

// Multiples8 replaces each value by the multiple of the step that is nearest to it,
// of two the even one and none beyond 127, and writes which, a byte each in two's
// complement. The step is above 0, and values and their quotients are finite.
func Multiples8(codes []byte, v []float32, step float32) {
	sameLength("Multiples8", len(codes), len(v))
	for i := multiples8Fast(codes, v, step); i < len(v); i++ {
		q := multiple(v[i], step, 127)
		v[i] = float32(q * step)
		codes[i] = byte(int8(q))
	}
}

// FromMultiples8 is what Multiples8 leaves in v, of its codes.
func FromMultiples8(v []float32, codes []byte, step float32) {
	sameLength("FromMultiples8", len(codes), len(v))
	for i := fromMultiples8Fast(v, codes, step); i < len(v); i++ {
		v[i] = float32(float32(int8(codes[i])) * step)
	}
}

// Multiples4 is Multiples8 up to 7, with two values to a byte, the first in the low
// half.
func Multiples4(codes []byte, v []float32, step float32) {
	sameLength("Multiples4", len(codes), (len(v)+1)/2)
	done := multiples4Fast(codes, v, step)
	clear(codes[done/2:])
	for i := done; i < len(v); i++ {
		q := multiple(v[i], step, 7)
		v[i] = float32(q * step)
		codes[i/2] |= byte(int8(q)) & 15 << (4 * (i % 2))
	}
}

// FromMultiples4 is what Multiples4 leaves in v, of its codes.
func FromMultiples4(v []float32, codes []byte, step float32) {
	sameLength("FromMultiples4", len(codes), (len(v)+1)/2)
	for i := fromMultiples4Fast(v, codes, step); i < len(v); i++ {
		v[i] = float32(float32(int8(codes[i/2]>>(4*(i%2))<<4)>>4) * step)
	}
}

// multiple is never -0: an int has none.
func multiple(v, step, most float32) float32 {
	q := v / step
	return float32(int32(math.RoundToEven(float64(max(-most, min(most, q))))))
}
