package checkpoint

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"girassol.dev/internal/tensor"
)

func TestEmptyStoreRecoversToNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	s := must(Open(dir, quiet()))(t)
	defer func() { _ = s.Close() }()
	if r := must(s.Recover())(t); !r.Empty() || len(r.Damage) != 0 {
		t.Fatalf("%+v", r)
	}
	if _, _, _, err := s.OpenSnapshot(); !errors.Is(err, ErrNotKept) {
		t.Errorf("OpenSnapshot: %v", err)
	}
	if _, err := s.Begin(1); err == nil || !strings.Contains(err.Error(), "seed") {
		t.Errorf("a commit before the seed: %v", err)
	}
	if err := snapshot(s, 1, KindCommit); err == nil || !strings.Contains(err.Error(), "seed") {
		t.Errorf("a first snapshot that is no seed: %v", err)
	}
}

func TestCommitsComeBackAsTheyWereWritten(t *testing.T) {
	dir := t.TempDir()
	s := must(Open(dir, quiet()))(t)
	ok(t, snapshot(s, 1, KindSeed))
	for v := uint64(2); v <= 4; v++ {
		ok(t, commit(s, v))
	}
	check(t, s.Reader, must(s.Recover())(t), 1, 4)
	ok(t, s.Close())

	s = must(Open(dir, quiet()))(t)
	defer func() { _ = s.Close() }()
	if s.Term() != 2 {
		t.Errorf("term %d, want 2", s.Term())
	}
	r := must(s.Recover())(t)
	check(t, s.Reader, r, 1, 4)
	if m := r.Latest(); m.Term != 1 || m.Kind != KindCommit || m.Round != 6 {
		t.Errorf("latest manifest: %+v", m)
	}
	updates, m, err := s.OpenUpdates(3)
	ok(t, err)
	for i, u := range updates {
		if got := string(readAll(t, u, u.Size)); got != fmt.Sprint(u.Member, 3) || m.Updates[i].Member != u.Member {
			t.Errorf("update of %s: %q", u.Member, got)
		}
	}
	if len(updates) != 2 {
		t.Errorf("%d updates", len(updates))
	}
	ok(t, commit(s, 5))
	if left := staged(t, dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
}

func TestOpenSnapshotIsALoadableState(t *testing.T) {
	s := filled(t, t.TempDir(), 3)
	ok(t, snapshot(s, 3, KindCommit))
	r, size, m, err := s.OpenSnapshot()
	ok(t, err)
	defer func() { _ = r.Close() }()
	got := must(tensor.LoadState(must(tensor.ParseFile(r, size))(t)))(t)
	want := testState(3)
	if got.Digest() != want.Digest() || m.Version != 3 {
		t.Errorf("version %d, digest differs: %t", m.Version, got.Digest() != want.Digest())
	}
}

func TestVersionsFollowEachOther(t *testing.T) {
	s := filled(t, t.TempDir(), 3)
	for _, v := range []uint64{0, 1, 3, 5} {
		if c, err := s.Begin(v); err == nil {
			c.Abort()
			t.Errorf("Begin(%d) after 3 was allowed", v)
		}
	}
	// Two commits of one version: the second to finish loses.
	a, b := must(s.Begin(4))(t), must(s.Begin(4))(t)
	ok(t, a.Finish(testManifest(4, "")))
	if err := b.Finish(testManifest(4, "")); err == nil {
		t.Error("version 4 was committed twice")
	}
	if err := a.Finish(testManifest(4, "")); err == nil {
		t.Error("a commit was finished twice")
	}
	if err := snapshot(s, 9, KindCommit); err == nil {
		t.Error("a snapshot of the future was written")
	}
	if err := snapshot(s, 5, KindSeed); err == nil {
		t.Error("a second seed was written")
	}
	ok(t, snapshot(s, 4, KindCommit))
	ok(t, snapshot(s, 4, KindCommit)) // again: nothing to do
	if err := snapshot(s, 3, KindCommit); err == nil {
		t.Error("a snapshot older than the newest was written")
	}
}

func TestSnapshotMustBeWhatItsManifestSays(t *testing.T) {
	s := filled(t, t.TempDir(), 3)
	st := testState(2)
	defer st.Close()
	if err := s.WriteSnapshot(3, testManifest(3, KindCommit), st, nil); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("the state of another version was written: %v", err)
	}
	st.Theta[5] = float32(math.NaN())
	m := testManifest(3, KindCommit)
	digest := st.Digest()
	m.Digest = hex.EncodeToString(digest[:])
	if err := s.WriteSnapshot(3, m, st, nil); err == nil || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("a state that recovery would refuse was written: %v", err)
	}
	if left := staged(t, s.dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
}

func TestPruningKeepsTwoSnapshotsAndTheCommitsAfterTheOlder(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 4)
	delta, size, _, err := s.OpenDelta(2)
	ok(t, err)
	old, oldSize, _, err := s.OpenSnapshot()
	ok(t, err)
	ok(t, snapshot(s, 4, KindCommit))
	for v := uint64(5); v <= 8; v++ {
		ok(t, commit(s, v))
	}
	ok(t, snapshot(s, 7, KindCommit))
	snapshots, commits := must(s.versions(snapshotsDir))(t), must(s.versions(commitsDir))(t)
	if !slices.Equal(snapshots, []uint64{4, 7}) || !slices.Equal(commits, []uint64{5, 6, 7, 8}) {
		t.Errorf("snapshots %v, commits %v", snapshots, commits)
	}
	if left := staged(t, dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
	// What was open stays readable; what was not is gone by name.
	if !bytes.Equal(readAll(t, delta, size), testDelta(2)) || len(readAll(t, old, oldSize)) == 0 {
		t.Error("open files changed")
	}
	if _, _, _, err := s.OpenDelta(3); !errors.Is(err, ErrNotKept) {
		t.Errorf("OpenDelta of a pruned version: %v", err)
	}
	if _, _, err := s.OpenUpdates(3); !errors.Is(err, ErrNotKept) {
		t.Errorf("OpenUpdates of a pruned version: %v", err)
	}
	manifests := must(s.Manifests(6))(t)
	if len(manifests) != 2 || manifests[0].Version != 7 || manifests[1].Version != 8 {
		t.Errorf("%d manifests after 6", len(manifests))
	}
	if all := must(s.Manifests(0))(t); len(all) != 4 {
		t.Errorf("%d manifests in all", len(all))
	}
	check(t, s.Reader, must(s.Recover())(t), 7, 8)
}

func TestReadLatestNeedsNoLockAndChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 3)
	r := must(ReadLatest(dir))(t)
	check(t, must(Read(dir))(t), r, 1, 3)
	ok(t, commit(s, 4))
	if _, err := ReadLatest(filepath.Join(dir, "nothing")); err == nil {
		t.Error("a folder that does not exist was read")
	}
	if r := must(ReadLatest(t.TempDir()))(t); !r.Empty() {
		t.Error("an empty folder holds a model")
	}
}

func TestReadersRunBesideCommitsAndPruning(t *testing.T) {
	s := filled(t, t.TempDir(), 2)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	reader := func(read func() error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := read(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	reader(func() error {
		all, err := s.Manifests(0)
		for i := 1; i < len(all); i++ {
			if all[i].Version != all[i-1].Version+1 {
				return fmt.Errorf("gap after %d", all[i-1].Version)
			}
		}
		return err
	})
	reader(func() error {
		f, size, _, err := s.OpenSnapshot()
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		parsed, err := tensor.ParseFile(f, size)
		if err != nil {
			return err
		}
		st, err := tensor.LoadState(parsed)
		if err == nil {
			st.Close()
		}
		return err
	})
	reader(func() error {
		r, err := ReadLatest(s.dir)
		if err == nil && len(r.Damage) > 0 {
			err = fmt.Errorf("damage: %v", r.Damage)
		}
		r.Close()
		return err
	})
	for v := uint64(3); v <= 30; v++ {
		ok(t, commit(s, v))
		if v%3 == 0 {
			ok(t, snapshot(s, v, KindCommit))
		}
		f, size, _, err := s.OpenDelta(v)
		ok(t, err)
		if !bytes.Equal(readAll(t, f, size), testDelta(v)) {
			t.Fatalf("delta %d differs", v)
		}
	}
	close(stop)
	wg.Wait()
}

func TestSecondOpenNamesTheHolder(t *testing.T) {
	dir := t.TempDir()
	s := must(Open(dir, quiet()))(t)
	_, err := Open(dir, quiet())
	var held *HeldError
	if !errors.As(err, &held) || !strings.Contains(held.Holder, fmt.Sprintf("pid %d ", os.Getpid())) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("second Open: %v", err)
	}
	ok(t, s.Close())
	ok(t, s.Close())
	if _, err := s.Begin(1); !errors.Is(err, ErrClosed) {
		t.Errorf("Begin after Close: %v", err)
	}
	s = must(Open(dir, quiet()))(t)
	ok(t, s.Close())
}

func TestOvertakenStoreIsFenced(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 3)
	c := must(s.Begin(4))(t)
	ok(t, writeTerm(dir, s.Term()+1)) // as a coordinator does that flock did not stop
	if err := c.Finish(testManifest(4, KindCommit)); !errors.Is(err, ErrFenced) {
		t.Errorf("Finish: %v", err)
	}
	if err := snapshot(s, 3, KindCommit); !errors.Is(err, ErrFenced) {
		t.Errorf("WriteSnapshot: %v", err)
	}
	if _, err := s.Begin(4); !errors.Is(err, ErrFenced) {
		t.Errorf("Begin: %v", err)
	}
	if _, err := s.Recover(); !errors.Is(err, ErrFenced) {
		t.Errorf("Recover: %v", err)
	}
	check(t, s.Reader, must(ReadLatest(dir))(t), 1, 3)
	if left := staged(t, dir); len(left) > 0 {
		t.Errorf("staging holds %v", left)
	}
}

func TestTermsNeverGoBack(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		s := must(Open(dir, quiet()))(t)
		ok(t, s.Close())
	}
	s := filled(t, dir, 2) // term 4
	ok(t, s.Close())
	ok(t, os.Remove(filepath.Join(dir, termFile)))
	s = must(Open(dir, quiet()))(t)
	if s.Term() != 5 {
		t.Errorf("term %d after TERM was lost, want 5", s.Term())
	}
	ok(t, writeTerm(dir, 2))
	if err := commit(s, 3); err == nil || errors.Is(err, ErrFenced) {
		t.Errorf("commit under an older TERM: %v", err)
	}
	ok(t, s.Close())
	ok(t, os.WriteFile(filepath.Join(dir, termFile), []byte("soon"), 0o644))
	if _, err := Open(dir, quiet()); err == nil || !strings.Contains(err.Error(), termFile) {
		t.Errorf("a TERM that is no number: %v", err)
	}
}

func TestAClosedStoreIsFreeThoughAChildStillHasItsFile(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	// What a child has between fork and exec.
	child, err := unix.Dup(int(s.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(child) }()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir, quiet()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
