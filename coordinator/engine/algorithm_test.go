package engine

import (
	"bytes"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"k8s.io/apimachinery/pkg/api/resource"
)

func planOf(t *testing.T, s v1alpha1.AlgorithmSpec) algorithm.Plan {
	t.Helper()
	p, err := algorithm.FromSpec(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newest is the manifest of the newest version, as replicas get it.
func (r *rig) newest() checkpoint.Manifest {
	r.t.Helper()
	var man checkpoint.Manifest
	if err := r.engine.do(r.ctx(), func() { man = r.engine.manifest }); err != nil {
		r.t.Fatal(err)
	}
	return man
}

// reopened is the engine of a data folder, and what it says while it starts.
func reopened(t *testing.T, cfg Config, dir string) (*Engine, string) {
	t.Helper()
	cfg.DataDir = dir
	var log bytes.Buffer
	e, err := New(cfg, openStore(t, dir), Hooks{}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.model.close)
	return e, log.String()
}

const anotherAlgorithm = "the algorithm is another one"

func TestTheOuterStepFollowsEachCommitAndIsWhatReplicasGet(t *testing.T) {
	plan := planOf(t, v1alpha1.AlgorithmSpec{})
	cfg := testConfig(t.TempDir(), plan.Parameters, "a", "b")
	cfg.SnapshotEvery = 100
	r, a := seeded(t, cfg)
	do := work(t, smallModel(t), plan.Parameters)
	if st := r.status().GetAlgorithm(); st.GetOuterMomentum() != 0.6 {
		t.Errorf("before the first commit: %v", st)
	}
	expect := func(r *rig, what string, eta, mu float64) {
		t.Helper()
		p := r.newest().Algorithm
		if math.Abs(p.OuterLearningRate-eta) > 1e-12 || math.Abs(p.OuterMomentum-mu) > 1e-12 || !p.Adaptive {
			t.Errorf("%s: %+v, want eta %g, mu %g", what, p, eta, mu)
		}
		if st := r.status().GetAlgorithm(); st.GetOuterLearningRate() != p.OuterLearningRate || st.GetOuterMomentum() != p.OuterMomentum {
			t.Errorf("%s: status says %v", what, st)
		}
	}
	lone, only := seeded(t, testConfig(t.TempDir(), plan.Parameters, "a"))
	lone.round([]*agent{only}, do)
	expect(lone, "alone", 1, 0.3)
	b := r.join("b")
	r.round([]*agent{a, b}, do)
	expect(r, "two", 1, 0.45)
	// Two rounds in which they pull against each other: the second knows of the first.
	for range 2 {
		for _, x := range []*agent{a, b} {
			x.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		}
		for _, x := range []*agent{a, b} {
			g := x.grant()
			payload, _ := do(x, g)
			h := x.header(g, "against"+string(rune('0'+g.GetRound())), payload)
			h.Agreement = new(-0.4)
			x.mustAccept(h, payload)
		}
		a.committed()
		b.committed()
	}
	expect(r, "against each other", 0.5, 0.8*3/4)

	digest := r.newest().Digest
	e, said := reopened(t, cfg, r.killed())
	if e.manifest.Digest != digest {
		t.Error("recovery is not what was committed")
	}
	if strings.Contains(said, anotherAlgorithm) {
		t.Errorf("adapted values were taken for a change: %s", said)
	}
	if p := e.inForce(); p.OuterLearningRate != 0.5 {
		t.Errorf("in force after a restart: %+v", p)
	}
	fixed := cfg
	fixed.Algorithm = planOf(t, v1alpha1.AlgorithmSpec{OuterMomentum: resourceQuantity("0.6")})
	if e, said = reopened(t, fixed, r.killed()); !strings.Contains(said, anotherAlgorithm) {
		t.Error("a momentum that is set now is no change")
	}
	if p := e.inForce(); p.OuterMomentum != 0.6 {
		t.Errorf("in force with a momentum that is set: %+v", p)
	}
}

func TestTheScheduleHoldsForGrantUpdateAndDelta(t *testing.T) {
	t.Parallel()
	plan := planOf(t, v1alpha1.AlgorithmSpec{Schedule: []v1alpha1.DensitySpec{{FromVersion: 2, UplinkKeepOneIn: 4, DownlinkKeepOneIn: 2}}})
	cfg := testConfig(t.TempDir(), plan.Parameters, "a")
	cfg.Algorithm, cfg.SnapshotEvery = plan, 100
	r, a := seeded(t, cfg)
	var granted []algorithm.Parameters
	for range 3 {
		r.round([]*agent{a}, func(a *agent, g *coordinatorv1.Grant) ([]byte, float64) {
			p, err := algorithm.FromProto(g.GetAlgorithm())
			if err != nil {
				t.Fatal(err)
			}
			granted = append(granted, p)
			return work(t, smallModel(t), p)(a, g)
		})
	}
	for i, want := range [][2]int{{16, 8}, {4, 2}, {4, 2}} {
		if got := granted[i]; got.Uplink.KeepOneIn != want[0] || got.Downlink.KeepOneIn != want[1] {
			t.Errorf("grant for version %d: %+v, want %v", i+1, got, want)
		}
	}
	all, err := r.store.Manifests(0)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d manifests (%v)", len(all), err)
	}
	for i, man := range all {
		if man.Algorithm.Uplink != granted[i].Uplink || man.Algorithm.Downlink != granted[i].Downlink {
			t.Errorf("version %d was made with %+v, granted was %+v", man.Version, man.Algorithm, granted[i])
		}
	}
	// The domain cannot tell densities apart: a delta is read as its manifest says.
	if all[1].DeltaBytes <= all[0].DeltaBytes {
		t.Errorf("a denser delta has %d bytes, the one before %d", all[1].DeltaBytes, all[0].DeltaBytes)
	}
	if e, said := reopened(t, cfg, r.killed()); e.manifest.Digest != r.newest().Digest || strings.Contains(said, anotherAlgorithm) {
		t.Errorf("recovered with %q", said)
	}
}

// One member of four sends garbage; what is committed lies within what the others
// sent, also after a recovery that merges again.
func TestARobustMergeBoundsAMemberAndIsRecovered(t *testing.T) {
	t.Parallel()
	plan := planOf(t, v1alpha1.AlgorithmSpec{
		Strategy: v1alpha1.FedAvg, Downlink: &v1alpha1.EncodingSpec{Values: v1alpha1.ValuesBF16}, // lossy: recovery merges again
		Robust: &v1alpha1.RobustSpec{TrimFraction: resourceQuantity("0.25"), ClipFactor: resourceQuantity("5")},
	})
	cfg := testConfig(t.TempDir(), plan.Parameters, siteNames...)
	cfg.SnapshotEvery = 100
	r, first := seeded(t, cfg)
	agents := append([]*agent{first}, r.joinAll(siteNames[1:]...)...)
	model := smallModel(t)
	d := codec.NewDomain(model.Layout, algorithm.Identity)
	before := append([]float32(nil), model.Theta...)
	r.round(agents, func(a *agent, _ *coordinatorv1.Grant) ([]byte, float64) {
		x := make([]float32, d.Len())
		rng := rand.New(rand.NewPCG(7, 0))
		for i := range x {
			x[i] = 0.5 + rng.Float32()
			if a.site == "c" {
				x[i] *= -1e6
			}
		}
		return encode(t, d, plan.Uplink, x, codec.Aux{Buffers: model.Buffers, Integers: make([]byte, 8)}), weightOf(a.site)
	})
	var theta []float32
	if err := r.engine.do(r.ctx(), func() { theta = append(theta, r.engine.model.state.Theta...) }); err != nil {
		t.Fatal(err)
	}
	for i := range theta {
		if moved := before[i] - theta[i]; !(moved > 0.45 && moved < 1.55) {
			t.Fatalf("element %d moved by %g, the others sent 0.5 to 1.5", i, moved)
		}
	}
	if e, _ := reopened(t, cfg, r.killed()); e.manifest.Digest != r.newest().Digest || e.manifest.Algorithm.Robust != plan.Robust {
		t.Error("recovery merges in another way")
	}
}

func resourceQuantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}
