package checkpoint

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// flip changes one bit of a file, at a fraction of its length.
func flip(fraction float64) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		b := must(os.ReadFile(path))(t)
		b[int(fraction*float64(len(b)-1))] ^= 4
		ok(t, os.WriteFile(path, b, 0o644))
	}
}

func truncate(t testing.TB, path string) {
	ok(t, os.Truncate(path, must(os.Stat(path))(t).Size()/2))
}

func empty(t testing.TB, path string) { ok(t, os.Truncate(path, 0)) }

func remove(t testing.TB, path string) { ok(t, os.Remove(path)) }

var damages = map[string]func(testing.TB, string){
	"first byte": flip(0), "early byte": flip(0.1), "middle byte": flip(0.5), "last byte": flip(1),
	"truncated": truncate, "empty": empty, "missing": remove,
}

// listing is every file of a store with its size, without LOCK and TERM.
func listing(t testing.TB, dir string) []string {
	var out []string
	ok(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == lockFile || d.Name() == termFile {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		out = append(out, rel)
		return nil
	}))
	return out
}

func TestDamagedNewestSnapshotFallsBackAndSaysSo(t *testing.T) {
	base := t.TempDir()
	s := filled(t, base, 3)
	ok(t, snapshot(s, 3, KindCommit))
	ok(t, commit(s, 4))
	ok(t, s.Close())
	for _, name := range []string{manifestFile, stateFile, residualFile} {
		for how, damage := range damages {
			t.Run(name+" "+how, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "store")
				ok(t, os.CopyFS(dir, os.DirFS(base)))
				path := filepath.Join(dir, snapshotsDir, versionName(3), name)
				damage(t, path)

				before := listing(t, dir)
				r := must(ReadLatest(dir))(t)
				check(t, &Reader{dir: dir}, r, 1, 4)
				if len(r.Damage) != 1 || !strings.Contains(r.Damage[0], path) {
					t.Fatalf("damage report %q does not name %s", r.Damage, path)
				}
				if !slices.Equal(before, listing(t, dir)) {
					t.Fatal("reading changed the store")
				}

				s := must(Open(dir, quiet()))(t)
				defer func() { _ = s.Close() }()
				r = must(s.Recover())(t)
				check(t, s.Reader, r, 1, 4)
				if len(r.Damage) != 1 || !strings.Contains(r.Damage[0], path) {
					t.Fatalf("damage report %q does not name %s", r.Damage, path)
				}
				if n := len(must(os.ReadDir(filepath.Join(dir, damagedDir)))(t)); n != 1 {
					t.Errorf("%d folders set aside", n)
				}
				// The damaged one no longer counts as one of the two that stay.
				ok(t, snapshot(s, 4, KindCommit))
				if got := must(s.versions(snapshotsDir))(t); !slices.Equal(got, []uint64{1, 4}) {
					t.Errorf("snapshots %v", got)
				}
				r = must(s.Recover())(t)
				check(t, s.Reader, r, 4, 4)
				if len(r.Damage) != 0 {
					t.Errorf("damage %v is reported again", r.Damage)
				}
			})
		}
	}
}

func TestDamagedLastCommitIsSetAside(t *testing.T) {
	base := t.TempDir()
	ok(t, filled(t, base, 4).Close())
	for _, name := range []string{manifestFile, deltaFile} {
		for how, damage := range damages {
			t.Run(name+" "+how, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "store")
				ok(t, os.CopyFS(dir, os.DirFS(base)))
				path := filepath.Join(dir, commitsDir, versionName(4), name)
				damage(t, path)
				s := must(Open(dir, quiet()))(t)
				defer func() { _ = s.Close() }()
				r := must(s.Recover())(t)
				check(t, s.Reader, r, 1, 3)
				if len(r.Damage) != 1 || !strings.Contains(r.Damage[0], path) {
					t.Fatalf("damage report %q does not name %s", r.Damage, path)
				}
				ok(t, commit(s, 4))
				check(t, s.Reader, must(s.Recover())(t), 1, 4)
			})
		}
	}
}

func TestDamageInTheMiddleIsAnErrorWithAWayOut(t *testing.T) {
	base := t.TempDir()
	ok(t, filled(t, base, 4).Close())
	for what, damage := range map[string]func(dir string) (named string){
		"damaged delta": func(dir string) string {
			path := filepath.Join(dir, commitsDir, versionName(3), deltaFile)
			flip(0.5)(t, path)
			return path
		},
		"damaged manifest": func(dir string) string {
			path := filepath.Join(dir, commitsDir, versionName(3), manifestFile)
			truncate(t, path)
			return path
		},
		"missing commit": func(dir string) string {
			path := filepath.Join(dir, commitsDir, versionName(3))
			ok(t, os.RemoveAll(path))
			return path
		},
		"no snapshot left": func(dir string) string {
			path := filepath.Join(dir, snapshotsDir, versionName(1), stateFile)
			empty(t, path)
			return path
		},
		"commit of another version": func(dir string) string {
			from, to := filepath.Join(dir, commitsDir, versionName(2)), filepath.Join(dir, commitsDir, versionName(3))
			ok(t, os.RemoveAll(to))
			ok(t, os.CopyFS(to, os.DirFS(from)))
			return filepath.Join(to, manifestFile)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			ok(t, os.CopyFS(dir, os.DirFS(base)))
			named := damage(dir)
			before := listing(t, dir)
			s := must(Open(dir, quiet()))(t)
			defer func() { _ = s.Close() }()
			_, err := s.Recover()
			if err == nil || !strings.Contains(err.Error(), named) || !strings.Contains(err.Error(), "bring") {
				t.Fatalf("error %v does not name %s or no way out", err, named)
			}
			if !slices.Equal(before, listing(t, dir)) {
				t.Error("a failed recovery changed the store")
			}
			// The way out that the error names works.
			if what == "damaged delta" {
				for _, v := range []uint64{3, 4} {
					ok(t, os.RemoveAll(filepath.Join(dir, commitsDir, versionName(v))))
				}
				check(t, s.Reader, must(s.Recover())(t), 1, 2)
				ok(t, commit(s, 3))
			}
		})
	}
}

func TestStrayFilesAreNotOurs(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 3)
	ok(t, os.WriteFile(filepath.Join(dir, commitsDir, "notes.txt"), nil, 0o644))
	ok(t, os.Mkdir(filepath.Join(dir, snapshotsDir, "7"), 0o755))
	check(t, s.Reader, must(s.Recover())(t), 1, 3)
	if n := len(must(s.Manifests(0))(t)); n != 2 {
		t.Errorf("%d manifests", n)
	}
}
