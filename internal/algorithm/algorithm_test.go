package algorithm

import (
	"math"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

func TestRhoFollowsAgreementAndCap(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	a := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		name               string
		agreement          *float64
		alone              bool
		last, norm, wanted float64
	}{
		{"unset", nil, false, 1, 1, 0},
		{"not a number", a(nan), false, 1, 1, 0},
		{"threshold", a(0.05), false, 1, 1, 0},
		{"below", a(-1), false, 1, 1, 0},
		{"half way", a(0.05 + 0.5/3), false, 1, 1, 0.5},
		{"above", a(0.9), false, 1, 1, 1},
		{"infinite", a(inf), false, 1, 1, 1},
		{"alone", nil, true, 1, 1, 1},
		{"alone beats disagreement", a(-1), true, 1, 1, 1},
		{"cap of three rounds", a(0.9), false, 1, 4, 0.75},
		{"three rounds are no cap", a(0.9), false, 1, 3, 1},
		{"cap when alone", nil, true, 1, 8, 0.375},
		{"cap does not raise", a(0.9), false, 4, 1, 1},
		{"no residual", a(0.9), false, 1, 0, 0},
		{"no work yet", a(0.9), true, 0, 1, 0},
		{"norms are not numbers", a(0.9), true, nan, nan, 0},
		{"residual is infinite", a(0.9), true, 1, inf, 0},
		{"both infinite", a(0.9), true, inf, inf, 0},
	} {
		if got := Rho(c.agreement, c.alone, c.last, c.norm); math.Abs(got-c.wanted) > 1e-12 || math.IsNaN(got) {
			t.Errorf("%s: %g, want %g", c.name, got, c.wanted)
		}
	}
}

func TestRhoStaysInRangeAndUnderTheCap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1, 1e-320}))
		var agreement *float64
		if rapid.Bool().Draw(t, "set") {
			v := number.Draw(t, "agreement")
			agreement = &v
		}
		last, norm := number.Draw(t, "last"), number.Draw(t, "norm")
		rho := Rho(agreement, rapid.Bool().Draw(t, "alone"), last, norm)
		if !(rho >= 0 && rho <= 1) {
			t.Fatalf("rho %g", rho)
		}
		if rho > 0 && rho > 3*last/norm {
			t.Fatalf("rho %g goes further than 3*%g/%g", rho, last, norm)
		}
	})
}

func TestAgreementIsAMovingMean(t *testing.T) {
	a := NextAgreement(nil, nil)
	if a != nil {
		t.Fatal("nothing measured, something set")
	}
	a = NextAgreement(nil, []float64{0.2, 0.4, math.NaN()})
	if a == nil || math.Abs(*a-0.3) > 1e-12 {
		t.Fatalf("first value %v, want the mean 0.3", a)
	}
	b := NextAgreement(a, []float64{0.8, 9})
	if math.Abs(*b-(0.3+0.2*0.6)) > 1e-12 {
		t.Errorf("%g, want 0.42: values are cut to 1", *b)
	}
	if math.Abs(*a-0.3) > 1e-12 {
		t.Error("the previous value was changed")
	}
	if NextAgreement(b, nil) != b || NextAgreement(b, []float64{math.NaN()}) != b {
		t.Error("a round without measurement moved A")
	}
	nan := math.NaN()
	if got := NextAgreement(&nan, []float64{0.5}); *got != 0.5 {
		t.Errorf("%g after NaN, want 0.5", *got)
	}
}

func TestDefaultsAreValidAndSurviveTheWire(t *testing.T) {
	for _, s := range Strategies() {
		p, err := Defaults(s)
		if err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(p.ToProto())
		if err != nil {
			t.Fatal(err)
		}
		var a coordinatorv1.Algorithm
		if err := proto.Unmarshal(b, &a); err != nil {
			t.Fatal(err)
		}
		got, err := FromProto(&a)
		if err != nil || got != p {
			t.Errorf("%s: %+v (%v), want %+v", s, got, err, p)
		}
	}
	if _, err := FromProto(nil); err == nil {
		t.Error("a missing algorithm was taken")
	}
	if _, err := FromProto(&coordinatorv1.Algorithm{}); err == nil {
		t.Error("an empty algorithm was taken")
	}
	if _, err := Defaults("adam"); err == nil {
		t.Error("an unknown strategy has defaults")
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func TestSpecOverridesDefaults(t *testing.T) {
	p, err := FromSpec(v1alpha1.AlgorithmSpec{})
	want, _ := Defaults(DecoupledMomentum)
	want.Adaptive = true
	if err != nil || p.Parameters != want || p.Schedule != nil {
		t.Errorf("empty spec: %+v (%v)", p, err)
	}
	p, err = FromSpec(v1alpha1.AlgorithmSpec{
		Strategy: v1alpha1.DiLoCo, OuterLearningRate: quantity("0.5"), OuterMomentum: quantity("800m"),
		Uplink: &v1alpha1.EncodingSpec{Values: v1alpha1.ValuesBF16},
	})
	want, _ = Defaults(DiLoCo)
	want.OuterLearningRate, want.OuterMomentum, want.Uplink.Values = 0.5, 0.8, BF16
	if err != nil || p.Parameters != want {
		t.Errorf("%+v (%v), want %+v", p, err, want)
	}
	p, err = FromSpec(v1alpha1.AlgorithmSpec{
		OuterMomentum: quantity("0"),
		Uplink:        &v1alpha1.EncodingSpec{KeepOneIn: 1, Values: v1alpha1.ValuesFP32},
		Downlink:      &v1alpha1.EncodingSpec{KeepOneIn: 32},
	})
	if err != nil || p.OuterMomentum != 0 || !p.Uplink.Lossless() || p.Downlink.KeepOneIn != 32 || p.Downlink.Values != TwoBit {
		t.Errorf("%+v (%v)", p, err)
	}
}

func TestEveryValueFormatAndGroupSizeArrives(t *testing.T) {
	for written, want := range map[v1alpha1.ValueFormat]Values{
		v1alpha1.ValuesFP32: FP32, v1alpha1.ValuesBF16: BF16, v1alpha1.ValuesEightBit: EightBit,
		v1alpha1.ValuesFourBit: FourBit, v1alpha1.ValuesTwoBit: TwoBit, v1alpha1.ValuesOneBit: OneBit,
	} {
		for _, group := range []int32{0, 256, 512, 1024, 2048, 4096} {
			p, err := FromSpec(v1alpha1.AlgorithmSpec{Uplink: &v1alpha1.EncodingSpec{Values: written, GroupSize: group}})
			if err != nil || p.Uplink.Values != want || p.Uplink.GroupSize != int(group) {
				t.Fatalf("%s in groups of %d: %+v (%v)", written, group, p.Uplink, err)
			}
			want := p.Parameters
			want.Adaptive = false // what a commit steps by is on the wire
			if got, err := FromProto(p.ToProto()); err != nil || got != want {
				t.Errorf("%+v (%v), want %+v", got, err, want)
			}
		}
	}
	if (Encoding{}).Group() != MaxGroupSize || (Encoding{GroupSize: 512}).Group() != 512 {
		t.Error("an unset group size is not the largest")
	}
}

func ascending(n int) []v1alpha1.DensitySpec {
	out := make([]v1alpha1.DensitySpec, n)
	for i := range out {
		out[i].FromVersion = int64(i)
	}
	return out
}

func TestBadSpecsNameTheField(t *testing.T) {
	for path, s := range map[string]v1alpha1.AlgorithmSpec{
		"spec.algorithm.strategy":          {Strategy: "Krum"},
		"spec.algorithm.outerLearningRate": {OuterLearningRate: quantity("0")},
		"spec.algorithm.outerMomentum":     {OuterMomentum: quantity("1")},
		"spec.algorithm.uplink.keepOneIn":  {Uplink: &v1alpha1.EncodingSpec{KeepOneIn: -1}},
		"spec.algorithm.uplink.groupSize":  {Uplink: &v1alpha1.EncodingSpec{GroupSize: 384}},
		"algorithm.uplink.groupSize:":      {Uplink: &v1alpha1.EncodingSpec{GroupSize: 8192}},
		"one of each group of 256":         {Uplink: &v1alpha1.EncodingSpec{GroupSize: 256, KeepOneIn: 512}},
		"spec.algorithm.uplink:":           {Strategy: v1alpha1.DiLoCo, Uplink: &v1alpha1.EncodingSpec{Values: v1alpha1.ValuesEightBit}},
		"spec.algorithm.downlink.values":   {Downlink: &v1alpha1.EncodingSpec{Values: "FP8"}},
		"spec.algorithm.downlink:":         {Strategy: v1alpha1.FedAvg, Downlink: &v1alpha1.EncodingSpec{KeepOneIn: 16}},
		"spec.algorithm.uplink.transform:": {Uplink: &v1alpha1.EncodingSpec{Transform: "Wavelet"}},
		"spec.algorithm.downlink.transform: is": {Uplink: &v1alpha1.EncodingSpec{Transform: v1alpha1.TransformDCT},
			Downlink: &v1alpha1.EncodingSpec{Transform: v1alpha1.TransformIdentity}},
		"spec.algorithm.downlink.transform: diloco": {Strategy: v1alpha1.DiLoCo, Downlink: &v1alpha1.EncodingSpec{Transform: v1alpha1.TransformDCT}},
		"spec.algorithm.robust.trimFraction: 0.5":   {Strategy: v1alpha1.DiLoCo, Robust: &v1alpha1.RobustSpec{TrimFraction: quantity("0.5")}},
		"spec.algorithm.robust.trimFraction: -":     {Strategy: v1alpha1.FedAvg, Robust: &v1alpha1.RobustSpec{TrimFraction: quantity("-100m")}},
		"spec.algorithm.robust.clipFactor: 0":       {Strategy: v1alpha1.DiLoCo, Robust: &v1alpha1.RobustSpec{ClipFactor: quantity("0")}},
		"spec.algorithm.robust.clipFactor: 1e+07":   {Strategy: v1alpha1.DiLoCo, Robust: &v1alpha1.RobustSpec{ClipFactor: quantity("10M")}},
		"spec.algorithm.robust: decoupled-momentum": {Robust: &v1alpha1.RobustSpec{TrimFraction: quantity("0.1")}},
		"spec.algorithm.schedule[0]: diloco":        {Strategy: v1alpha1.DiLoCo, Schedule: []v1alpha1.DensitySpec{{UplinkKeepOneIn: 1}}},
		"spec.algorithm.schedule[0].fromVersion: -": {Schedule: []v1alpha1.DensitySpec{{FromVersion: -1}}},
		"spec.algorithm.schedule[1].fromVersion: 5": {Schedule: []v1alpha1.DensitySpec{{FromVersion: 5}, {FromVersion: 5}}},
		"spec.algorithm.schedule[0].uplinkKeepOneIn: 512": {Uplink: &v1alpha1.EncodingSpec{GroupSize: 256},
			Schedule: []v1alpha1.DensitySpec{{UplinkKeepOneIn: 512}}},
		"spec.algorithm.schedule[0].downlinkKeepOneIn: -": {Schedule: []v1alpha1.DensitySpec{{DownlinkKeepOneIn: -2}}},
		"spec.algorithm.schedule[16]: more":               {Schedule: ascending(17)},
	} {
		if _, err := FromSpec(s); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%v does not name %s", err, path)
		}
	}
	p, _ := Defaults(DecoupledMomentum)
	p.Downlink.Transform = Identity
	p.OuterMomentum = math.NaN()
	p.OuterLearningRate = math.Inf(1)
	err := p.Validate()
	for _, path := range []string{"algorithm.downlink.transform", "algorithm.outerMomentum", "algorithm.outerLearningRate"} {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%v does not name %s", err, path)
		}
	}
}
