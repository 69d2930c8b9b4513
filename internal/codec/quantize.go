package codec

import (
	"math"

	"girassol.dev/internal/kernel"
)

// lloydRounds bounds the iteration; it has settled long before on real groups.
const lloydRounds = 12

// levels finds two levels, low <= high, for the absolute values of v, which is
// not empty, by Lloyd's iteration from the mean on: each level becomes the mean
// of the values that are nearer to it. Both are rounded to bf16. Sums are in
// float64 in index order, so that every machine finds the same ones.
func levels(v []float32) (low, high float32) {
	total := 0.0
	for _, x := range v {
		total += math.Abs(float64(x))
	}
	bound := total / float64(len(v))
	lo, hi := bound, bound
	for range lloydRounds {
		// Two sums, not one and a difference: small values next to huge ones
		// must not drown.
		below, above, n := 0.0, 0.0, 0
		for _, x := range v {
			if a := math.Abs(float64(x)); a > bound {
				above += a
				n++
			} else {
				below += a
			}
		}
		if n == 0 || n == len(v) {
			break
		}
		hi = above / float64(n)
		lo = below / float64(len(v)-n)
		next := (lo + hi) / 2
		if next == bound {
			break
		}
		bound = next
	}
	low = kernel.FromBF16(kernel.BF16(float32(lo)))
	high = kernel.FromBF16(kernel.BF16(float32(hi)))
	return min(low, high), max(low, high)
}
