package kernel

import (
	"fmt"
	"math"
)

const exponent = 0x7f800000

// Finite returns the index of the first NaN or infinity of x, -1 if there is
// none.
func Finite(x []float32) int {
	at := finiteFast(x)
	x = x[at:]
	for len(x) >= 8 {
		// An exponent of all ones carries into the sign bit when its lowest
		// bit is added; nothing else does.
		v := (*[8]float32)(x)
		c := math.Float32bits(v[0])&exponent + 1<<23
		c |= math.Float32bits(v[1])&exponent + 1<<23
		c |= math.Float32bits(v[2])&exponent + 1<<23
		c |= math.Float32bits(v[3])&exponent + 1<<23
		c |= math.Float32bits(v[4])&exponent + 1<<23
		c |= math.Float32bits(v[5])&exponent + 1<<23
		c |= math.Float32bits(v[6])&exponent + 1<<23
		c |= math.Float32bits(v[7])&exponent + 1<<23
		if c>>31 != 0 {
			break
		}
		x = x[8:]
		at += 8
	}
	for i, v := range x {
		if math.Float32bits(v)&exponent == exponent {
			return at + i
		}
	}
	return -1
}

// SumSquares is the squared Euclidean norm of x in float64, summed in sixteen
// interleaved lanes and then lane by lane.
func SumSquares(x []float32) float64 { return Dot(x, x) }

// Dot is the inner product of x and y in float64, summed in the same order as
// SumSquares. The lengths must be equal.
func Dot(x, y []float32) float64 {
	sameLength("Dot", len(x), len(y))
	var sums [16]float64
	n := dotFast(x, y, &sums)
	x, y = x[n:], y[n:]
	for len(x) >= 16 && len(y) >= 16 {
		a, b := (*[16]float32)(x), (*[16]float32)(y)
		for i := range sums {
			sums[i] += float64(float64(a[i]) * float64(b[i]))
		}
		x, y = x[16:], y[16:]
	}
	for i := range x {
		sums[i&15] += float64(float64(x[i]) * float64(y[i]))
	}
	return total(&sums)
}

// AddSquares adds src to dst and gives the SumSquares of src. The lengths must be
// equal, and the vectors must not overlap.
func AddSquares(dst, src []float32) float64 {
	sameLength("AddSquares", len(dst), len(src))
	var sums [16]float64
	n := addSquaresFast(dst, src, &sums)
	dst, src = dst[n:], src[n:]
	for i, v := range src {
		dst[i] += v
		sums[i&15] += float64(float64(v) * float64(v))
	}
	return total(&sums)
}

func total(sums *[16]float64) (t float64) {
	for _, s := range sums {
		t += s
	}
	return t
}

// sameLength panics: a length that differs is a defect of the caller, never of
// what a site sent.
func sameLength(op string, a, b int) {
	if a != b {
		panic(fmt.Sprintf("kernel: %s of %d and %d elements", op, a, b))
	}
}
