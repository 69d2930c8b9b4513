package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

// A merge that fails at any step leaves the model as it was, bit for bit, says
// why, and the next round works.
func TestFailedCommitChangesNothingAndTheNextRoundWorks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		break_ func(t *testing.T, r *rig)
		repair func(t *testing.T, r *rig)
		reason v1alpha1.Reason
	}{
		"nothing can be staged": {
			break_: func(t *testing.T, r *rig) { replaceByFile(t, r, "staging") },
			repair: func(t *testing.T, r *rig) { replaceByDir(t, r, "staging") },
			reason: v1alpha1.ReasonCommitLogFailed,
		},
		"an update cannot be read again": {
			break_: func(t *testing.T, r *rig) {
				if err := r.engine.do(r.ctx(), func() { r.engine.uploads["a/n"].spool.Close() }); err != nil {
					t.Fatal(err)
				}
			},
			reason: v1alpha1.ReasonCommitLogFailed,
		},
		"the commit cannot be put into place": {
			break_: func(t *testing.T, r *rig) {
				if err := os.MkdirAll(filepath.Join(r.engine.cfg.DataDir, "commits", "000000000002", "x"), 0o700); err != nil {
					t.Fatal(err)
				}
			},
			reason: v1alpha1.ReasonCommitLogFailed,
		},
	} {
		for _, strategy := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
			t.Run(name+", "+strategy, func(t *testing.T) {
				p := defaults(t, strategy)
				r, a := seeded(t, testConfig(t.TempDir(), p, "a"))
				good := func(*agent, *coordinatorv1.Grant) ([]byte, float64) { return ones(t, smallModel(t), p, 0.5), 1 }
				r.round([]*agent{a}, good)
				before := r.status()

				held := make(chan struct{}) // the merge waits for it, as for a snapshot from memory
				if err := r.engine.do(r.ctx(), func() { r.engine.modelBusy = held }); err != nil {
					t.Fatal(err)
				}
				a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
				g := a.grant()
				payload := ones(t, smallModel(t), p, 0.5)
				a.mustAccept(a.header(g, "bad", payload), payload)
				tc.break_(t, r)
				close(held)
				if c := a.committed(); !c.GetVoid() || c.GetReason() != string(tc.reason) || c.GetMessage() == "" {
					t.Fatalf("the round ended with %v", c)
				}
				after := r.status()
				if string(after.GetDigest()) != string(before.GetDigest()) || after.GetVersion() != 1 || after.GetCommittedSamples() != 1 || after.GetRoundsVoid() != 1 {
					t.Fatalf("after the failure: %v", after)
				}
				if tc.repair != nil {
					tc.repair(t, r)
				}
				if c := r.round([]*agent{a}, good); c.GetVersion() != 2 || c.GetVoid() {
					t.Fatalf("the next round: %v", c)
				}
				last := r.status()
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
				if again := newRig(t, testConfig(r.engine.cfg.DataDir, p, "a")).status(); string(again.GetDigest()) != string(last.GetDigest()) {
					t.Fatal("a restart recovers another model")
				}
			})
		}
	}
}

func replaceByFile(t *testing.T, r *rig, name string) {
	t.Helper()
	path := filepath.Join(r.engine.cfg.DataDir, name)
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func replaceByDir(t *testing.T, r *rig, name string) {
	t.Helper()
	path := filepath.Join(r.engine.cfg.DataDir, name)
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
}

// The rename succeeded, its folder could not be synced: nobody may be told
// either way.
func TestCommitOfUnknownDurabilityEndsTheEngine(t *testing.T) {
	e := bare(t, t.TempDir(), defaults(t, algorithm.DiLoCo))
	commitOne(t, e)
	e.model.version = 0 // as while the merge is at work
	e.mergeFailed(time.Now(), round.Commit{Round: 1}, e.putBack(errors.New("sync: input/output error")))
	if e.fatal == nil || !strings.Contains(e.fatal.Error(), "version 1") {
		t.Fatalf("goes on with %v", e.fatal)
	}
	if e.lastVoid != nil {
		t.Fatalf("told as void: %v", e.lastVoid)
	}
}

func TestAlgorithmMayChangeBetweenRunsButNotItsTransform(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := defaults(t, algorithm.DiLoCo)
	e := bare(t, dir, p)
	commitOne(t, e)
	p.OuterLearningRate, p.OuterMomentum = 0.3, 0.5
	e = restarted(t, e, p)
	commitOne(t, e)
	if e.manifest.Algorithm != p {
		t.Fatalf("recorded %v", e.manifest.Algorithm)
	}
	digest := e.model.digest
	e = restarted(t, e, defaults(t, algorithm.FedAvg))
	if e.model.digest != digest {
		t.Fatal("commits were replayed with another algorithm than their own")
	}
	if err := e.store.Close(); err != nil {
		t.Fatal(err)
	}
	e.cfg.Algorithm.Parameters = defaults(t, algorithm.DecoupledMomentum)
	store := openStore(t, dir)
	_, err := New(e.cfg, store, Hooks{}, e.log)
	if err == nil || !strings.Contains(err.Error(), "spec.algorithm") || !strings.Contains(err.Error(), "federation fed") {
		t.Fatalf("a change of the transform: %v", err)
	}
}

// A restarted coordinator knows old updates from the whole log, not only from
// what it replays.
func TestOldUpdateIsRecognisedAfterARestart(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DecoupledMomentum)
	cfg := testConfig(t.TempDir(), p, "a")
	cfg.SnapshotEvery = 100
	r, a := seeded(t, cfg)
	var first *coordinatorv1.PushHeader
	for range 3 {
		r.round([]*agent{a}, func(a *agent, g *coordinatorv1.Grant) ([]byte, float64) {
			payload := ones(t, smallModel(t), p, 0.5)
			if first == nil {
				first = a.header(g, "u1", payload)
			}
			return payload, 1
		})
	}
	if err := r.stop(); err != nil { // with a snapshot of version 3
		t.Fatal(err)
	}
	r = newRig(t, cfg)
	again := r.join("a")
	first.SessionToken, first.Epoch = again.s.Token, again.s.Epoch
	if res := again.push(first, nil); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED || !strings.Contains(res.GetMessage(), "version 1") {
		t.Fatalf("answered %v", res)
	}
}

func TestUpdateOfTheRoundLostInARestartIsStale(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		p := defaults(t, strategy)
		cfg := testConfig(t.TempDir(), p, "a", "b")
		r, a := seeded(t, cfg)
		b := r.join("b")
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		b.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		payload := ones(t, smallModel(t), p, 0.5)
		ha, hb := a.header(a.grant(), "ua", payload), b.header(b.grant(), "ub", payload)
		a.mustAccept(ha, payload)

		cfg.DataDir = r.killed()
		killed := newRig(t, cfg)
		agents := killed.joinAll("a", "b")
		lost := func() {
			t.Helper()
			for i, h := range []*coordinatorv1.PushHeader{ha, hb} {
				h.SessionToken, h.Epoch = agents[i].s.Token, agents[i].s.Epoch
				if res := agents[i].push(h, payload); res.GetStatus() != coordinatorv1.PushResult_STATUS_STALE {
					t.Fatalf("%s: update of the lost round: %v", strategy, res)
				}
			}
		}
		lost() // before the next round and during it
		for _, x := range agents {
			x.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		}
		if g := agents[0].grant(); g.GetRound() != 2 || g.GetBaseVersion() != 0 {
			t.Fatalf("%s: after the restart %v", strategy, g)
		}
		lost()
		if st := killed.status(); st.GetVersion() != 0 || st.GetCommittedSamples() != 0 {
			t.Fatalf("%s: %v", strategy, st)
		}
	}
}

// A disk that fails is no fault of the member, whose work goes back to it.
func TestAnUploadThatCannotBeReadBackIsNotTheSendersFault(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	r, a := seeded(t, testConfig(t.TempDir(), p, "a"))
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	g := a.grant()
	payload := ones(t, smallModel(t), p, 0.5)
	for err, want := range map[error]*coordinatorv1.PushResult{
		&os.PathError{Op: "read", Path: "upload", Err: syscall.EIO}: {Status: coordinatorv1.PushResult_STATUS_STALE, Reason: string(v1alpha1.ReasonCommitLogFailed)},
		&codec.Error{Reason: v1alpha1.ReasonNotFinite}:              {Status: coordinatorv1.PushResult_STATUS_REFUSED, Reason: string(v1alpha1.ReasonNotFinite)},
		&RefusedError{v1alpha1.ReasonBytesQuota, "too much"}:        {Status: coordinatorv1.PushResult_STATUS_REFUSED, Reason: string(v1alpha1.ReasonBytesQuota)},
	} {
		u, res, beginErr := r.engine.BeginPush(r.ctx(), a.header(g, "u", payload))
		if u == nil {
			t.Fatal(res, beginErr)
		}
		got, settleErr := r.engine.settleUpload(r.ctx(), u, nil, err)
		if settleErr != nil || got.GetStatus() != want.GetStatus() || got.GetReason() != want.GetReason() {
			t.Errorf("%v: answered %v (%v)", err, got, settleErr)
		}
		if c := a.committed(); !c.GetVoid() {
			t.Fatalf("the round ended with %v", c)
		}
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, g.GetRound())
		g = a.grant()
	}
}
