package codec

import (
	"math"

	"girassol.dev/internal/kernel"
)

// lloydRounds bounds the iteration; it has settled long before on real groups.
const lloydRounds = 12

// levels finds two levels, low <= high, for the absolute values of v, which is
// not empty, by Lloyd's iteration from the mean on: each level becomes the mean
// of the values that are nearer to it. Both are rounded to bf16.
func levels(v []float32) (low, high float32) {
	total, _, _ := kernel.SplitSums(v, math.Inf(1))
	bound := total / float64(len(v))
	lo, hi := bound, bound
	for range lloydRounds {
		// Two sums, not one and a difference: small values next to huge ones
		// must not drown.
		below, above, n := kernel.SplitSums(v, bound)
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

// mean of the absolute values of v, rounded to bf16: the level whose signs are
// nearest to v.
func mean(v []float32) float32 {
	total, _, _ := kernel.SplitSums(v, math.Inf(1))
	return kernel.FromBF16(kernel.BF16(float32(total / float64(len(v)))))
}

// halfway is the largest float32 that is not nearer to high than to low: what is
// above it is nearer to high.
func halfway(low, high float32) float32 {
	middle := (float64(low) + float64(high)) / 2
	f := float32(middle)
	if float64(f) > middle {
		f = math.Nextafter32(f, 0)
	}
	return f
}
