package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestAnAdvancedSnapshotIsTheOneFromMemory(t *testing.T) {
	one, other := t.TempDir(), t.TempDir()
	a, b := filled(t, one, 3), filled(t, other, 3)
	ok(t, advance(a, 3, KindCommit))
	ok(t, snapshot(b, 3, KindCommit))
	for _, name := range []string{stateFile, residualFile, manifestFile} {
		x := must(os.ReadFile(filepath.Join(one, snapshotsDir, versionName(3), name)))(t)
		y := must(os.ReadFile(filepath.Join(other, snapshotsDir, versionName(3), name)))(t)
		if string(x) != string(y) {
			t.Errorf("%s differs", name)
		}
	}
	check(t, a.Reader, must(a.Recover())(t), 3, 3)
	ok(t, commit(a, 4))
	ok(t, advance(a, 4, KindCommit)) // prunes
	if a.has(snapshotsDir, 1) || a.has(commitsDir, 3) {
		t.Error("nothing was pruned")
	}
}

func TestAnAdvanceIsReadFromTheBaseAndMustLeadToTheDigest(t *testing.T) {
	s := filled(t, t.TempDir(), 3)
	a := must(s.Advance(testManifest(3, KindCommit), true))(t)
	if a.Base().Version != 1 {
		t.Fatalf("goes on from %d", a.Base().Version)
	}
	st := testState(1)
	defer st.Close()
	theta, momentum, residual := make([]float32, 7), make([]float32, 7), make([]float32, 2)
	ok(t, errors.Join(a.Read("w", 11, theta, momentum), a.ReadResidual(1, residual)))
	i, _ := st.Layout.Lookup("w")
	if at := st.Layout.Offset(i) + 11; theta[6] != st.Theta[at+6] || momentum[6] != st.Momentum[at+6] || residual[1] != testResidual(1)[2] {
		t.Error("other values than the base's")
	}
	ok(t, a.Write("w", 0, theta, momentum))
	if err := a.Finish(); !errors.Is(err, ErrNoBase) {
		t.Errorf("another state than the manifest's was finished: %v", err)
	}
	if left := staged(t, s.dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
	ok(t, advance(s, 3, KindCommit))
	if _, err := s.Advance(testManifest(2, KindCommit), true); err == nil {
		t.Error("a snapshot older than the newest began")
	}
}

func TestADamagedBaseIsToldApart(t *testing.T) {
	for _, name := range []string{stateFile, residualFile, manifestFile} {
		dir := t.TempDir()
		s := filled(t, dir, 2)
		path := filepath.Join(dir, snapshotsDir, versionName(1), name)
		ok(t, os.Truncate(path, 40))
		if _, err := s.Advance(testManifest(2, KindCommit), true); !errors.Is(err, ErrNoBase) {
			t.Errorf("%s: %v", name, err)
		}
		ok(t, snapshot(s, 2, KindCommit))
	}
}

// The snapshot is worth its bytes only where it lies on the way and the deltas up to
// it have more.
func TestTheShorterWayIsKnownBeforehand(t *testing.T) {
	s := must(open(t.TempDir(), quiet(), unsyncedDisk))(t)
	defer func() { _ = s.Close() }()
	ok(t, snapshot(s, 1, KindSeed))
	_, size, _, err := s.OpenSnapshot()
	ok(t, err)
	half := make([]byte, size/2)
	for v := uint64(2); v <= 5; v++ {
		c := must(s.Begin(v))(t)
		if v == 4 {
			half = append(half, 0, 0) // from here on just longer
		}
		must(c.Delta().Write(half))(t)
		ok(t, c.Finish(testManifest(v, KindCommit)))
	}
	for _, tc := range []struct {
		snapshot, first, last uint64
		want                  bool
	}{
		{3, 2, 3, false}, // as long
		{3, 2, 5, false},
		{4, 3, 5, true}, // a little longer
		{4, 3, 4, true},
		{4, 3, 3, false}, // the snapshot is past the target
		{4, 4, 5, false}, // one delta
		{4, 5, 5, false}, // the snapshot is of before
		{4, 2, 5, true},
	} {
		if !s.has(snapshotsDir, tc.snapshot) {
			ok(t, snapshot(s, tc.snapshot, KindCommit))
		}
		if got := s.SnapshotIsShorter(tc.first, tc.last); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
	ok(t, os.RemoveAll(s.path(commitsDir, versionName(4))))
	if !s.SnapshotIsShorter(4, 5) {
		t.Error("without the delta there is no other way")
	}
}
