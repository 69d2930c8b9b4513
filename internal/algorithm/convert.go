package algorithm

import (
	"errors"
	"fmt"
	"strconv"

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
func FromSpec(s v1alpha1.AlgorithmSpec) (Parameters, error) {
	strategy := DecoupledMomentum
	switch s.Strategy {
	case "", v1alpha1.DecoupledMomentum:
	case v1alpha1.DiLoCo:
		strategy = DiLoCo
	case v1alpha1.FedAvg:
		strategy = FedAvg
	default:
		return Parameters{}, fmt.Errorf("spec.algorithm.strategy: unknown %q, want %s, %s or %s",
			s.Strategy, v1alpha1.DecoupledMomentum, v1alpha1.DiLoCo, v1alpha1.FedAvg)
	}
	p, err := Defaults(strategy)
	if err != nil {
		return Parameters{}, err
	}
	if err := errors.Join(
		override(&p.OuterLearningRate, s.OuterLearningRate, "outerLearningRate"),
		override(&p.OuterMomentum, s.OuterMomentum, "outerMomentum"),
		overrideEncoding(&p.Uplink, s.Uplink, "uplink"),
		overrideEncoding(&p.Downlink, s.Downlink, "downlink"),
	); err != nil {
		return Parameters{}, err
	}
	if err := p.validate("spec.algorithm."); err != nil {
		return Parameters{}, err
	}
	return p, nil
}

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
