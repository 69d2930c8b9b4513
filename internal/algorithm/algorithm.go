// Package algorithm is what both ends must agree on to encode, decode and step:
// the strategies and their parameters, and the site's residual policy. All of
// it is pure.
//
// It must not know how updates travel or when rounds end.
package algorithm

import "fmt"

// Transform turns a tensor's elements into the domain that is sent.
type Transform string

// The transforms.
const (
	Identity Transform = "identity"
	// DCT64 is the orthonormal DCT-II of blocks of 64 elements.
	DCT64 Transform = "dct64"
)

// Values is how one number travels.
type Values string

// The value formats.
const (
	FP32 Values = "fp32"
	BF16 Values = "bf16"
	// TwoBit is a sign and one of two levels; the levels belong to the group.
	TwoBit Values = "2bit"
)

// Encoding is how one direction is compressed.
type Encoding struct {
	Transform Transform `json:"transform"`
	// KeepOneIn sends one of so many coefficients of each group; 1 sends all.
	KeepOneIn int    `json:"keepOneIn"`
	Values    Values `json:"values"`
}

// Lossless says that what arrives is what was sent, within the codec's
// magnitude bound.
func (e Encoding) Lossless() bool { return e.KeepOneIn == 1 && e.Values == FP32 }

// Parameters of a strategy.
type Parameters struct {
	Strategy string `json:"strategy"`
	// OuterLearningRate (eta) and OuterMomentum (mu) of the outer step.
	OuterLearningRate float64  `json:"outerLearningRate"`
	OuterMomentum     float64  `json:"outerMomentum"`
	Uplink            Encoding `json:"uplink"`
	Downlink          Encoding `json:"downlink"`
}

// The strategies by name.
const (
	DecoupledMomentum = "decoupled-momentum"
	DiLoCo            = "diloco"
	FedAvg            = "fedavg"
)

// Defaults returns a strategy's parameters as the study measured them best.
func Defaults(strategy string) (Parameters, error) {
	dense := Encoding{Transform: Identity, KeepOneIn: 1, Values: FP32}
	switch strategy {
	case DecoupledMomentum:
		return Parameters{
			Strategy: strategy, OuterLearningRate: 1, OuterMomentum: 0.6,
			Uplink:   Encoding{Transform: DCT64, KeepOneIn: 16, Values: TwoBit},
			Downlink: Encoding{Transform: DCT64, KeepOneIn: 8, Values: TwoBit},
		}, nil
	case DiLoCo:
		return Parameters{Strategy: strategy, OuterLearningRate: 0.7, OuterMomentum: 0.9, Uplink: dense, Downlink: dense}, nil
	case FedAvg:
		return Parameters{Strategy: strategy, OuterLearningRate: 1, OuterMomentum: 0, Uplink: dense, Downlink: dense}, nil
	}
	return Parameters{}, fmt.Errorf("algorithm: unknown strategy %q, want %q, %q or %q", strategy, DecoupledMomentum, DiLoCo, FedAvg)
}
