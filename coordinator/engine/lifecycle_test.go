package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/algorithm"
)

// paused waits until the engine has begun to shut down.
func (r *rig) paused() {
	r.t.Helper()
	r.until("shutting down", func(*coordinatorv1.FederationStatus) bool {
		var paused bool
		if err := r.engine.do(r.ctx(), func() { paused = r.engine.machine.Status().Paused }); err != nil {
			r.t.Fatal(err)
		}
		if !paused {
			_ = r.engine.do(r.ctx(), func() { r.engine.changed.notify() })
		}
		return paused
	})
}

// seeded is a rig whose one agent has given the first weights.
func seeded(t *testing.T, cfg Config, prepare ...func(*Engine)) (*rig, *agent) {
	t.Helper()
	r := newRig(t, cfg, prepare...)
	a := r.join(cfg.Round.Sites[0])
	if res := a.seed(smallModel(t)); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatal(res)
	}
	a.committed()
	return r, a
}

func TestShutdownFinishesTheMergeAtWorkAndTellsItsMembersFirst(t *testing.T) {
	dir := t.TempDir()
	p := defaults(t, algorithm.DecoupledMomentum)
	r, a := seeded(t, testConfig(dir, p, "a"))
	// A snapshot that is being written from memory holds the merge up.
	written := make(chan struct{})
	if err := r.engine.do(r.ctx(), func() { r.engine.modelBusy = written }); err != nil {
		t.Fatal(err)
	}
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	payload := ones(t, smallModel(t), p, 0.5)
	a.mustAccept(a.header(a.grant(), "u", payload), payload)
	r.cancel()
	r.paused()
	close(written)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(a.s.Outbox()) > 0 {
		switch m := <-a.s.Outbox(); {
		case m.GetCommitted() != nil:
			got = append(got, "committed")
			if c := m.GetCommitted(); c.GetVoid() || c.GetVersion() != 1 {
				t.Errorf("told %v", c)
			}
		case m.GetShutdown() != nil:
			got = append(got, "shutdown")
		case m.GetGrant() != nil:
			got = append(got, "grant")
		}
	}
	if !slices.Equal(got, []string{"committed", "shutdown"}) {
		t.Errorf("the member was told %v", got)
	}
	if types := r.events.types(); types[len(types)-1] != "Shutdown" || !slices.Contains(types, "RoundCommitted v1") {
		t.Errorf("announced %v", types)
	}
	if again := newRig(t, testConfig(dir, p, "a")).status(); again.GetVersion() != 1 {
		t.Errorf("recovered version %d", again.GetVersion())
	}
}

// A number that is not on disk could be given a second time after a crash.
func TestRoundWhoseNumberCannotBeKeptIsNotGranted(t *testing.T) {
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
	r, a := seeded(t, cfg)
	if err := os.Mkdir(filepath.Join(cfg.DataDir, "ROUND"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	err := r.wait()
	if err == nil || !strings.Contains(err.Error(), "round number") || !strings.Contains(err.Error(), "federation fed") {
		t.Fatalf("ended with %v", err)
	}
	for len(a.s.Outbox()) > 0 {
		if m := <-a.s.Outbox(); m.GetGrant() != nil {
			t.Fatalf("granted %v", m)
		}
	}
	if types := r.events.types(); types[len(types)-1] != "Shutdown" {
		t.Errorf("announced %v", types)
	}
}

func TestFencedCoordinatorEndsAndSaysSo(t *testing.T) {
	dir := t.TempDir()
	p := defaults(t, algorithm.DiLoCo)
	r, a := seeded(t, testConfig(dir, p, "a"))
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	g := a.grant()
	if err := os.WriteFile(filepath.Join(dir, "TERM"), []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	payload := ones(t, smallModel(t), p, 0.5)
	a.mustAccept(a.header(g, "u", payload), payload)
	if err := r.wait(); !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("ended with %v", err)
	}
	if got := a.next(func(m *coordinatorv1.SessionResponse) bool { return m.GetShutdown() != nil || m.GetCommitted() != nil }); got.GetShutdown() == nil {
		t.Fatalf("told %v", got)
	}
}

// A fenced coordinator's number would take the place of its successor's later one.
func TestFencedCoordinatorKeepsNoRoundNumber(t *testing.T) {
	dir := t.TempDir()
	r, a := seeded(t, testConfig(dir, defaults(t, algorithm.DiLoCo), "a"))
	for name, text := range map[string]string{"TERM": "99\n", "ROUND": "7\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	if err := r.wait(); !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("ended with %v", err)
	}
	for len(a.s.Outbox()) > 0 {
		if m := <-a.s.Outbox(); m.GetGrant() != nil {
			t.Errorf("granted %v", m)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "ROUND")); err != nil || string(b) != "7\n" {
		t.Errorf("ROUND is %q (%v)", b, err)
	}
}

// It would call an update stale that its successor has merged.
func TestFencedCoordinatorTakesNoSession(t *testing.T) {
	dir := t.TempDir()
	r, _ := seeded(t, testConfig(dir, defaults(t, algorithm.DiLoCo), "a"))
	if err := os.WriteFile(filepath.Join(dir, "TERM"), []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := r.engine.OpenSession(r.ctx(), &coordinatorv1.Hello{Federation: "fed", Site: "a", Node: "n2"})
	if !errors.Is(err, ErrStopped) {
		t.Errorf("a session was answered with %v", err)
	}
	if err := r.wait(); !errors.Is(err, checkpoint.ErrFenced) {
		t.Fatalf("ended with %v", err)
	}
}

func TestSnapshotThatFailedIsTriedAgainAtTheNextCommit(t *testing.T) {
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
	cfg.SnapshotEvery = 1
	r, a := seeded(t, cfg)
	snapshots := filepath.Join(cfg.DataDir, "snapshots")
	work := func(*agent, *coordinatorv1.Grant) ([]byte, float64) {
		return ones(t, smallModel(t), cfg.Algorithm.Parameters, 0.5), 1
	}
	// The place of the first snapshot is taken.
	blocked := filepath.Join(snapshots, "000000000001")
	if err := os.MkdirAll(filepath.Join(blocked, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.round([]*agent{a}, work)
	if err := r.engine.do(r.ctx(), func() {}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	r.round([]*agent{a}, work)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(snapshots, "000000000002")); err != nil {
		t.Fatal(err)
	}
}

// A member that was away asks long after whether its update counted; that its commit
// is pruned, and the coordinator another process, makes no other answer.
func TestAnUpdateIsKnownAgainAfterItsCommitIsPrunedAndARestart(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a")
	r := newRig(t, cfg)
	agents := r.joinAll("a")
	r.toModel(agents[0])
	agents[0].committed()
	var first *coordinatorv1.PushHeader
	for range 14 {
		r.round(agents, func(a *agent, g *coordinatorv1.Grant) ([]byte, float64) {
			payload := vector(t, p, "a", g.GetRound(), 0.01)
			if first == nil {
				first = a.header(g, fmt.Sprint("u", g.GetRound()), payload)
			}
			return payload, 1
		})
	}
	cfg.DataDir = r.killed()
	if kept, err := r.store.Manifests(0); err != nil || kept[0].Version < 3 {
		t.Fatalf("nothing is pruned: %d (%v)", kept[0].Version, err)
	}
	r = newRig(t, cfg)
	a := r.join("a")
	first.SessionToken, first.Epoch = a.s.Token, a.s.Epoch
	u, res, err := r.engine.BeginPush(r.ctx(), first)
	if u != nil || err != nil || res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED || !strings.Contains(res.GetMessage(), "version 1") {
		t.Errorf("%v, %v", res, err)
	}
}
