package algorithm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// ToProto is the wire form.
func (p Parameters) ToProto() *coordinatorv1.Algorithm {
	return &coordinatorv1.Algorithm{
		Strategy:          p.Strategy,
		OuterLearningRate: p.OuterLearningRate,
		OuterMomentum:     p.OuterMomentum,
		Uplink:            p.Uplink.toProto(),
		Downlink:          p.Downlink.toProto(),
	}
}

func (e Encoding) toProto() *coordinatorv1.Encoding {
	return &coordinatorv1.Encoding{
		Transform: string(e.Transform), KeepOneIn: uint32(e.KeepOneIn), Values: string(e.Values),
		GroupSize: uint32(e.GroupSize),
	}
}

// FromProto reads the wire form and validates it.
func FromProto(a *coordinatorv1.Algorithm) (Parameters, error) {
	if a == nil {
		return Parameters{}, errors.New("algorithm: missing")
	}
	p := Parameters{
		Strategy:          a.GetStrategy(),
		OuterLearningRate: a.GetOuterLearningRate(),
		OuterMomentum:     a.GetOuterMomentum(),
		Uplink:            encodingFromProto(a.GetUplink()),
		Downlink:          encodingFromProto(a.GetDownlink()),
	}
	return p, p.Validate()
}

func encodingFromProto(e *coordinatorv1.Encoding) Encoding {
	return Encoding{
		Transform: Transform(e.GetTransform()),
		KeepOneIn: int(min(e.GetKeepOneIn(), 1<<30)),
		Values:    Values(e.GetValues()),
		GroupSize: int(min(e.GetGroupSize(), 1<<30)),
	}
}

// FromSpec takes what a person wrote, on top of the strategy's defaults, and
// validates it. Errors name the field below spec.
func FromSpec(s v1alpha1.AlgorithmSpec) (Plan, error) {
	st := strategies[0]
	if s.Strategy != "" {
		i := slices.IndexFunc(strategies, func(st *strategy) bool { return st.spec == s.Strategy })
		if i < 0 {
			var known []string
			for _, st := range strategies {
				known = append(known, string(st.spec))
			}
			return Plan{}, fmt.Errorf("spec.algorithm.strategy: unknown %q, want one of %s", s.Strategy, strings.Join(known, ", "))
		}
		st = strategies[i]
	}
	p := Plan{Parameters: st.defaults}
	p.Strategy = st.name
	p.Adaptive = st.adapt != nil && s.OuterLearningRate == nil && s.OuterMomentum == nil
	if err := errors.Join(
		override(&p.OuterLearningRate, s.OuterLearningRate, "outerLearningRate"),
		override(&p.OuterMomentum, s.OuterMomentum, "outerMomentum"),
		overrideEncoding(&p.Uplink, s.Uplink, "uplink"),
		overrideEncoding(&p.Downlink, s.Downlink, "downlink"),
		overrideTransform(&p.Parameters, s, st.dense),
		overrideRobust(&p.Robust, s.Robust),
	); err != nil {
		return Plan{}, err
	}
	for i, d := range s.Schedule {
		if d.FromVersion < 0 {
			return Plan{}, fmt.Errorf("spec.algorithm.schedule[%d].fromVersion: %d is below 0", i, d.FromVersion)
		}
		p.Schedule = append(p.Schedule, Density{uint64(d.FromVersion), int(d.UplinkKeepOneIn), int(d.DownlinkKeepOneIn)})
	}
	if err := p.validate("spec.algorithm."); err != nil {
		return Plan{}, err
	}
	return p, nil
}

// overrideTransform reads the transforms; where one side names none, it has the
// other's.
func overrideTransform(p *Parameters, s v1alpha1.AlgorithmSpec, dense bool) error {
	read := func(e *v1alpha1.EncodingSpec, side string) (Transform, error) {
		if e == nil || e.Transform == "" {
			return "", nil
		}
		t, ok := transformOf[e.Transform]
		if !ok {
			return "", fmt.Errorf("spec.algorithm.%s.transform: unknown %q, want %s or %s", side, e.Transform, v1alpha1.TransformDCT, v1alpha1.TransformIdentity)
		}
		if dense && t != Identity {
			return "", fmt.Errorf("spec.algorithm.%s.transform: %s sends the elements themselves; leave it out", side, p.Strategy)
		}
		return t, nil
	}
	up, errUp := read(s.Uplink, "uplink")
	down, errDown := read(s.Downlink, "downlink")
	p.Uplink.Transform, p.Downlink.Transform = cmp.Or(up, down, p.Uplink.Transform), cmp.Or(down, up, p.Downlink.Transform)
	return errors.Join(errUp, errDown)
}

func overrideRobust(r *Robust, s *v1alpha1.RobustSpec) error {
	if s == nil {
		return nil
	}
	if c := s.ClipFactor; c != nil && c.Sign() <= 0 {
		return fmt.Errorf("spec.algorithm.robust.clipFactor: %s is not above 0; leave it out to clip nothing", c)
	}
	return errors.Join(
		override(&r.TrimFraction, s.TrimFraction, "robust.trimFraction"),
		override(&r.ClipFactor, s.ClipFactor, "robust.clipFactor"),
	)
}

var transformOf = map[v1alpha1.TransformName]Transform{v1alpha1.TransformDCT: DCT64, v1alpha1.TransformIdentity: Identity}

// override reads the decimal as written: 0.7 is the float64 nearest to 0.7.
func override(dst *float64, q *resource.Quantity, field string) error {
	if q == nil {
		return nil
	}
	c := q.DeepCopy()
	v, err := strconv.ParseFloat(c.AsDec().String(), 64)
	if err != nil {
		return fmt.Errorf("spec.algorithm.%s: %w", field, err)
	}
	*dst = v
	return nil
}

func overrideEncoding(e *Encoding, s *v1alpha1.EncodingSpec, side string) error {
	if s == nil {
		return nil
	}
	if s.KeepOneIn != 0 {
		e.KeepOneIn = int(s.KeepOneIn)
	}
	if s.GroupSize != 0 {
		e.GroupSize = int(s.GroupSize)
	}
	if s.Values != "" {
		v, ok := valuesOf[s.Values]
		if !ok {
			return fmt.Errorf("spec.algorithm.%s.values: unknown %q, want %s, %s, %s, %s, %s or %s", side, s.Values, v1alpha1.ValuesFP32,
				v1alpha1.ValuesBF16, v1alpha1.ValuesEightBit, v1alpha1.ValuesFourBit, v1alpha1.ValuesTwoBit, v1alpha1.ValuesOneBit)
		}
		e.Values = v
	}
	return nil
}

var valuesOf = map[v1alpha1.ValueFormat]Values{
	v1alpha1.ValuesFP32: FP32, v1alpha1.ValuesBF16: BF16, v1alpha1.ValuesEightBit: EightBit,
	v1alpha1.ValuesFourBit: FourBit, v1alpha1.ValuesTwoBit: TwoBit, v1alpha1.ValuesOneBit: OneBit,
}
