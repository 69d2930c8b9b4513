package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// rollback makes a version with the state of an older one.
func rollback(s *Store, version, to uint64) error {
	st := testState(to)
	defer st.Close()
	_, err := s.WriteRollback(rollbackManifest(version, to), st, testResidual(to))
	return err
}

func rollbackManifest(version, to uint64) Manifest {
	m := testManifest(to, KindRollback)
	m.Version = version
	m.Rollback = &Rollback{Version: version, To: to, From: version - 1, Reason: "EvaluationWorse", UnixMilli: 1e12}
	return m
}

// trailOf is what a recovered state is made of: "1s 2 3 6r" is the snapshot of 1,
// commits 2 and 3, and rollback 6.
func trailOf(r Recovered) string {
	out := []string{fmt.Sprint(r.Snapshot.Version, "s")}
	for _, m := range r.Commits {
		kind := map[string]string{KindRollback: "r"}[m.Kind]
		out = append(out, fmt.Sprint(m.Version, kind))
	}
	return strings.Join(out, " ")
}

// wantTrail recovers a store and holds state and trail against what they must be.
func wantTrail(t testing.TB, s *Store, want string, state uint64) {
	t.Helper()
	r := must(s.Recover())(t)
	defer r.Close()
	if got := trailOf(r); got != want {
		t.Fatalf("recovered %s, want %s (damage %v)", got, want, r.Damage)
	}
	st := testState(state)
	defer st.Close()
	if r.State.Digest() != st.Digest() || !slices.Equal(r.Residual, testResidual(state)) {
		t.Fatalf("%s does not begin with the state of version %d", want, state)
	}
}

// It is told while a snapshot is put into place or old ones leave.
func TestAPinWaitsForNoDisk(t *testing.T) {
	s := must(open(t.TempDir(), quiet(), unsyncedDisk))(t)
	defer func() { _ = s.Close() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Pin(new(uint64(3)))
	if keep := s.needed(0, nil); len(keep) != 0 {
		t.Errorf("kept %v of an empty store", keep)
	}
}

func TestARollbackHasTheOldStateUnderANewVersion(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 5)
	for _, wrong := range []Manifest{rollbackManifest(5, 3), rollbackManifest(7, 3), rollbackManifest(6, 5)} {
		st := testState(wrong.Rollback.To)
		if made, err := s.WriteRollback(wrong, st, nil); err == nil || made {
			t.Errorf("rollback %d to %d was written", wrong.Version, wrong.Rollback.To)
		}
		st.Close()
	}
	ok(t, rollback(s, 6, 3))
	wantTrail(t, s, "6s", 3)
	if _, _, _, err := s.OpenDelta(6); !errors.Is(err, ErrNotKept) {
		t.Errorf("delta of a rollback: %v", err)
	}
	f, _, m, err := s.OpenSnapshot()
	ok(t, err)
	ok(t, f.Close())
	if m.Version != 6 || m.Kind != KindRollback || m.Rollback.To != 3 {
		t.Errorf("the newest snapshot is %+v", m)
	}
	ok(t, commit(s, 7))
	wantTrail(t, s, "6s 7", 3)
	var versions []uint64
	for _, m := range must(s.Manifests(2))(t) {
		versions = append(versions, m.Version)
	}
	if !slices.Equal(versions, []uint64{3, 4, 5, 6, 7}) {
		t.Errorf("manifests %v", versions)
	}
	if left := staged(t, dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
	ok(t, writeTerm(dir, s.Term()+1))
	if err := rollback(s, 8, 3); !errors.Is(err, ErrFenced) {
		t.Errorf("an overtaken store: %v", err)
	}
}

func TestADamagedRollbackIsMadeAgainFromTheVersionItGoesBackTo(t *testing.T) {
	base := t.TempDir()
	s := filled(t, base, 5)
	ok(t, rollback(s, 6, 3))
	ok(t, commit(s, 7))
	ok(t, s.Close())
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			ok(t, os.CopyFS(dir, os.DirFS(base)))
			path := filepath.Join(dir, snapshotsDir, versionName(6), stateFile)
			damage(t, path)
			s := must(open(dir, quiet(), unsyncedDisk))(t)
			defer func() { _ = s.Close() }()
			r := must(s.Recover())(t)
			r.Close()
			if len(r.Damage) != 1 || !strings.Contains(r.Damage[0], path) {
				t.Errorf("damage %v does not name %s", r.Damage, path)
			}
			wantTrail(t, s, "1s 2 3 6r 7", 1)
		})
	}
}

func TestThePinnedVersionOutlivesPruning(t *testing.T) {
	s := filled(t, t.TempDir(), 4)
	ok(t, snapshot(s, 4, KindCommit))
	v := uint64(3)
	s.Pin(&v)
	for v := uint64(5); v <= 12; v++ {
		ok(t, commit(s, v))
		if v%2 == 0 {
			ok(t, snapshot(s, v, KindCommit))
		}
	}
	if snapshots, commits := must(s.versions(snapshotsDir))(t), must(s.versions(commitsDir))(t); !slices.Equal(snapshots, []uint64{1, 10, 12}) || !slices.Equal(commits, []uint64{2, 3, 11, 12}) {
		t.Errorf("snapshots %v, commits %v", snapshots, commits)
	}
	r := must(s.Restore(3))(t)
	if got := trailOf(r); got != "1s 2 3" {
		t.Errorf("version 3 is made of %s", got)
	}
	r.Close()
	if _, err := s.Restore(4); !errors.Is(err, ErrNotKept) {
		t.Errorf("a pruned version: %v", err)
	}
	var kept []uint64
	for _, m := range must(s.Kept())(t) {
		kept = append(kept, m.Version)
	}
	if !slices.Equal(kept, []uint64{1, 2, 3, 10, 11, 12}) {
		t.Errorf("kept are %v", kept)
	}
	if all := must(s.Manifests(0))(t); len(all) != 2 || all[0].Version != 11 {
		t.Errorf("%d manifests", len(all))
	}
	// The rollback keeps what it goes back to for as long as its own snapshot is one
	// of two; then nothing needs it.
	s.Pin(nil)
	ok(t, rollback(s, 13, 3))
	wantTrail(t, s, "13s", 3)
	if !s.has(commitsDir, 3) {
		t.Error("version 3 was pruned while the rollback to it may be damaged")
	}
	ok(t, commit(s, 14))
	ok(t, snapshot(s, 14, KindCommit))
	ok(t, commit(s, 15))
	ok(t, snapshot(s, 15, KindCommit))
	if snapshots, commits := must(s.versions(snapshotsDir))(t), must(s.versions(commitsDir))(t); !slices.Equal(snapshots, []uint64{14, 15}) || !slices.Equal(commits, []uint64{15}) {
		t.Errorf("in the end snapshots %v, commits %v", snapshots, commits)
	}
}

// rollbackWork is what a store is in the middle of when it is killed or fails.
func rollbackWork(s *Store, announce func(string)) error {
	if err := rollback(s, 4, 2); err != nil {
		return err
	}
	announce("rollback 4")
	if err := commit(s, 5); err != nil {
		return err
	}
	announce("commit 5")
	return nil
}

func TestKillInARollbackLeavesTheVersionBeforeOrAfter(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	s := filled(t, base, 3)
	ok(t, snapshot(s, 3, KindCommit)) // so that the rollback prunes
	ok(t, s.Close())
	self := must(os.Executable())(t)
	for at := 1; ; at++ {
		dir := filepath.Join(t.TempDir(), "store")
		ok(t, os.CopyFS(dir, os.DirFS(base)))
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), crashDir+"="+dir, fmt.Sprintf("%s=%d", crashAt, at), crashWork+"=rollback")
		out, err := cmd.Output()
		if err == nil {
			if at < 25 {
				t.Fatalf("the work took only %d operations: the test no longer sees them all", at-1)
			}
			t.Logf("killed at each of %d operations", at-1)
			return
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("operation %d: child ended with %v: %s", at, err, out)
		}
		s := must(open(dir, quiet(), unsyncedDisk))(t)
		r := must(s.Recover())(t)
		latest, allowed := r.Latest().Version, []uint64{3, 4}
		if bytes.Contains(out, []byte("commit 5")) {
			allowed = []uint64{5}
		} else if bytes.Contains(out, []byte("rollback 4")) {
			allowed = []uint64{4, 5}
		}
		if !slices.Contains(allowed, latest) || len(r.Damage) > 0 {
			t.Fatalf("operation %d: recovered version %d, damage %v: %s", at, latest, r.Damage, out)
		}
		r.Close()
		trails := map[uint64]string{3: "3s", 4: "4s", 5: "4s 5"}
		wantTrail(t, s, trails[latest], map[uint64]uint64{3: 3, 4: 2, 5: 2}[latest])
		if left := staged(t, dir); len(left) > 0 {
			t.Fatalf("operation %d: staging holds %v", at, left)
		}
		if latest >= 4 {
			// The record is there, too, or was made good.
			flip(0.5)(t, filepath.Join(dir, snapshotsDir, versionName(4), stateFile))
			if s.has(commitsDir, 2) {
				again := must(s.Recover())(t)
				if !strings.HasPrefix(trailOf(again), "1s 2 4r") {
					t.Fatalf("operation %d: with a damaged rollback %s", at, trailOf(again))
				}
				again.Close()
			}
		}
		ok(t, commit(s, latest+1))
		ok(t, s.Close())
	}
}

func TestAFailingDiskLeavesNoHalfRollback(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	ok(t, filled(t, base, 3).Close())
	for at := 1; ; at++ {
		dir := filepath.Join(t.TempDir(), "store")
		ok(t, os.CopyFS(dir, os.DirFS(base)))
		count, failed := 0, ""
		s := must(open(dir, quiet(), interposed(func(op, path string) error {
			if count++; count == at {
				failed = op + " " + path
				return syscall.ENOSPC
			}
			return nil
		})))(t)
		st := testState(2)
		made, err := s.WriteRollback(rollbackManifest(4, 2), st, testResidual(2))
		st.Close()
		if failed == "" {
			ok(t, err)
			ok(t, s.Close())
			return
		}
		want := map[bool]string{false: "1s 2 3", true: "4s"}[made]
		wantTrail(t, s, want, map[bool]uint64{false: 1, true: 2}[made])
		if err == nil && !made {
			t.Fatalf("%s failed, and nobody was told", failed)
		}
		ok(t, s.Close())
	}
}

// Any history of commits, snapshots, rollbacks, pins, restarts and damaged newest
// snapshots: what is recovered is what was made last, and what is kept is bounded.
func TestAnyHistoryRecoversToItsNewestVersion(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir := filepath.Join(root, fmt.Sprint(rand.Uint64()))
		defer os.RemoveAll(dir)
		s := must(open(dir, quiet(), unsyncedDisk))(t)
		defer func() { _ = s.Close() }()
		ok(t, snapshot(s, 1, KindSeed))
		// The version whose test state a version has; only rollbacks have another's.
		state := map[uint64]uint64{1: 1}
		newest, snap := uint64(1), uint64(1)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch op := rapid.SampledFrom([]string{"commit", "commit", "commit", "snapshot", "rollback", "restart", "pin"}).Draw(rt, "op"); op {
			case "commit":
				newest++
				ok(t, commit(s, newest))
				state[newest] = newest
			case "snapshot":
				if newest > snap && state[newest] == newest {
					ok(t, snapshot(s, newest, KindCommit))
					snap = newest
				}
			case "rollback", "pin":
				kept := must(s.Kept())(t)
				to := rapid.SampledFrom(kept).Draw(rt, "to").Version
				if op == "pin" {
					s.Pin(&to)
					continue
				}
				if to == newest {
					continue
				}
				st := testState(state[to])
				m := rollbackManifest(newest+1, to)
				m.Digest, m.LayoutDigest = testManifest(state[to], KindCommit).Digest, testManifest(state[to], KindCommit).LayoutDigest
				if _, err := s.WriteRollback(m, st, testResidual(state[to])); err != nil {
					rt.Fatal(err)
				}
				st.Close()
				newest++
				state[newest], snap = state[to], newest
			case "restart":
				ok(t, s.Close())
				s = must(open(dir, quiet(), unsyncedDisk))(t)
			}
			r := must(s.Recover())(t)
			if r.Latest().Version != newest || r.Snapshot.Version != snap || len(r.Damage) > 0 {
				rt.Fatalf("recovered %s (damage %v), want version %d from snapshot %d", trailOf(r), r.Damage, newest, snap)
			}
			want := testState(state[snap])
			if r.State.Digest() != want.Digest() {
				rt.Fatalf("%s does not begin with the state of version %d", trailOf(r), state[snap])
			}
			want.Close()
			r.Close()
			if n := len(must(s.versions(snapshotsDir))(t)); n > 5 {
				rt.Fatalf("%d snapshots are kept", n)
			}
		}
	})
}
