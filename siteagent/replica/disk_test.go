package replica

import (
	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
)

// damage flips a byte in the middle of a file, behind hard links' backs: the
// file is replaced.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	b[len(b)/2] ^= 0x10
	must(t, os.Remove(path))
	must(t, os.WriteFile(path, b, 0o600))
}

func TestADamagedGenerationFallsBackToTheOneBefore(t *testing.T) {
	for _, name := range []string{recordName, modelName, residualName, updateName} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, algorithm.DecoupledMomentum)
			r := open(t, t.TempDir())
			must(t, r.Install(b.man, b.snapshot()))
			b.stage(r, "first")
			must(t, r.Drop())
			whole := slices.Clone(r.residual.Vector())
			b.stage(r, "second")
			damage(t, filepath.Join(r.dir, name))
			sequence := r.rec.Sequence
			r = reopen(t, r)
			b.holdsState(r)
			if r.Pending() != nil {
				t.Fatalf("pending %+v of the damaged generation", r.Pending())
			}
			sameBits(t, "residual", r.residual.Vector(), whole)
			b.stage(r, "third")
			if r.rec.Sequence <= sequence {
				t.Fatalf("generation %d was used again", r.rec.Sequence)
			}
			if got := reopen(t, r).Pending(); got == nil || got.UpdateID != "third" {
				t.Fatalf("pending %+v", got)
			}
		})
	}
}

func TestWithNoSoundGenerationTheReplicaIsEmpty(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	d := b.commit()
	must(t, r.Apply(d.man, d.path))
	for _, g := range generations(r.root) {
		damage(t, filepath.Join(g.dir, modelName))
	}
	r = reopen(t, r)
	if _, _, ok := r.Held(); ok {
		t.Fatal("a damaged state is held")
	}
	must(t, r.Install(b.man, b.snapshot()))
	b.holdsState(reopen(t, r))
}

func TestWhatACrashLeftUnfinishedIsIgnored(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	must(t, os.MkdirAll(filepath.Join(r.root, building), 0o700))
	must(t, os.WriteFile(filepath.Join(r.root, building, recordName), []byte("{"), 0o600))
	f, err := r.Incoming()
	must(t, err)
	must(t, f.Close())
	r = reopen(t, r)
	b.holdsState(r)
	if left, _ := filepath.Glob(filepath.Join(r.root, "incoming-*")); len(left) != 0 {
		t.Fatalf("%v left behind", left)
	}
	b.stage(r, "mine")
	if n := len(generations(r.root)); n > keepGenerations {
		t.Fatalf("%d generations on disk", n)
	}
}

func TestWhatTheDiskRefusedIsMadeGoodByTheNextWrite(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	b.stage(r, "mine")
	must(t, r.Drop())
	must(t, os.Rename(r.dir, r.dir+".gone"))
	d := b.commit()
	if err := r.Apply(d.man, d.path); err == nil {
		t.Fatal("a write without the files before succeeded")
	}
	b.holdsState(r) // in memory it goes on
	whole := slices.Clone(r.residual.Vector())
	d = b.commit()
	must(t, r.Apply(d.man, d.path))
	r = reopen(t, r)
	b.holdsState(r)
	sameBits(t, "residual", r.residual.Vector(), whole)
}

func TestAFolderBelongsToOneAgentAndOneFederation(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	if _, err := Open(r.root, "lm", slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("two agents share a folder")
	}
	must(t, r.Close())
	if _, err := Open(r.root, "vision", slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("another federation's folder was taken")
	}
	b.holdsState(open(t, r.root))
}

func FuzzReadRecord(f *testing.F) {
	f.Add([]byte("{\"format\":1}\n00000000\n"))
	f.Add([]byte(""))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if rec, err := readRecord(b); err == nil && rec.Format != recordFormat {
			t.Fatalf("format %d passed", rec.Format)
		}
	})
}

func TestManifestsWithoutDigestOrAlgorithmAreRefused(t *testing.T) {
	params, err := algorithm.Defaults(algorithm.DiLoCo)
	if err != nil {
		t.Fatal(err)
	}
	good := &coordinatorv1.PullHeader{Version: 1, Digest: make([]byte, 32), Algorithm: params.ToProto()}
	if _, err := ParseManifest(good); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]*coordinatorv1.PullHeader{
		"nothing":      {},
		"short digest": {Version: 1, Digest: make([]byte, 31), Algorithm: params.ToProto()},
		"no algorithm": {Version: 1, Digest: make([]byte, 32)},
	} {
		if _, err := ParseManifest(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
