package algorithm

import (
	"errors"
	"fmt"
	"strings"
)

// Bounds of the parameters.
const (
	MaxOuterLearningRate = 10
	// MaxClipFactor clips nothing that numbers in fp32 could tell.
	MaxClipFactor = 1e6
	// MaxSchedule entries.
	MaxSchedule = 16
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
	s := find(p.Strategy)
	if s == nil {
		fail("strategy", "unknown %q, want one of %s", p.Strategy, strings.Join(Strategies(), ", "))
		s = &strategy{}
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
		if s.dense && (side.e.KeepOneIn > 1 || side.e.Values.Quantised()) {
			fail(side.path, "%s sends everything in fp32 or bf16; use %s for less", p.Strategy, DecoupledMomentum)
		}
	}
	if p.Uplink.Transform != p.Downlink.Transform {
		fail("downlink.transform", "is %q, uplink's is %q; both must be the same", p.Downlink.Transform, p.Uplink.Transform)
	}
	// Written so that NaN fails.
	if r := p.Robust; !(r.TrimFraction >= 0 && r.TrimFraction < 0.5) {
		fail("robust.trimFraction", "%g is not at least 0 and below 0.5: it is cut off at both ends and something must be left", r.TrimFraction)
	}
	if r := p.Robust; !(r.ClipFactor >= 0 && r.ClipFactor <= MaxClipFactor) {
		fail("robust.clipFactor", "%g is not above 0 and at most %d", r.ClipFactor, int(MaxClipFactor))
	}
	if p.Robust != (Robust{}) && !s.dense {
		fail("robust", "%s sends parts of updates that cannot be compared element by element; it needs %s or %s", p.Strategy, DiLoCo, FedAvg)
	}
	if p.Adaptive && s.adapt == nil {
		fail("adaptive", "%s has no rule for its outer step", p.Strategy)
	}
	return errors.Join(errs...)
}

func (p Plan) validate(parent string) error {
	errs := []error{p.Parameters.validate(parent)}
	fail := func(i int, field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%sschedule[%d]%s: %s", parent, i, field, fmt.Sprintf(format, args...)))
	}
	s := find(p.Strategy)
	for i, d := range p.Schedule {
		switch {
		case s != nil && s.dense:
			fail(i, "", "%s sends everything; a schedule of densities needs %s", p.Strategy, DecoupledMomentum)
			return errors.Join(errs...)
		case i >= MaxSchedule:
			fail(i, "", "more than %d entries", MaxSchedule)
			return errors.Join(errs...)
		case i > 0 && d.FromVersion <= p.Schedule[i-1].FromVersion:
			fail(i, ".fromVersion", "%d does not come after %d: put them in ascending order", d.FromVersion, p.Schedule[i-1].FromVersion)
		}
		for _, side := range []struct {
			field string
			keep  int
			e     Encoding
		}{{".uplinkKeepOneIn", d.UplinkKeepOneIn, p.Uplink}, {".downlinkKeepOneIn", d.DownlinkKeepOneIn, p.Downlink}} {
			if most := min(MaxKeepOneIn, side.e.Group()); side.keep < 0 || side.keep > most {
				fail(i, side.field, "%d is not in 1 to %d, the size of a group", side.keep, most)
			}
		}
	}
	return errors.Join(errs...)
}

// Validate says everything that is wrong with the plan, each with the path of its
// field.
func (p Plan) Validate() error { return p.validate("algorithm.") }
