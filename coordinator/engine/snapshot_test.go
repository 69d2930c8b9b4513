package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
)

// onDisk is newRig with a store whose disk asks before first.
func onDisk(t *testing.T, cfg Config, before func(op, path string) error) *rig {
	t.Helper()
	store, err := checkpoint.OpenWatched(cfg.DataDir, slog.New(slog.DiscardHandler), before)
	if err != nil {
		t.Fatal(err)
	}
	return newRigOn(t, cfg, store, func(e *Engine) { e.roomEvery = time.Millisecond })
}

// With a disk that takes no snapshot at all, commits go on as ever.
func TestCommitsDoNotWaitForTheDiskToTakeASnapshot(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		t.Run(strategy, func(t *testing.T) {
			p := defaults(t, strategy)
			cfg := testConfig(t.TempDir(), p, "a", "b")
			cfg.SnapshotEvery = 2
			stuck := make(chan struct{})
			var seeded, waits atomic.Bool
			r := onDisk(t, cfg, func(op, path string) error {
				if seeded.Load() && op == "write" && strings.Contains(path, "snapshot-") {
					waits.Store(true)
					<-stuck
				}
				return nil
			})
			agents := r.joinAll("a", "b")
			model := smallModel(t)
			agents[0].seed(model)
			for _, a := range agents {
				a.committed()
			}
			seeded.Store(true)
			for v := uint64(1); v <= 7; v++ {
				if c := r.round(agents, work(t, model, p)); c.GetVersion() != v || c.GetVoid() {
					t.Fatalf("round %d: %v", v, c)
				}
			}
			if !waits.Load() {
				t.Fatal("no snapshot was stuck")
			}
			close(stuck)
			killed := r.killed() // waits for the snapshot
			path := filepath.Join(killed, "snapshots", "000000000002")
			if _, err := os.Stat(path); err != nil {
				t.Fatalf("the snapshot that was stuck: %v", err)
			}
			want := r.status()
			norm := r.residualNorm()
			cfg.DataDir = killed
			again := newRig(t, cfg)
			if got := again.status(); !slices.Equal(got.GetDigest(), want.GetDigest()) || again.residualNorm() != norm {
				t.Fatal("recovery from it leads elsewhere")
			}
		})
	}
}

// What the commit log leads to is what the model in memory is, residual included.
func TestSnapshotFromTheLogIsTheModel(t *testing.T) {
	for _, strategy := range []string{algorithm.DiLoCo, algorithm.FedAvg, algorithm.DecoupledMomentum} {
		e := bare(t, t.TempDir(), defaults(t, strategy))
		for range 3 {
			commitOne(t, e)
		}
		m := e.model
		if err := e.condense(e.manifest, m.domain, m.residual != nil); err != nil {
			t.Fatal(err)
		}
		rec, err := e.store.Recover()
		if err != nil {
			t.Fatal(err)
		}
		defer rec.Close()
		if rec.Snapshot.Version != 3 || rec.State.Digest() != m.state.Digest() {
			t.Errorf("%s: version %d, another state", strategy, rec.Snapshot.Version)
		}
		if !slices.Equal(rec.Residual, m.residual) {
			t.Errorf("%s: another residual", strategy)
		}
	}
}

func TestADamagedBaseIsReplacedFromMemory(t *testing.T) {
	p := defaults(t, algorithm.DecoupledMomentum)
	cfg := testConfig(t.TempDir(), p, "a")
	cfg.SnapshotEvery = 1
	r, a := seeded(t, cfg)
	base := filepath.Join(cfg.DataDir, "snapshots", "000000000000", "residual.safetensors")
	if err := os.Truncate(base, 10); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.round([]*agent{a}, work(t, smallModel(t), p))
		var written chan struct{}
		if err := r.engine.do(r.ctx(), func() { written = r.engine.snapshot }); err != nil {
			t.Fatal(err)
		}
		<-written
	}
	for v, want := range []bool{false, true, true} { // seed and first are pruned; the first was never written
		_, err := os.Stat(filepath.Join(cfg.DataDir, "snapshots", fmt.Sprintf("%012d", v+1)))
		if (err == nil) != want {
			t.Errorf("snapshot of version %d: %v", v+1, err)
		}
	}
}

// On a full disk the round that was trained waits and is merged when there is room:
// nothing is void, nothing is asked for again.
func TestAFullDiskPausesTheRunAndNothingIsLost(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		for _, at := range []string{"create", "write", "sync", "mkdir"} {
			if at == "mkdir" && strategy == algorithm.DiLoCo {
				continue // it keeps no updates
			}
			t.Run(strategy+", "+at, func(t *testing.T) {
				p := defaults(t, strategy)
				cfg := testConfig(t.TempDir(), p, "a", "b")
				cfg.SnapshotEvery = 100
				var full atomic.Bool
				r := onDisk(t, cfg, func(op, path string) error {
					if full.Load() && (op == at || op == "write" && strings.HasSuffix(path, "probe")) {
						return fmt.Errorf("%s: %w", path, syscall.ENOSPC)
					}
					return nil
				})
				twin := newRig(t, testConfig(t.TempDir(), p, "a", "b")) // never full
				model := smallModel(t)
				var want, got *coordinatorv1.FederationStatus
				for i, x := range []*rig{twin, r} {
					agents := x.joinAll("a", "b")
					agents[0].seed(model)
					for _, a := range agents {
						a.committed()
					}
					x.round(agents, work(t, model, p))
					full.Store(i == 1)
					for _, a := range agents {
						a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 1)
					}
					for _, a := range agents {
						g := a.grant()
						payload, weight := work(t, model, p)(a, g)
						h := a.header(g, "second", payload)
						h.Weight = weight
						a.mustAccept(h, payload)
					}
					if i == 1 {
						st := r.until("paused", func(st *coordinatorv1.FederationStatus) bool {
							return st.GetReason() == string(v1alpha1.ReasonDiskFull)
						})
						if st.GetPhase() != string(v1alpha1.FederationPaused) || st.GetVersion() != 1 || st.GetRoundsVoid() != 0 || !strings.Contains(st.GetMessage(), "disk is full") {
							t.Errorf("status %v", st)
						}
						full.Store(false)
					}
					for _, a := range agents {
						if c := a.committed(); c.GetVersion() != 2 || c.GetVoid() {
							t.Fatalf("told %v", c)
						}
					}
					want, got = got, x.status()
				}
				if !slices.Equal(want.GetDigest(), got.GetDigest()) || got.GetCommittedSamples() != want.GetCommittedSamples() {
					t.Error("another model than without the full disk")
				}
				if types := strings.Join(r.events.types(), ","); !strings.Contains(types, "Paused,Resumed,RoundCommitted v2") {
					t.Errorf("announced %s", types)
				}
				if st := r.status(); st.GetPhase() == string(v1alpha1.FederationPaused) {
					t.Errorf("still %v", st)
				}
			})
		}
	}
}

// The round whose number finds no room is not granted, and comes again.
func TestARoundWhoseNumberFindsNoRoomStartsLater(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	var full atomic.Bool
	full.Store(true)
	cfg := testConfig(t.TempDir(), p, "a")
	r := onDisk(t, cfg, func(op, path string) error {
		if full.Load() && strings.HasSuffix(path, "probe") {
			return syscall.ENOSPC
		}
		return nil
	})
	a := r.join("a")
	a.seed(smallModel(t))
	if err := r.engine.do(r.ctx(), func() {
		r.engine.keepRound = func(n uint64) error {
			if full.Load() {
				return fmt.Errorf("round %d: %w", n, syscall.ENOSPC)
			}
			return r.engine.writeRound(n)
		}
	}); err != nil {
		t.Fatal(err)
	}
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	st := r.until("paused", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetReason() == string(v1alpha1.ReasonDiskFull)
	})
	if st.GetRound().GetNumber() != 0 || st.GetRound().GetState() != "Idle" || st.GetRoundsVoid() != 0 {
		t.Errorf("status %v", st)
	}
	full.Store(false)
	if g := a.grant(); g.GetRound() != 1 {
		t.Errorf("granted %v", g)
	}
}

// An upload that finds no room is asked for again and goes on where it stopped.
func TestAnUploadThatFindsNoRoomIsTriedAgain(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	var full atomic.Bool
	r := onDisk(t, testConfig(t.TempDir(), p, "a"), func(op, path string) error {
		if full.Load() && strings.HasSuffix(path, "probe") {
			return syscall.ENOSPC
		}
		return nil
	})
	a := r.join("a")
	a.seed(smallModel(t))
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	g := a.grant()
	payload := ones(t, smallModel(t), p, 0.5)
	u, _, err := r.engine.BeginPush(r.ctx(), a.header(g, "u", payload))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Write(payload[:100]); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	if res := r.engine.StorageFailed(u, fmt.Errorf("spool: %w", syscall.EDQUOT)); res.GetReason() != string(v1alpha1.ReasonDiskFull) {
		t.Errorf("answered %v", res)
	}
	if st := r.status(); st.GetReason() != string(v1alpha1.ReasonDiskFull) || st.GetRound().GetState() != string(round.Collecting) {
		t.Errorf("status %v", st)
	}
	full.Store(false)
	r.until("resumed", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetReason() != string(v1alpha1.ReasonDiskFull)
	})
	u, _, err = r.engine.BeginPush(r.ctx(), a.header(g, "u", payload))
	if err != nil || u.Offset() != 100 {
		t.Fatalf("goes on at %d: %v", u.Offset(), err)
	}
	a.mustAccept(a.header(g, "u", payload), payload)
	if c := a.committed(); c.GetVersion() != 1 {
		t.Errorf("told %v", c)
	}
	if res := r.engine.StorageFailed(u, errors.New("input/output error")); res.GetStatus() != coordinatorv1.PushResult_STATUS_STALE {
		t.Errorf("a broken disk: %v", res)
	}
}

// A coordinator that stops while it waits for room keeps every commit.
func TestStopOnAFullDiskEnds(t *testing.T) {
	p := defaults(t, algorithm.DecoupledMomentum)
	cfg := testConfig(t.TempDir(), p, "a")
	var full atomic.Bool
	r := onDisk(t, cfg, func(op, path string) error {
		if full.Load() && op == "write" {
			return syscall.ENOSPC
		}
		return nil
	})
	a := r.join("a")
	a.seed(smallModel(t))
	r.round([]*agent{a}, work(t, smallModel(t), p))
	full.Store(true)
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 1)
	g := a.grant()
	payload := ones(t, smallModel(t), p, 0.5)
	a.mustAccept(a.header(g, "u2", payload), payload)
	r.until("paused", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetReason() == string(v1alpha1.ReasonDiskFull)
	})
	if err := r.stop(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "last snapshot") {
		t.Fatalf("ended with %v", err)
	}
	if st := newRig(t, cfg).status(); st.GetVersion() != 1 {
		t.Errorf("recovered %v", st)
	}
}
