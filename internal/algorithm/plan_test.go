package algorithm

import (
	"math"
	"testing"

	"girassol.dev/api/federation/v1alpha1"
	"pgregory.net/rapid"
)

func TestOuterStepFollowsMembersAndAgreement(t *testing.T) {
	a := func(v float64) *float64 { return &v }
	p, _ := Defaults(DecoupledMomentum)
	p.Adaptive = true
	for _, c := range []struct {
		name      string
		members   int
		agreement *float64
		eta, mu   float64
	}{
		{"alone half of the momentum is left", 1, nil, 1, 0.3},
		{"one member has nobody to disagree with", 1, a(-1), 1, 0.3},
		{"two", 2, nil, 1, 0.45},
		{"sixteen that agree", 16, a(0.5), 1, 0.6 * 31 / 32},
		{"just agreed", 4, a(0.05), 1, 0.6 * 7 / 8},
		{"half way", 4, a(0.025), 0.75, 0.7 * 7 / 8},
		{"against each other", 4, a(-0.3), 0.5, 0.8 * 7 / 8},
		{"not a number", 4, a(math.NaN()), 1, 0.6 * 7 / 8},
		{"nobody", 0, nil, 1, 0.3},
	} {
		got := p.ForCommit(c.members, c.agreement)
		if math.Abs(got.OuterLearningRate-c.eta) > 1e-12 || math.Abs(got.OuterMomentum-c.mu) > 1e-12 {
			t.Errorf("%s: eta %g, mu %g, want %g, %g", c.name, got.OuterLearningRate, got.OuterMomentum, c.eta, c.mu)
		}
		if got.Uplink != p.Uplink || got.Downlink != p.Downlink || !got.Adaptive {
			t.Errorf("%s: more than the outer step changed: %+v", c.name, got)
		}
	}
}

func TestAnAdaptedStepIsAlwaysValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := Defaults(DecoupledMomentum)
		p.Adaptive = true
		var agreement *float64
		if rapid.Bool().Draw(t, "measured") {
			v := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1)})).Draw(t, "agreement")
			agreement = &v
		}
		got := p.ForCommit(rapid.IntRange(0, 1000).Draw(t, "members"), agreement)
		if err := got.Validate(); err != nil {
			t.Fatal(err)
		}
		if !got.Same(p) {
			t.Fatal("an adapted step is taken for another algorithm")
		}
	})
}

// Whoever writes a rate or a momentum gets it, in every commit.
func TestAStepThatIsSetIsKept(t *testing.T) {
	for name, s := range map[string]v1alpha1.AlgorithmSpec{
		"rate":     {OuterLearningRate: quantity("1")},
		"momentum": {OuterMomentum: quantity("0.6")},
		"diloco":   {Strategy: v1alpha1.DiLoCo},
		"fedavg":   {Strategy: v1alpha1.FedAvg},
	} {
		p, err := FromSpec(s)
		if err != nil {
			t.Fatal(err)
		}
		a := -1.0
		if got := p.ForCommit(1, &a); got != p.Parameters {
			t.Errorf("%s: %+v became %+v", name, p.Parameters, got)
		}
	}
}

func TestOnlyAnAdaptedStepIsTheSame(t *testing.T) {
	fixed, _ := Defaults(DecoupledMomentum)
	adaptive := fixed
	adaptive.Adaptive = true
	adapted := adaptive.ForCommit(2, nil)
	if !adapted.Same(adaptive) || !adaptive.Same(adapted) {
		t.Error("adapted values count as a change")
	}
	other := fixed
	other.OuterMomentum = 0.45
	for name, pair := range map[string][2]Parameters{
		"set now":      {adapted, other},
		"was set":      {fixed, adaptive},
		"other values": {fixed, other},
		"denser":       {adapted, func() Parameters { p := adaptive; p.Uplink.KeepOneIn = 8; return p }()},
	} {
		if pair[0].Same(pair[1]) {
			t.Errorf("%s: not seen as a change", name)
		}
	}
}

func TestScheduleHoldsFromItsVersionOn(t *testing.T) {
	p, err := FromSpec(v1alpha1.AlgorithmSpec{
		Uplink: &v1alpha1.EncodingSpec{KeepOneIn: 32},
		Schedule: []v1alpha1.DensitySpec{
			{FromVersion: 10, UplinkKeepOneIn: 8}, {FromVersion: 20, DownlinkKeepOneIn: 2}, {FromVersion: 30, UplinkKeepOneIn: 1, DownlinkKeepOneIn: 1},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[uint64][2]int{0: {32, 8}, 9: {32, 8}, 10: {8, 8}, 19: {8, 8}, 20: {32, 2}, 29: {32, 2}, 30: {1, 1}, 1 << 60: {1, 1}} {
		got := p.ForVersion(version)
		if got.Uplink.KeepOneIn != want[0] || got.Downlink.KeepOneIn != want[1] {
			t.Errorf("version %d: one in %d and %d, want %v", version, got.Uplink.KeepOneIn, got.Downlink.KeepOneIn, want)
		}
		if err := got.Validate(); err != nil || !got.Adaptive {
			t.Errorf("version %d: %+v (%v)", version, got, err)
		}
	}
	if !p.Keeps() {
		t.Error("a lossy plan keeps nothing")
	}
	lossless := Encoding{Transform: DCT64, KeepOneIn: 1, Values: FP32}
	q := Plan{Parameters: p.Parameters}
	q.Downlink = lossless
	if q.Keeps() {
		t.Error("a lossless downlink keeps something")
	}
	q.Schedule = []Density{{FromVersion: 5, DownlinkKeepOneIn: 4}}
	if !q.Keeps() {
		t.Error("a schedule that becomes lossy keeps nothing")
	}
}

func TestATransformOfOneSideIsBothSides(t *testing.T) {
	identity := &v1alpha1.EncodingSpec{Transform: v1alpha1.TransformIdentity}
	for name, s := range map[string]v1alpha1.AlgorithmSpec{
		"uplink": {Uplink: identity}, "downlink": {Downlink: identity}, "both": {Uplink: identity, Downlink: identity},
	} {
		p, err := FromSpec(s)
		if err != nil || p.Uplink.Transform != Identity || p.Downlink.Transform != Identity {
			t.Errorf("%s: %+v (%v)", name, p.Parameters, err)
		}
	}
}

func TestRobustSpecArrives(t *testing.T) {
	p, err := FromSpec(v1alpha1.AlgorithmSpec{Strategy: v1alpha1.DiLoCo,
		Robust: &v1alpha1.RobustSpec{TrimFraction: quantity("0.25"), ClipFactor: quantity("3")}})
	if err != nil || p.Robust != (Robust{TrimFraction: 0.25, ClipFactor: 3}) {
		t.Fatalf("%+v (%v)", p.Robust, err)
	}
	for n, want := range map[int]int{1: 0, 3: 0, 4: 1, 7: 1, 8: 2} {
		if got := p.Robust.Trimmed(n); got != want {
			t.Errorf("%d of %d trimmed, want %d", got, n, want)
		}
	}
	if got := (Robust{TrimFraction: 0.29}).Trimmed(100); got != 29 {
		t.Errorf("%d of 100 trimmed, want 29", got)
	}
}

func TestEveryStrategyHasAnUnambiguousName(t *testing.T) {
	seen := map[v1alpha1.Strategy]bool{}
	for _, name := range Strategies() {
		spec := SpecName(name)
		if spec == "" || seen[spec] {
			t.Errorf("%s is written %q", name, spec)
		}
		seen[spec] = true
		p, err := FromSpec(v1alpha1.AlgorithmSpec{Strategy: spec})
		if err != nil || p.Strategy != name {
			t.Errorf("%s gives %q (%v)", spec, p.Strategy, err)
		}
	}
	if SpecName("adam") != "" {
		t.Error("an unknown strategy has a name")
	}
}
