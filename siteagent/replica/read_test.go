package replica

import (
	"encoding/hex"
	"path/filepath"
	"strings"
	"testing"

	"girassol.dev/internal/algorithm"
)

// held is what Read finds, and the digest of it.
func held(t *testing.T, dir string) (version uint64, digest string) {
	t.Helper()
	c, err := Read(dir)
	must(t, err)
	defer c.State.Close()
	got := c.State.Digest()
	if c.Digest != hex.EncodeToString(got[:]) || c.Federation != "lm" {
		t.Errorf("federation %s, digest %s of a state with %x", c.Federation, c.Digest, got)
	}
	return c.Version, c.Digest
}

// A tool reads what an agent holds, while the agent holds its lock and goes on.
func TestAToolReadsWhatTheAgentHolds(t *testing.T) {
	for _, name := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		b := newBench(t, name)
		r := open(t, t.TempDir())
		must(t, r.Install(b.man, b.snapshot()))
		for range compactAfter + 3 {
			if v, digest := held(t, r.root); v != b.man.Version || digest != b.man.digestText() {
				t.Fatalf("%s: version %d with %s, want %d with %s", name, v, digest, b.man.Version, b.man.digestText())
			}
			d := b.commit()
			must(t, r.Apply(d.man, d.path))
		}
	}
}

func TestAToolReadsWhileTheAgentReplacesWhatItReads(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	var all []delta
	for range 20 {
		all = append(all, b.commit())
	}
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for _, d := range all {
			if err := r.Apply(d.man, d.path); err != nil {
				failed <- err
				return
			}
		}
	}()
	last := uint64(0)
	for last < all[len(all)-1].man.Version {
		v, digest := held(t, r.root)
		if v < last || v > 0 && digest != all[v-1].man.digestText() {
			t.Fatalf("version %d with %s after %d", v, digest, last)
		}
		last = v
		if t.Failed() {
			break
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

func TestAToolFallsBackAndSaysWhatItMissed(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	d := b.commit()
	must(t, r.Apply(d.man, d.path))
	all := generations(r.root)
	damage(t, filepath.Join(all[0].dir, recordName))
	if v, _ := held(t, r.root); v != 0 {
		t.Errorf("version %d", v)
	}
	damage(t, filepath.Join(all[1].dir, recordName))
	if _, err := Read(r.root); err == nil || strings.Count(err.Error(), generationPrefix) != 2 {
		t.Error(err)
	}
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "given as --data") {
		t.Error(err)
	}
}
