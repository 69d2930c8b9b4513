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
	// EightBit and FourBit are whole multiples of the group's step.
	EightBit Values = "8bit"
	FourBit  Values = "4bit"
	// TwoBit is a sign and one of two levels; the levels belong to the group.
	TwoBit Values = "2bit"
	// OneBit is a sign; the one level belongs to the group.
	OneBit Values = "1bit"
)

// Quantised says that values share what their group has: steps or levels.
func (v Values) Quantised() bool {
	return v == EightBit || v == FourBit || v == TwoBit || v == OneBit
}

// The sizes of a group, all powers of two.
const (
	MinGroupSize = 256
	// MaxGroupSize is also the default.
	MaxGroupSize = 4096
)

// Encoding is how one direction is compressed.
type Encoding struct {
	Transform Transform `json:"transform"`
	// KeepOneIn sends one of so many coefficients of each group; 1 sends all.
	KeepOneIn int    `json:"keepOneIn"`
	Values    Values `json:"values"`
	// GroupSize of the coefficients that are chosen and scaled together: a power of
	// two from MinGroupSize to MaxGroupSize; 0 is MaxGroupSize.
	GroupSize int `json:"groupSize,omitempty"`
}

// Group is the size of a group, also where GroupSize is not set.
func (e Encoding) Group() int {
	if e.GroupSize == 0 {
		return MaxGroupSize
	}
	return e.GroupSize
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
