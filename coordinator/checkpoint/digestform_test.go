package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"girassol.dev/internal/tensor"
)

// rewrite replaces text of a manifest and seals it again.
func rewrite(t *testing.T, path, old, now string) {
	t.Helper()
	b := must(os.ReadFile(path))(t)
	body := bytes.Replace(b[sealLength:], []byte(old), []byte(now), 1)
	if bytes.Equal(body, b[sealLength:]) {
		t.Fatalf("%s has no %q", path, old)
	}
	seal := fmt.Appendf(nil, sealFormat, crc32.Checksum(body, castagnoli))
	ok(t, os.WriteFile(path, append(seal, body...), 0o644))
}

// A store of another release is not damaged: it must not be set aside, nor a
// version before be taken for the newest.
func TestStoreWithDigestsOfAnotherFormIsRefusedAndLeftAsItIs(t *testing.T) {
	form := `"digestForm": "` + tensor.DigestForm + `",`
	for name, c := range map[string]struct{ sub, now string }{
		"a commit without a form":   {commitsDir, ""},
		"a commit of a later form":  {commitsDir, `"digestForm": "later",`},
		"a snapshot without a form": {snapshotsDir, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := must(Open(dir, quiet()))(t)
			ok(t, snapshot(s, 0, KindSeed))
			version := uint64(0)
			if c.sub == commitsDir {
				ok(t, commit(s, 1))
				version = 1
			}
			ok(t, s.Close())
			rewrite(t, filepath.Join(dir, c.sub, versionName(version), manifestFile), form, c.now)
			_, err := Open(dir, quiet())
			if !errors.Is(err, ErrDigestForm) || !strings.Contains(err.Error(), "empty folder") {
				t.Errorf("Open: %v, want what is wrong and a way out", err)
			}
			if _, err := ReadLatest(dir); !errors.Is(err, ErrDigestForm) {
				t.Errorf("ReadLatest: %v", err)
			}
			if left := must(os.ReadDir(filepath.Join(dir, damagedDir)))(t); len(left) > 0 {
				t.Errorf("%d versions were set aside as damaged", len(left))
			}
		})
	}
}
