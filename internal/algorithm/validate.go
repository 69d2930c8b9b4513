package algorithm

import (
	"errors"
	"fmt"
)

// Bounds of the parameters.
const (
	MaxOuterLearningRate = 10
	// MaxKeepOneIn: one coefficient of each group of 4096.
	MaxKeepOneIn = 4096
)

// Validate says everything that is wrong with the parameters, each with the
// path of its field.
func (p Parameters) Validate() error { return p.validate("algorithm.") }

func (p Parameters) validate(parent string) error {
	var errs []error
	fail := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s%s: %s", parent, path, fmt.Sprintf(format, args...)))
	}
	dense := false
	switch p.Strategy {
	case DecoupledMomentum:
	case DiLoCo, FedAvg:
		dense = true
	default:
		fail("strategy", "unknown %q, want %q, %q or %q", p.Strategy, DecoupledMomentum, DiLoCo, FedAvg)
	}
	// Written so that NaN fails.
	if !(p.OuterLearningRate > 0 && p.OuterLearningRate <= MaxOuterLearningRate) {
		fail("outerLearningRate", "%g is not above 0 and at most %d", p.OuterLearningRate, MaxOuterLearningRate)
	}
	if !(p.OuterMomentum >= 0 && p.OuterMomentum < 1) {
		fail("outerMomentum", "%g is not in [0, 1)", p.OuterMomentum)
	}
	for _, side := range []struct {
		path string
		e    Encoding
	}{{"uplink", p.Uplink}, {"downlink", p.Downlink}} {
		if side.e.Transform != Identity && side.e.Transform != DCT64 {
			fail(side.path+".transform", "unknown %q, want %q or %q", side.e.Transform, Identity, DCT64)
		}
		if side.e.KeepOneIn < 1 || side.e.KeepOneIn > MaxKeepOneIn {
			fail(side.path+".keepOneIn", "%d is not in 1 to %d", side.e.KeepOneIn, MaxKeepOneIn)
		}
		if side.e.Values != FP32 && side.e.Values != BF16 && !side.e.Values.Quantised() {
			fail(side.path+".values", "unknown %q, want %q, %q, %q, %q, %q or %q", side.e.Values, FP32, BF16, EightBit, FourBit, TwoBit, OneBit)
		}
		switch group := side.e.Group(); {
		case group < MinGroupSize || group > MaxGroupSize || group&(group-1) != 0:
			fail(side.path+".groupSize", "%d is no power of two from %d to %d", group, MinGroupSize, MaxGroupSize)
		case side.e.KeepOneIn > group && side.e.KeepOneIn <= MaxKeepOneIn:
			fail(side.path+".keepOneIn", "one in %d is less than one of each group of %d: keep more or raise groupSize", side.e.KeepOneIn, group)
		}
		if dense && (side.e.KeepOneIn > 1 || side.e.Values.Quantised()) {
			fail(side.path, "%s sends everything in fp32 or bf16; use %s for less", p.Strategy, DecoupledMomentum)
		}
	}
	if p.Uplink.Transform != p.Downlink.Transform {
		fail("downlink.transform", "is %q, uplink's is %q; both must be the same", p.Downlink.Transform, p.Uplink.Transform)
	}
	return errors.Join(errs...)
}
