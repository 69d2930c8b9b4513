package engine

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// bare is an engine that does not run: tests call its parts on their goroutine.
func bare(t *testing.T, dir string, p algorithm.Parameters) *Engine {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store := openStore(t, dir)
	model := filepath.Join(t.TempDir(), "model.safetensors")
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{64, 64}, Role: tensor.Parameter}})
	if err != nil {
		t.Fatal(err)
	}
	st := tensor.NewState(l)
	defer st.Close()
	if err := tensor.WriteFileAtomic(model, func(w io.Writer) error { return tensor.SaveState(w, st, false) }); err != nil {
		t.Fatal(err)
	}
	e, err := New(Config{
		Federation: "fed", Algorithm: algorithm.Plan{Parameters: p}, DataDir: dir, SnapshotEvery: 100, InitialModel: model,
		Round: round.Config{Sites: []string{"a"}, MinSites: 1},
	}, store, Hooks{}, log)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func openStore(t *testing.T, dir string) *checkpoint.Store {
	t.Helper()
	store, err := checkpoint.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// commitOne merges one update of ascending values.
func commitOne(t *testing.T, e *Engine) {
	t.Helper()
	m := e.model
	x := make([]float32, m.domain.Len())
	for i := range x {
		x[i] = float32(i + 1)
	}
	var b bytes.Buffer
	up := e.cfg.Algorithm.Uplink
	if _, err := codec.Encode(&b, m.domain, up, x, codec.Aux{}); err != nil {
		t.Fatal(err)
	}
	sp := spool.New(e.spoolDir(), int64(b.Len()), nil)
	u := &Upload{header: &coordinatorv1.PushHeader{UpdateId: "u", Weight: 1, Samples: 1}, name: "a/n", site: "a", spool: sp}
	u.writer, _ = sp.Attempt()
	if _, err := u.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	payload, err := codec.Parse(m.domain, up, sp, sp.Size(), nil)
	if err != nil {
		t.Fatal(err)
	}
	u.payload = payload
	man, err := e.merge(e.nextManifest(round.Commit{Round: m.version + 1, Members: []string{"a/n"}}, []*Upload{u}), []*Upload{u})
	if err != nil {
		t.Fatal(err)
	}
	m.version = man.Version
	copy(m.digest[:], mustHex(man.Digest))
	e.adopt(man)
}

func restarted(t *testing.T, e *Engine, p algorithm.Parameters) *Engine {
	t.Helper()
	if err := e.store.Close(); err != nil {
		t.Fatal(err)
	}
	e.model.close()
	return bare(t, e.cfg.DataDir, p)
}

func defaults(t *testing.T, name string) algorithm.Parameters {
	t.Helper()
	p, err := algorithm.Defaults(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLosslessDownlinkKeepsNoResidual(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	e := bare(t, t.TempDir(), p)
	if e.model.residual != nil {
		t.Fatal("a residual for a delta that leaves nothing")
	}
	commitOne(t, e)
	digest := e.model.digest
	if err := e.store.WriteSnapshot(1, e.manifest, e.model.state, e.model.residual); err != nil {
		t.Fatal(err)
	}
	commitOne(t, e)
	e = restarted(t, e, p)
	if e.model.residual != nil || e.model.version != 2 || e.model.digest == digest {
		t.Fatalf("recovered version %d, residual of %d elements", e.model.version, len(e.model.residual))
	}
}

func TestResidualFollowsAChangeOfTheDownlink(t *testing.T) {
	lossy := defaults(t, algorithm.DecoupledMomentum)
	lossless := lossy
	lossless.Downlink.KeepOneIn, lossless.Downlink.Values = 1, algorithm.FP32
	e := bare(t, t.TempDir(), lossy)
	commitOne(t, e)
	left := kernel.SumSquares(e.model.residual)
	if left == 0 {
		t.Fatal("a lossy delta left nothing")
	}
	// The replay of a lossy commit needs a residual, whatever comes after it.
	e = restarted(t, e, lossless)
	if got := kernel.SumSquares(e.model.residual); got != left {
		t.Fatalf("recovered |R|^2 is %g, want %g", got, left)
	}
	commitOne(t, e)
	if got := kernel.SumSquares(e.model.residual); got != 0 {
		t.Fatalf("a lossless delta left |R|^2 = %g", got)
	}
	// What went out must not go out again after a restart.
	e = restarted(t, e, lossless)
	if got := kernel.SumSquares(e.model.residual); got != 0 {
		t.Fatalf("after a replay |R|^2 is %g, want 0", got)
	}
}

// A merge that cannot be kept takes the model back to the commit before, with
// its memory: a second residual would be a leak of the model's size.
func TestFailedMergeGivesTheModelBack(t *testing.T) {
	e := bare(t, t.TempDir(), defaults(t, algorithm.DecoupledMomentum))
	commitOne(t, e)
	old := e.model
	want := kernel.SumSquares(old.residual)
	e.mergeFailed(time.Now(), round.Commit{Round: 2}, e.putBack(errors.New("disk full")))
	if e.fatal != nil {
		t.Fatal(e.fatal)
	}
	if old.state.Theta != nil || old.residual != nil {
		t.Error("the old model still holds its memory")
	}
	if got := kernel.SumSquares(e.model.residual); e.model.version != 1 || got != want {
		t.Errorf("back at version %d with |R|^2 = %g, want 1 and %g", e.model.version, got, want)
	}
}
