package transformer

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFolderIsReadInOrderWithoutBinariesAndSymlinks(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, dir, "b.txt", "second\n")
	write(t, dir, "a/z.txt", "first") // gets its newline
	write(t, dir, "c.bin", "bin\x00ary")
	write(t, dir, "empty", "")
	secret := write(t, elsewhere, "secret", "secret\n")
	if err := os.Symlink(secret, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, "linked-folder")); err != nil {
		t.Fatal(err)
	}
	c, err := ReadFolder(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(c.data); got != "first\nsecond\n" {
		t.Errorf("read %q", got)
	}
	if c.Files != 2 || c.Skipped != 4 {
		t.Errorf("%d files, %d skipped, want 2 and 4", c.Files, c.Skipped)
	}
}

func TestCorpusKeepsToItsLimit(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", strings.Repeat("x", 100))
	write(t, dir, "b", strings.Repeat("y", 100))
	c, err := ReadFolder(dir, 150)
	if err != nil {
		t.Fatal(err)
	}
	if c.Len() != 150 {
		t.Errorf("%d bytes, want 150", c.Len())
	}
}

func TestListIsReadAsWritten(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "b.txt", "b\n")
	a := write(t, dir, "a.txt", "a\n")
	list := write(t, dir, "list", "# files\nb.txt\n\n"+a+"\nmissing.txt\n")
	c, err := ReadList(list, 0)
	if err != nil {
		t.Fatal(err)
	}
	if string(c.data) != "b\na\n" || c.Skipped != 1 {
		t.Errorf("read %q, skipped %d", c.data, c.Skipped)
	}
}

func TestNoTextIsAnErrorThatNamesThePlace(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "only.bin", "\x00")
	for _, place := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := ReadFolder(place, 0); err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("%s: %v", place, err)
		}
	}
}

func FuzzFileList(f *testing.F) {
	f.Add([]byte("a\n# b\n\n c \r\n"))
	f.Add([]byte("x\x00y"))
	f.Fuzz(func(t *testing.T, b []byte) {
		paths, err := parseList(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, p := range paths {
			if p == "" || p[0] == '#' || strings.ContainsAny(p, "\n\x00") {
				t.Errorf("path %q", p)
			}
		}
	})
}

// The files of a ConfigMap's or Secret's volume are links into a folder that is
// swapped when they change; each text counts once.
func TestTextOfAConfigMapsVolumeIsReadOnce(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "..2026_11_30_12_00_00.123")
	if err := os.Mkdir(real, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(real, "README.md"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"..data": filepath.Base(real), "README.md": filepath.Join("..data", "README.md")} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := ReadFolder(dir, 0)
	if err != nil || c.Files != 1 || c.Len() < len("text") {
		t.Fatalf("%+v, %v: want the one text", c, err)
	}
}
