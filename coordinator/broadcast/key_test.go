package broadcast

import (
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"girassol.dev/api/events"
)

func TestTheKeyOfEventsIsMadeOnceForItsOwnerOnly(t *testing.T) {
	dir := t.TempDir()
	first, err := Key(dir, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Key(dir, iotest.ErrReader(os.ErrInvalid))
	if err != nil || !again.Equal(first) {
		t.Fatalf("another key at the second start, or %v", err)
	}
	path := filepath.Join(dir, KeyFile)
	i, err := os.Stat(path)
	if err != nil || i.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", i.Mode(), err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("files left behind: %v", files)
	}
	for _, bad := range []string{"", "garbage", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Key(dir, rand.Reader); err == nil || !strings.Contains(err.Error(), "delete it") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if lost, err := Key(dir, rand.Reader); err != nil || lost.Equal(first) {
		t.Errorf("after the loss: the same key, or %v", err)
	}
	if _, err := Key(filepath.Join(dir, "none"), rand.Reader); err == nil {
		t.Error("a key in a folder that is not there")
	}
}

// Whoever forges a commit of the far future must not keep a coordinator from
// announcing the true ones.
func TestAForgedCommitHidesNoTrueOne(t *testing.T) {
	m := mini(t)
	forged := committed(1000)
	for _, k := range []ed25519.PrivateKey{testKey, keyOf("f")} {
		values := events.Sign(k, "demo", 9, 9, encoded(t, forged))
		if k.Equal(testKey) {
			values = values[:2] // without a signature
		}
		if _, err := m.XAdd(events.Stream("demo"), "*", values); err != nil {
			t.Fatal(err)
		}
	}
	p := publisher(t, client(t, m.Addr()), 2)
	if err := p.Resync(t.Context(), func(after *uint64) []events.Event { return versions(after, 2) }); err != nil {
		t.Fatal(err)
	}
	newReader(t, client(t, m.Addr())).wantVersions(0, 2)
}
