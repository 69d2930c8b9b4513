package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/gate"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

// gated is a federation of a and b with a gate that evaluates every commit.
type gated struct {
	t      *testing.T
	cfg    Config
	r      *rig
	agents []*agent
	model  *tensor.State
	params algorithm.Parameters
	seen   *tally
}

func newGated(t *testing.T, strategy string, change ...func(*Config)) *gated {
	t.Helper()
	g := &gated{t: t, params: defaults(t, strategy), model: smallModel(t), seen: &tally{}}
	g.cfg = testConfig(t.TempDir(), g.params, "a", "b")
	g.cfg.Round.EvaluateEvery = 1
	g.cfg.Gate = &gate.Config{Margin: 0.1, MaxRollbacks: 3}
	for _, f := range change {
		f(&g.cfg)
	}
	g.start(g.cfg.DataDir)
	g.agents[0].seed(g.model)
	for _, a := range g.agents {
		a.committed()
	}
	return g
}

func (g *gated) start(dir string) {
	g.cfg.DataDir = dir
	g.r = newRig(g.t, g.cfg, func(e *Engine) { e.hooks.Observe = g.seen })
	g.agents = g.r.joinAll("a", "b")
}

// round runs one in which every member tells this held-out loss of its base; NaN
// tells none. It returns what ended it.
func (g *gated) round(loss float64) *coordinatorv1.Committed {
	g.t.Helper()
	for _, a := range g.agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	do := work(g.t, g.model, g.params)
	for _, a := range g.agents {
		grant := a.grant()
		payload, weight := do(a, grant)
		h := a.header(grant, fmt.Sprint("u", grant.GetRound()), payload)
		h.Weight = weight
		if grant.GetEvaluate() && !math.IsNaN(loss) {
			h.Evaluation = &coordinatorv1.Evaluation{Version: grant.GetBaseVersion(), Samples: 8, Loss: &loss, Metrics: map[string]float64{"acc": 0.5}}
		}
		a.mustAccept(h, payload)
	}
	var c *coordinatorv1.Committed
	for _, a := range g.agents {
		c = a.committed()
	}
	return c
}

// rolledBack waits for the commit that a rollback is.
func (g *gated) rolledBack() *coordinatorv1.Committed {
	g.t.Helper()
	var c *coordinatorv1.Committed
	for _, a := range g.agents {
		c = a.next(func(m *coordinatorv1.SessionResponse) bool {
			return m.GetCommitted().GetReason() == string(v1alpha1.ReasonRolledBack)
		}).GetCommitted()
	}
	return c
}

func TestAWorseModelGoesBackToTheBestVersionAndTrainingGoesOn(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			g := newGated(t, strategy)
			g.round(3)         // of the seed
			two := g.round(2)  // version 1 is the best
			g.round(2.1)       // version 2 is within the margin
			void := g.round(9) // version 3 is not
			if !void.GetVoid() || void.GetReason() != string(v1alpha1.ReasonEvaluationWorse) {
				t.Fatalf("the round on the bad version ended with %v", void)
			}
			back := g.rolledBack()
			one, err := g.r.store.Kept()
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(one, func(m checkpoint.Manifest) bool { return m.Version == 1 })
			if back.GetVersion() != 4 || i < 0 || !bytes.Equal(back.GetDigest(), mustHex(one[i].Digest)) || two.GetVersion() != 2 {
				t.Fatalf("rolled back as %v; kept are %d versions", back, len(one))
			}
			st := g.r.status()
			if rb := st.GetLastRollback(); rb.GetVersion() != 4 || rb.GetToVersion() != 1 || rb.GetFromVersion() != 3 || rb.GetReason() != string(v1alpha1.ReasonEvaluationWorse) {
				t.Errorf("status says %v", rb)
			}
			if st.GetGate().GetVerdict() != string(gate.Worse) || st.GetGate().GetReferenceVersion() != 1 {
				t.Errorf("gate says %v", st.GetGate())
			}
			// What was spent stays spent.
			if st.GetCommittedSamples() != 6 || st.GetRoundsCommitted() != 3 || st.GetRoundsVoid() != 1 || st.GetPhase() == string(v1alpha1.FederationFailed) {
				t.Errorf("status %v", st)
			}
			if ev := st.GetEvaluation(); ev.GetVersion() != 1 || ev.GetLoss() != 2 || ev.GetMetrics()["acc"] != 0.5 {
				t.Errorf("evaluation %v", ev)
			}
			next := g.round(math.NaN())
			if next.GetVoid() || next.GetVersion() != 5 {
				t.Fatalf("the round after the rollback: %v", next)
			}
			g.round(1.5)
			if st := g.r.status(); st.GetGate().GetVerdict() != string(gate.Passed) || st.GetVersion() != 6 {
				t.Errorf("status %v", st)
			}
			if got := g.r.events.types(); !slices.Contains(got, "RolledBack v4") || !slices.Contains(got, "Evaluated v3") {
				t.Errorf("events %v", got)
			}
			if !slices.Equal(g.seen.rollbacks, []v1alpha1.Reason{v1alpha1.ReasonEvaluationWorse}) {
				t.Errorf("observed %v", g.seen.rollbacks)
			}
			// A kill at this point comes back to the same bits, and knows all of it.
			digest := g.r.status().GetDigest()
			dir := g.r.killed()
			if err := g.r.stop(); err != nil {
				t.Fatal(err)
			}
			g.start(dir)
			st = g.r.status()
			if !bytes.Equal(st.GetDigest(), digest) || st.GetLastRollback().GetVersion() != 4 || st.GetGate().GetVerdict() != string(gate.Passed) || st.GetCommittedSamples() != 10 {
				t.Errorf("after the kill %v", st)
			}
		})
	}
}

func TestOneRollbackAfterTheOtherEndsTheRunOnTheGoodVersion(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DiLoCo, func(c *Config) { c.Gate.MaxRollbacks = 2 })
	g.round(2)
	good := g.r.status()
	g.round(1) // version 1
	g.round(9) // version 2
	first := g.rolledBack()
	g.round(math.NaN()) // on version 1's state, which is evaluated
	g.round(9)
	second := g.rolledBack()
	if good.GetVersion() != 1 || !bytes.Equal(first.GetDigest(), good.GetDigest()) || !bytes.Equal(second.GetDigest(), good.GetDigest()) {
		t.Errorf("digest %x, then %x, then %x", good.GetDigest(), first.GetDigest(), second.GetDigest())
	}
	st := g.r.until("failed", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetPhase() == string(v1alpha1.FederationFailed)
	})
	if st.GetReason() != string(v1alpha1.ReasonTooManyRollbacks) || !bytes.Equal(st.GetDigest(), good.GetDigest()) || !strings.Contains(st.GetMessage(), "2 rollbacks") {
		t.Errorf("status %v", st)
	}
}

func TestEvaluationsCountWhateverBecomesOfTheUpdate(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a", "b")
	cfg.Round.Join = time.Millisecond
	cfg.Round.EvaluateEvery, cfg.Round.EvaluateSite, cfg.Gate = 2, "b", &gate.Config{Margin: 0.1, MaxRollbacks: 3}
	r, a := seeded(t, cfg)
	payload := ones(t, smallModel(t), p, 0.5)
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	g := a.grant()
	if g.GetEvaluate() {
		t.Error("a site that does not evaluate is asked to")
	}
	if st := r.status(); !strings.Contains(st.GetMessage(), "waits for site b") || st.GetGate().GetVerdict() != string(gate.Waiting) {
		t.Errorf("with b away: %s, %v", st.GetMessage(), st.GetGate())
	}
	b := r.join("b")
	b.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	gb := b.grant()
	if !gb.GetEvaluate() {
		t.Fatal("b is not asked to evaluate")
	}
	// Of a, which was not asked; then without samples; then of another version.
	h := a.header(g, "a", payload)
	h.Evaluation = &coordinatorv1.Evaluation{Samples: 5, Loss: new(77.0)}
	a.mustAccept(h, payload)
	push := func(version, samples uint64, loss float64) *coordinatorv1.PushResult {
		h := b.header(gb, "b", nil)
		h.Round, h.Evaluation = gb.GetRound()+9, &coordinatorv1.Evaluation{Version: version, Samples: samples, Loss: &loss, Metrics: map[string]float64{"bad": math.NaN(), "acc": 1}}
		return b.push(h, nil)
	}
	push(0, 0, 1)
	if st := r.status(); !strings.Contains(st.GetMessage(), "0 samples") || st.Evaluation != nil {
		t.Errorf("of no samples: %s, %v", st.GetMessage(), st.GetEvaluation())
	}
	push(7, 5, 1)
	if res := push(0, 5, 2); res.GetStatus() == coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatalf("an update of no round was taken: %v", res)
	}
	// Training failed, so that nothing comes with the result.
	only := b.header(gb, "b2", nil)
	only.Weight, only.Evaluation = 0, &coordinatorv1.Evaluation{Samples: 6, Loss: new(3.0)}
	if res := b.push(only, nil); res.GetReason() != string(v1alpha1.ReasonNothingToMerge) {
		t.Errorf("answered %v", res)
	}
	if c := a.committed(); c.GetVoid() {
		t.Fatal(c)
	}
	ev := r.status().GetEvaluation()
	if ev.GetLoss() != 3 || ev.GetSamples() != 6 || ev.GetVersion() != 0 || len(ev.GetMetrics()) != 0 {
		t.Errorf("evaluation %v", ev)
	}
	// The next is due two commits later, whatever is in between.
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, g.GetRound())
	b.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, g.GetRound())
	if g := b.grant(); g.GetEvaluate() {
		t.Error("asked again one commit later")
	}
}

func TestAPersonGoesBackToAnyVersionThatIsKept(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DecoupledMomentum, func(c *Config) { c.Gate, c.Round.EvaluateEvery = nil, 0 })
	var digests [][]byte
	digests = append(digests, g.r.status().GetDigest())
	for range 5 {
		digests = append(digests, g.round(math.NaN()).GetDigest())
	}
	rollback := func(to *uint64) (RolledBack, error) { return g.r.engine.Rollback(g.r.ctx(), to, "a bad idea") }
	for _, wrong := range []uint64{5, 6, 99} {
		var refused *RefusedError
		if _, err := rollback(&wrong); !errors.As(err, &refused) || !strings.Contains(err.Error(), "0-4") {
			t.Errorf("version %d: %v", wrong, err)
		}
	}
	for _, step := range []struct{ to, version uint64 }{{4, 6}, {3, 7}} { // each the one before
		done, err := rollback(nil)
		if err != nil || done.To != step.to || done.Version != step.version || !bytes.Equal(done.Digest, digests[step.to]) {
			t.Fatalf("went back to %+v (%v), want %+v", done, err, step)
		}
		g.rolledBack()
	}
	if _, err := rollback(new(uint64(3))); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("to the same state: %v", err)
	}
	// With a round at work, whose updates are void.
	for _, a := range g.agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	grant := g.agents[0].grant()
	if done, err := rollback(new(uint64(6))); err != nil || !bytes.Equal(done.Digest, digests[4]) {
		t.Fatalf("in a round: %+v, %v", done, err)
	}
	if c := g.agents[0].committed(); !c.GetVoid() || c.GetReason() != string(v1alpha1.ReasonRolledBack) {
		t.Errorf("the round at work ended with %v", c)
	}
	payload, _ := work(t, g.model, g.params)(g.agents[0], grant)
	if res := g.agents[0].push(g.agents[0].header(grant, "late", payload), payload); res.GetStatus() != coordinatorv1.PushResult_STATUS_STALE {
		t.Errorf("an update on the version that was left: %v", res)
	}
	g.rolledBack()
	if c := g.round(math.NaN()); c.GetVoid() || c.GetVersion() != 9 || !bytes.Equal(c.GetDigest(), g.r.status().GetDigest()) {
		t.Errorf("the next round: %v", c)
	}
	ctx, cancel := context.WithCancel(g.r.ctx())
	cancel()
	if _, err := g.r.engine.Rollback(ctx, nil, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: %v", err)
	}
}
