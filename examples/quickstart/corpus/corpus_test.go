package corpus

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func folder(t *testing.T, folders, files int) string {
	dir := t.TempDir()
	all := map[string]string{".git/config": "hidden", "a0/image.png": "\x89PNG\x00\x00", "a0/empty.txt": ""}
	for d := range folders {
		for f := range files {
			all[fmt.Sprintf("a%d/f%d.txt", d, f)] = strings.Repeat(fmt.Sprintf("folder %d, file %d. ", d, f), 120)
		}
	}
	write(t, dir, all)
	return dir
}

// apart fails when a file is anywhere twice.
func apart(t *testing.T, s Split) {
	t.Helper()
	seen := map[string]bool{}
	for _, share := range append(slices.Clone(s.Sites), s.HeldOut) {
		for _, f := range share.Files {
			if seen[f] {
				t.Errorf("%s is in two shares", f)
			}
			seen[f] = true
			if !filepath.IsAbs(f) || strings.Contains(f, ".git") || strings.HasSuffix(f, ".png") || strings.HasSuffix(f, "empty.txt") {
				t.Errorf("%s does not belong into a corpus", f)
			}
		}
	}
}

func TestSubFoldersBecomeSites(t *testing.T) {
	dir := folder(t, 4, 12)
	for _, sites := range []int{0, 4} {
		s, err := Make(Options{Dir: dir, Sites: sites, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		apart(t, s)
		if len(s.Sites) != 4 {
			t.Fatalf("%d sites, want one per sub-folder", len(s.Sites))
		}
		for i, site := range s.Sites {
			want := fmt.Sprintf("a%d", i)
			if site.Name != want {
				t.Errorf("site %d is named %q, want %q", i, site.Name, want)
			}
			for _, f := range site.Files {
				if filepath.Base(filepath.Dir(f)) != want {
					t.Errorf("site %s holds %s", want, f)
				}
			}
		}
	}
}

func TestAnotherNumberOfSitesSplitsEvenly(t *testing.T) {
	s, err := Make(Options{Dir: folder(t, 4, 24), Sites: 3, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	apart(t, s)
	for _, site := range s.Sites {
		if r := float64(site.Bytes) / float64(s.Sites[0].Bytes); r < 0.8 || r > 1.25 {
			t.Errorf("sites hold %d and %d bytes: not even", s.Sites[0].Bytes, site.Bytes)
		}
	}
}

func TestSeedAloneDecidesTheSplit(t *testing.T) {
	dir := folder(t, 3, 30)
	first, err := Make(Options{Dir: dir, Sites: 2, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	again, _ := Make(Options{Dir: dir, Sites: 2, Seed: 1})
	other, _ := Make(Options{Dir: dir, Sites: 2, Seed: 2})
	if !reflect.DeepEqual(first, again) {
		t.Error("the same seed gives another split")
	}
	if reflect.DeepEqual(first, other) {
		t.Error("another seed gives the same split")
	}
}

func TestCapsHold(t *testing.T) {
	s, err := Make(Options{Dir: folder(t, 2, 60), Sites: 3, Seed: 1, SiteBytes: 40 << 10, HeldOutBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, site := range s.Sites {
		if site.Bytes > 40<<10 {
			t.Errorf("a site holds %d bytes", site.Bytes)
		}
	}
	if s.HeldOut.Bytes > 13<<10 {
		t.Errorf("held out are %d bytes", s.HeldOut.Bytes)
	}
}

func TestTooLittleTextIsSaidWithFigures(t *testing.T) {
	empty, tiny := t.TempDir(), t.TempDir()
	write(t, tiny, map[string]string{"a.txt": strings.Repeat("x", 9000), "b.txt": strings.Repeat("y", 5000)})
	for dir, want := range map[string]string{empty: "no text files", tiny: "at least 8192 are needed", filepath.Join(empty, "nowhere"): "no such file"} {
		_, err := Make(Options{Dir: dir, Sites: 3})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestGoSourceGivesEachSiteOtherPackages(t *testing.T) {
	src := filepath.Join(runtime.GOROOT(), "src") //nolint:staticcheck // the test's own toolchain
	if _, err := os.Stat(filepath.Join(src, "fmt")); err != nil {
		t.Skipf("no Go source tree beside this toolchain: %v", err)
	}
	s, err := Make(Options{Dir: src, GoSource: true, Sites: 3, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	apart(t, s)
	dirs := map[string]int{}
	for i, site := range s.Sites {
		t.Logf("site %d: %d files, %d bytes, %v", i, len(site.Files), site.Bytes, site.Topics)
		if site.Bytes < 2<<20 {
			t.Errorf("site %d holds only %d bytes", i, site.Bytes)
		}
		for _, f := range site.Files {
			if strings.HasSuffix(f, "_test.go") || strings.Contains(f, "/testdata/") {
				t.Errorf("site %d holds %s", i, f)
			}
			d := filepath.Dir(f)
			if j, ok := dirs[d]; ok && j != i {
				t.Errorf("package %s is at sites %d and %d", d, i, j)
			}
			dirs[d] = i
		}
	}
	t.Logf("held out: %d files, %d bytes", len(s.HeldOut.Files), s.HeldOut.Bytes)
	if s.HeldOut.Bytes < 200<<10 || len(s.HeldOut.Files) < 10 {
		t.Errorf("held out are %d files with %d bytes", len(s.HeldOut.Files), s.HeldOut.Bytes)
	}
}
