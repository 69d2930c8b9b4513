package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/corpus"
	"girassol.dev/coordinator/gate"
	"girassol.dev/coordinator/session"
	"girassol.dev/internal/algorithm"
)

// What a rollback goes back to, and what the gate knows afterwards.

func (g *gated) goBack(to *uint64) RolledBack {
	g.t.Helper()
	done, err := g.r.engine.Rollback(g.r.ctx(), to, "")
	if err != nil {
		g.t.Fatal(err)
	}
	g.rolledBack()
	return done
}

// rounds runs one after the other, each with the snapshot that it leads to, so that
// it is known what is pruned.
func (g *gated) rounds(losses ...float64) (ended []*coordinatorv1.Committed) {
	g.t.Helper()
	for _, loss := range losses {
		ended = append(ended, g.round(loss))
		var snapshot chan struct{}
		if err := g.r.engine.do(g.r.ctx(), func() { snapshot = g.r.engine.snapshot }); err != nil {
			g.t.Fatal(err)
		}
		<-snapshot
	}
	return ended
}

// gone checks that a version has been pruned.
func (g *gated) gone(version uint64) {
	g.t.Helper()
	kept, err := g.r.store.Kept()
	if err != nil || slices.ContainsFunc(kept, func(m checkpoint.Manifest) bool { return m.Version == version }) {
		g.t.Fatalf("version %d is still there (%v)", version, err)
	}
}

func TestOneVersionBackIsNeverOneThatWasLeft(t *testing.T) {
	t.Parallel()
	rollback := func(version, to uint64) checkpoint.Manifest {
		return checkpoint.Manifest{Version: version, Kind: checkpoint.KindRollback, Rollback: &checkpoint.Rollback{Version: version, To: to}}
	}
	kept := []checkpoint.Manifest{{Version: 2}, {Version: 5}, rollback(6, 2), {Version: 7}, rollback(8, 6), rollback(9, 0)}
	for _, c := range []struct{ at, want uint64 }{{2, 1}, {6, 1}, {7, 6}, {8, 1}, {9, 0}} {
		man := kept[slices.IndexFunc(kept, func(m checkpoint.Manifest) bool { return m.Version == c.at })]
		if got := before(man, kept); got != c.want {
			t.Errorf("before version %d: %d, want %d", c.at, got, c.want)
		}
	}
	if got := before(rollback(8, 6), nil); got != 5 {
		t.Errorf("with nothing kept: %d", got)
	}
}

func TestAfterAPersonsRollbackTheGateGoesBackToWhatIsKept(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DecoupledMomentum)
	seven := g.rounds(3, 2, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1, 1, 1)[6].GetDigest()
	g.gone(1) // the best before version 8
	g.goBack(new(uint64(7)))
	if st := g.r.status().GetGate(); st.GetVerdict() != string(gate.Waiting) || !strings.Contains(st.GetMessage(), "version 7") {
		t.Errorf("gate says %v", st)
	}
	g.round(math.NaN()) // on version 7's state, whose result is known
	if c := g.round(9); !c.GetVoid() || c.GetReason() != string(v1alpha1.ReasonEvaluationWorse) {
		t.Fatalf("the round on the bad version ended with %v", c)
	}
	if back := g.rolledBack(); !bytes.Equal(back.GetDigest(), seven) {
		t.Errorf("went back to another state than version 7's: %v", back)
	}
}

func TestAPersonsRollbackToADamagedVersionLeavesTheGateItsBest(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DecoupledMomentum)
	g.round(3)
	one := g.r.status().GetDigest()
	g.round(2) // version 1 is the best
	g.round(2.1)
	delta := filepath.Join(g.cfg.DataDir, "commits", "000000000002", "delta.bin")
	if err := os.WriteFile(delta, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := g.r.engine.Rollback(g.r.ctx(), new(uint64(2)), "")
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Reason != v1alpha1.ReasonVersionNotKept || !strings.Contains(g.r.status().GetMessage(), "training goes on") {
		t.Fatalf("%v; status %v", err, g.r.status())
	}
	g.round(2.1)
	if st := g.r.status(); strings.Contains(st.GetMessage(), "training goes on") {
		t.Errorf("a version passed since, the status still says %q", st.GetMessage())
	}
	if c := g.round(9); !c.GetVoid() {
		t.Fatalf("the round on the bad version ended with %v", c)
	}
	if back := g.rolledBack(); !bytes.Equal(back.GetDigest(), one) {
		t.Errorf("went back to another state than version 1's: %v", back)
	}
}

func TestTheBestVersionsResultOutlivesItsManifests(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DecoupledMomentum)
	g.rounds(3, 2, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1)
	g.gone(2)
	g.round(9)
	g.rolledBack()
	if ev := g.r.status().GetEvaluation(); ev.GetVersion() != 1 || ev.GetLoss() != 2 || ev.GetSamples() != 16 {
		t.Errorf("the state at work was evaluated, the status says %v", ev)
	}
	for _, a := range g.agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	if g.agents[0].grant().GetEvaluate() {
		t.Error("it is to be evaluated again")
	}
}

// voidRound is one in which both members tell a held-out loss and have no update. It
// returns whether they were asked for it.
func (g *gated) voidRound(loss float64) (asked bool) {
	g.t.Helper()
	for _, a := range g.agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	for _, a := range g.agents {
		grant := a.grant()
		asked = grant.GetEvaluate()
		h := a.header(grant, "none", nil)
		h.Weight = 0
		if !math.IsNaN(loss) {
			h.Evaluation = &coordinatorv1.Evaluation{Version: grant.GetBaseVersion(), Samples: 8, Loss: &loss}
		}
		a.push(h, nil)
	}
	for _, a := range g.agents {
		if c := a.committed(); !c.GetVoid() {
			g.t.Fatalf("ended with %v", c)
		}
	}
	return asked
}

func TestAModelOnWhichNobodyCanTrainIsEvaluatedAndLeft(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DiLoCo, func(c *Config) { c.Round.EvaluateEvery, c.Round.EvaluateVoid = 100, true })
	seeded := g.r.status().GetDigest()
	g.round(2)
	if g.voidRound(math.NaN()) {
		t.Error("asked to evaluate before there was a reason")
	}
	if !g.voidRound(9) {
		t.Error("not asked to evaluate after a void round")
	}
	if back := g.rolledBack(); !bytes.Equal(back.GetDigest(), seeded) {
		t.Errorf("rolled back as %v", back)
	}
}

func TestTheBestVersionDoesNotGoBackToItself(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DecoupledMomentum)
	g.round(3)
	g.voidRound(2)
	for _, again := range []float64{2.5, math.Inf(1)} {
		g.voidRound(again)
		st := g.r.status()
		if st.LastRollback != nil || strings.Contains(st.GetMessage(), "failed") || st.GetVersion() != 1 {
			t.Fatalf("status %v", st)
		}
	}
	if v := g.r.status().GetGate(); v.GetVerdict() != string(gate.Worse) || v.GetReferenceLoss() != 2.5 {
		t.Errorf("gate says %v", v)
	}
}

func TestAResultThatAFailedMergeForgetsIsAskedForAgain(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DecoupledMomentum)
	g.round(3)
	if err := os.MkdirAll(filepath.Join(g.cfg.DataDir, "commits", "000000000002", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if c := g.round(2); !c.GetVoid() || c.GetReason() != string(v1alpha1.ReasonCommitLogFailed) {
		t.Fatalf("ended with %v", c)
	}
	g.round(2)
	if ev := g.r.status().GetEvaluation(); ev.GetVersion() != 1 {
		t.Errorf("evaluation %v", ev)
	}
}

func TestResultsOfOneVersionAreBounded(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DiLoCo)
	tell := func(node string) {
		h := &coordinatorv1.PushHeader{Evaluation: &coordinatorv1.Evaluation{Samples: 1, Loss: new(1.0)}}
		g.r.engine.heed(&session.Session{Site: "a", Member: "a/" + node}, h)
	}
	var n int
	if err := g.r.engine.do(g.r.ctx(), func() {
		for i := range 3 * maxResults {
			tell(fmt.Sprint("n", i))
		}
		tell("n0")
		n = len(g.r.engine.results)
	}); err != nil || n != 2*maxResults {
		t.Errorf("%d results of two sites (%v)", n, err)
	}
}

func TestNobodyGoesBackToALargerCorpus(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a")
	run := func(samples uint64) (*rig, *agent) {
		cfg.Data = nil
		if samples > 0 {
			cfg.Data = &corpus.Config{Samples: samples, Lease: 10}
		}
		r, agents := dataRig(t, cfg)
		return r, agents[0]
	}
	r, a := run(1000)
	a.ready(0)
	g := a.grant()
	payload, _ := work(t, smallModel(t), p)(a, g)
	a.sends(g, payload, text(g.GetData()))
	a.committed()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r, _ = run(0) // without the ledger for a time, and back to before it
	if _, err := r.engine.Rollback(r.ctx(), new(uint64(0)), ""); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r, _ = run(500)
	if _, err := r.engine.Rollback(r.ctx(), new(uint64(1)), ""); err == nil || !strings.Contains(err.Error(), "cannot shrink to 500") {
		t.Errorf("went back to a count of 1000 samples: %v", err)
	}
	if st := r.status(); st.GetVersion() != 2 {
		t.Errorf("status %v", st)
	}
}
