package algorithm

import "girassol.dev/api/federation/v1alpha1"

// decoupledMomentum sends the largest coefficients of what each side has
// accumulated and keeps the rest for later rounds.
var decoupledMomentum = strategy{
	name: DecoupledMomentum, spec: v1alpha1.DecoupledMomentum,
	defaults: Parameters{
		OuterLearningRate: 1, OuterMomentum: 0.6,
		Uplink:   Encoding{Transform: DCT64, KeepOneIn: 16, Values: TwoBit},
		Downlink: Encoding{Transform: DCT64, KeepOneIn: 8, Values: TwoBit},
	},
	adapt: byMembersAndAgreement,
}

// The outer step of sites that pull against each other, and the agreement from
// which on they do not.
const (
	cautiousRate     = 0.5
	cautiousMomentum = 0.8
	agreed           = 0.05
)

// byMembersAndAgreement is the outer step that docs/convergence.md measured best:
//
//	w = clamp(A/0.05, 0, 1);  eta = w*eta + (1-w)*0.5;  mu = w*mu + (1-w)*0.8
//	mu = mu*(1 - 1/(2n))
//
// Sites that do not agree get a slower and smoother step. The mean of few members
// is noise that momentum repeats: alone half of it is left. One member has nobody
// to agree with.
func byMembersAndAgreement(eta, mu float64, members int, agreement *float64) (float64, float64) {
	// A that is not a number says nothing.
	if members > 1 && agreement != nil && *agreement == *agreement {
		w := max(0, min(1, *agreement/agreed))
		eta = float64(w*eta) + float64((1-w)*cautiousRate)
		mu = float64(w*mu) + float64((1-w)*cautiousMomentum)
	}
	return eta, mu * (1 - 1/float64(2*members))
}
