package algorithm

import "math"

// The gate of rho: agreement below the threshold keeps a site's residual out of
// play, and it is fully in play a third above it.
const (
	agreementThreshold = 0.05
	agreementSlope     = 3
	// agreementRate is the weight of a round in the moving mean of A.
	agreementRate = 0.2
)

// RoundsInPlay is how many rounds of local work the residual in play may be.
const RoundsInPlay = 3

// Rho is how far a site's own residual is in play at its starting point,
// theta - rho*Inverse(u): between 0 and 1.
//
//	rho = 1 if alone, else clamp(3*(A-0.05), 0, 1);  rho = min(rho, 3*|G_last|/|u|)
//
// A is the sites' agreement, unset before it was measured. The cap keeps the
// start within three rounds of local work: lastNorm is the norm of what the
// last round added to the residual, residualNorm the residual's own. Anything
// unset or not a number gives 0, the plain start from theta.
func Rho(agreement *float64, alone bool, lastNorm, residualNorm float64) float64 {
	rho := 0.0
	switch {
	case alone:
		rho = 1
	case agreement != nil:
		rho = agreementSlope * (*agreement - agreementThreshold)
	}
	// Comparisons this way round are false for NaN.
	if !(rho > 0) || !(lastNorm > 0) || !(residualNorm > 0) || math.IsInf(residualNorm, 1) {
		return 0
	}
	return min(rho, 1, RoundsInPlay*lastNorm/residualNorm)
}

// NextAgreement moves A by what the sites of one round measured:
//
//	A <- A + 0.2*(mean - A)
//
// from the mean itself when there was no A before. Values that are not numbers
// do not count, others are cut to [-1, 1]; without any, A stays as it is. The
// order of measured must be fixed (by member) for equal results everywhere.
func NextAgreement(prev *float64, measured []float64) *float64 {
	sum, n := 0.0, 0
	for _, a := range measured {
		if math.IsNaN(a) {
			continue
		}
		sum += max(-1, min(1, a))
		n++
	}
	if n == 0 {
		return prev
	}
	next := sum / float64(n)
	if prev != nil && !math.IsNaN(*prev) {
		next = *prev + float64(agreementRate*(next-*prev))
	}
	return &next
}
