// Package algorithm is what both ends must agree on to encode, decode and step:
// the strategies and their parameters, and the site's residual policy. All of
// it is pure.
//
// A strategy is a value of type strategy in a file of its own; nothing outside
// asks which one it is, except by what Parameters say.
//
// It must not know how updates travel or when rounds end.
package algorithm

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

// Parameters of one commit.
type Parameters struct {
	Strategy string `json:"strategy"`
	// OuterLearningRate (eta) and OuterMomentum (mu) of the outer step.
	OuterLearningRate float64 `json:"outerLearningRate"`
	OuterMomentum     float64 `json:"outerMomentum"`
	// Adaptive says that both are the strategy's to fit to each commit, see ForCommit.
	Adaptive bool     `json:"adaptive,omitempty"`
	Uplink   Encoding `json:"uplink"`
	Downlink Encoding `json:"downlink"`
	// Robust bounds single members; only the coordinator merges, so that it does not
	// travel.
	Robust Robust `json:"robust,omitzero"`
}

// Robust is how a merge of dense updates bounds what single members can do; zero
// is the plain weighted mean.
type Robust struct {
	// TrimFraction of the members is cut off at each end of every coordinate: 0 to
	// below 0.5.
	TrimFraction float64 `json:"trimFraction,omitempty"`
	// ClipFactor: a larger norm than so many times the round's median is scaled down
	// to that; 0 clips nothing.
	ClipFactor float64 `json:"clipFactor,omitempty"`
}

// Trimmed is how many of n values are cut off at each end: the fraction of n,
// rounded down, where 0.29 of 100 are 29 and not what float64 makes of it.
func (r Robust) Trimmed(n int) int { return int(r.TrimFraction*float64(n) + 1e-9) }

// ForCommit is what holds for a commit of so many members. Where p is Adaptive,
// the strategy fits the outer step to their number and to the sites' agreement A,
// nil before there is one. The coordinator calls it once for each commit and
// writes the result to the commit's manifest, from which every replica steps.
func (p Parameters) ForCommit(members int, agreement *float64) Parameters {
	if s := find(p.Strategy); s != nil && s.adapt != nil && p.Adaptive {
		p.OuterLearningRate, p.OuterMomentum = s.adapt(p.OuterLearningRate, p.OuterMomentum, max(members, 1), agreement)
	}
	return p
}

// Same says that both ask for the same, whatever an adaptive step came to be.
func (p Parameters) Same(other Parameters) bool {
	if p.Adaptive && other.Adaptive {
		other.OuterLearningRate, other.OuterMomentum = p.OuterLearningRate, p.OuterMomentum
	}
	return p == other
}
