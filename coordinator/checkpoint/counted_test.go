package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// counting is a store whose commit v holds update "u<v>" of one member, with a
// snapshot every so many commits.
func counting(t *testing.T, dir string, last, every uint64) *Store {
	t.Helper()
	s := must(open(dir, quiet(), unsyncedDisk))(t)
	t.Cleanup(func() { _ = s.Close() })
	ok(t, snapshot(s, 1, KindSeed))
	for v := uint64(2); v <= last; v++ {
		c := must(s.Begin(v))(t)
		must(c.Delta().Write([]byte("delta")))(t)
		m := testManifest(v, KindCommit)
		m.Members = []ManifestMember{{Member: "porto/a", Site: "porto", UpdateID: fmt.Sprint("u", v), Weight: 1}}
		ok(t, c.Finish(m))
		if v%every == 0 {
			ok(t, snapshot(s, v, KindCommit))
		}
	}
	return s
}

// known are the versions whose updates a reader knows.
func known(t *testing.T, r *Reader) map[uint64]string {
	t.Helper()
	out := map[uint64]string{}
	for _, c := range must(r.Counted())(t) {
		if out[c.Version] != "" || c.Member != "porto/a" {
			t.Errorf("%+v is there twice, or of another member", c)
		}
		out[c.Version] = c.UpdateID
	}
	for _, m := range must(r.Manifests(0))(t) {
		for _, mm := range m.Members {
			out[m.Version] = mm.UpdateID
		}
	}
	return out
}

func TestWhatPrunedCommitsHeldIsKnownForRecallVersions(t *testing.T) {
	dir := t.TempDir()
	const last = 2*Recall + 10
	s := counting(t, dir, last, 3)
	if commits := must(s.versions(commitsDir))(t); len(commits) > 6 {
		t.Fatalf("nothing is pruned: %d commits", len(commits))
	}
	got := known(t, s.Reader)
	for v := uint64(last - Recall); v <= last; v++ {
		if got[v] != fmt.Sprint("u", v) {
			t.Errorf("version %d: %q", v, got[v])
		}
	}
	if len(got) > Recall+6 {
		t.Errorf("%d versions are remembered", len(got))
	}
}

// What cannot be read is told of with the way out, and takes nothing but itself.
func TestADamagedListOfCountedUpdatesStopsNoPruning(t *testing.T) {
	dir := t.TempDir()
	s := counting(t, dir, 10, 3)
	ok(t, os.WriteFile(filepath.Join(dir, countedFile), []byte(`[{"version":`), 0o600))
	if _, err := s.Counted(); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Fatal(err)
	}
	ok(t, snapshot(s, 10, KindCommit))
	if got := known(t, s.Reader); got[8] != "u8" || got[10] != "u10" {
		t.Errorf("%v", got)
	}
}
