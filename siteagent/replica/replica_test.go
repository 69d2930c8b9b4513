package replica

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// bench is a coordinator in small: it holds the state and makes commits.
type bench struct {
	t      *testing.T
	rng    *rand.Rand
	params algorithm.Parameters
	state  *tensor.State
	domain *codec.Domain
	man    Manifest
	deltas []delta
}

type delta struct {
	man  Manifest
	path string
}

func newBench(t *testing.T, strategy string) *bench {
	t.Helper()
	l, err := tensor.NewLayout([]tensor.Spec{
		{Name: "weight", DType: tensor.F32, Shape: []int64{70, 80}, Role: tensor.Parameter},
		{Name: "bias", DType: tensor.F32, Shape: []int64{80}, Role: tensor.Parameter},
		{Name: "running_var", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Buffer},
		{Name: "batches", DType: tensor.I64, Shape: nil, Role: tensor.Integer},
	})
	if err != nil {
		t.Fatal(err)
	}
	params, err := algorithm.Defaults(strategy)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, rng: rand.New(rand.NewPCG(1, 2)), params: params, state: tensor.NewState(l)}
	t.Cleanup(b.state.Close)
	b.domain = codec.NewDomain(l, params.Downlink.Transform)
	copy(b.state.Theta, b.random(l.Parameters()))
	copy(b.state.Momentum, b.random(l.Parameters()))
	copy(b.state.Buffers, []float32{1, 2, 3})
	b.man = b.manifest(0, 0)
	return b
}

func (b *bench) random(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(b.rng.NormFloat64())
	}
	return out
}

func (b *bench) manifest(version, round uint64, updates ...string) Manifest {
	d := b.state.Digest()
	m := Manifest{Version: version, Round: round, Digest: d, Algorithm: b.params}
	m.UpdateIDs = updates
	return m
}

// commit makes the next version out of a random delta.
func (b *bench) commit(updates ...string) delta {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "delta")
	f, err := os.Create(path)
	if err != nil {
		b.t.Fatal(err)
	}
	aux := codec.Aux{Buffers: b.random(3), Integers: []byte{byte(b.man.Version), 1, 2, 3, 4, 5, 6, 7}}
	if _, err := codec.Encode(f, b.domain, b.params.Downlink, b.random(b.domain.Len()), aux); err != nil {
		b.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.t.Fatal(err)
	}
	err = withPayload(path, b.domain, b.params.Downlink, func(d *codec.Domain, p *codec.Payload) error {
		return replica.Step(b.state, d, b.params, p)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.man = b.manifest(b.man.Version+1, b.man.Round+1, updates...)
	b.deltas = append(b.deltas, delta{b.man, path})
	return delta{b.man, path}
}

// snapshot writes the whole state to a file.
func (b *bench) snapshot() string {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "state")
	err := tensor.WriteFileAtomic(path, func(w io.Writer) error { return tensor.SaveState(w, b.state, true) })
	if err != nil {
		b.t.Fatal(err)
	}
	return path
}

func open(t *testing.T, dir string) *Replica {
	t.Helper()
	r, err := Open(dir, "lm", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// reopen is a restart.
func reopen(t *testing.T, r *Replica) *Replica {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, r.root)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stage trains a round of random work.
func (b *bench) stage(r *Replica, id string) *Update {
	b.t.Helper()
	version, _, ok := r.Held()
	if !ok {
		b.t.Fatal("no state to start from")
	}
	_, err := r.Prepare(b.params.Uplink.Transform, nil, true)
	must(b.t, err)
	start := make([]float32, len(r.State().Theta))
	r.Start(start, 0)
	end := slices.Clone(start)
	for i := range end {
		end[i] += 0.01 * float32(b.rng.NormFloat64())
	}
	u, err := r.Stage(Update{UpdateID: id, Round: version + 1, BaseVersion: version, Encoding: b.params.Uplink, Weight: 8, Samples: 8, Steps: 2},
		Work{Start: start, End: end, Buffers: []float32{1, 1, 1}, Integers: make([]byte, 8)})
	must(b.t, err)
	return u
}

func sameBits(t *testing.T, what string, a, b []float32) {
	t.Helper()
	if len(a) != len(b) {
		t.Fatalf("%s: %d and %d elements", what, len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("%s: element %d is %g, want %g", what, i, a[i], b[i])
		}
	}
}

func (b *bench) holdsState(r *Replica) {
	b.t.Helper()
	version, digest, ok := r.Held()
	want := b.state.Digest()
	if !ok || version != b.man.Version || digest != want || r.State().Digest() != want {
		b.t.Fatalf("replica at version %d (ok %v) with digest %x, want version %d with %x", version, ok, digest, b.man.Version, want)
	}
}

func TestAPendingUpdateSurvivesARestartAsItWas(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	u := b.stage(r, "first")
	vector, payload := slices.Clone(r.residual.Vector()), readPending(t, r)
	r = reopen(t, r)
	b.holdsState(r)
	got := r.Pending()
	if got == nil || got.UpdateID != u.UpdateID || got.Bytes != u.Bytes || got.Round != 1 || got.Accepted {
		t.Fatalf("pending is %+v, want %+v", got, u)
	}
	sameBits(t, "residual", r.residual.Vector(), vector)
	if !bytes.Equal(readPending(t, r), payload) {
		t.Fatal("payload is another one")
	}
	if got := r.Pending().Header([32]byte{1}); got.GetUpdateId() != "first" || got.GetPayloadBytes() != uint64(len(payload)) || got.GetWeight() != 8 {
		t.Fatalf("header %v", got)
	}
}

func readPending(t *testing.T, r *Replica) []byte {
	t.Helper()
	f, err := r.OpenPending()
	must(t, err)
	defer f.Close()
	all, err := io.ReadAll(f)
	must(t, err)
	return all
}

func TestADroppedUpdateLeavesTheResidualBitForBit(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	b.stage(r, "stale")
	whole := slices.Clone(r.residual.Vector())
	must(t, r.Accept())
	must(t, r.Drop())
	sameBits(t, "residual", r.residual.Vector(), whole)
	r = reopen(t, r)
	sameBits(t, "residual after restart", r.residual.Vector(), whole)
	if r.Pending() != nil {
		t.Fatal("the update is still pending")
	}
}

func TestOnlyACommitThatListsTheUpdateTakesItOutOfTheResidual(t *testing.T) {
	for _, listed := range []bool{true, false} {
		b := newBench(t, algorithm.DecoupledMomentum)
		r := open(t, t.TempDir())
		must(t, r.Install(b.man, b.snapshot()))
		u := b.stage(r, "mine")
		must(t, r.Accept())
		want := slices.Clone(r.residual.Vector())
		names := []string{"other"}
		if listed {
			names = append(names, "mine")
			must(t, withPayload(filepath.Join(r.dir, u.Name), r.residual.Domain(), u.Encoding,
				func(_ *codec.Domain, p *codec.Payload) error { return p.Add(want, -1) }))
		}
		d := b.commit(names...)
		must(t, r.Apply(d.man, d.path))
		b.holdsState(r)
		if r.Pending() != nil {
			t.Fatal("the update is still pending")
		}
		sameBits(t, "residual", r.residual.Vector(), want)
		if r.Agreement() == nil || math.Abs(*r.Agreement()) > 1 {
			t.Fatalf("agreement %v", r.Agreement())
		}
		r = reopen(t, r)
		b.holdsState(r)
		sameBits(t, "residual after restart", r.residual.Vector(), want)
		b.stage(r, "next") // and the next round starts from there
		r = reopen(t, r)
		if r.Pending() == nil || r.Pending().UpdateID != "next" {
			t.Fatalf("pending is %+v", r.Pending())
		}
	}
}

func TestALosslessUpdateSettlesToZero(t *testing.T) {
	b := newBench(t, algorithm.DiLoCo)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	b.stage(r, "dense")
	d := b.commit("dense")
	must(t, r.Apply(d.man, d.path))
	if n := r.ResidualNorm(); n != 0 {
		t.Fatalf("residual norm %g after everything was sent", n)
	}
	if n := reopen(t, r).ResidualNorm(); n != 0 {
		t.Fatalf("residual norm %g after a restart", n)
	}
}

func TestReplayOfMissedCommitsEqualsAFullPullBitForBit(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	replay, full := open(t, t.TempDir()), open(t, t.TempDir())
	must(t, replay.Install(b.man, b.snapshot()))
	for range 2*compactAfter + 3 {
		d := b.commit()
		must(t, replay.Apply(d.man, d.path))
	}
	must(t, full.Install(b.man, b.snapshot()))
	for _, r := range []*Replica{replay, full} {
		for range 2 {
			b.holdsState(r)
			sameBits(t, "theta", r.State().Theta, b.state.Theta)
			sameBits(t, "momentum", r.State().Momentum, b.state.Momentum)
			r = reopen(t, r)
		}
	}
}

func TestAnotherDigestGivesTheStateUpAndKeepsTheResidual(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	b.stage(r, "mine")
	must(t, r.Drop())
	whole := slices.Clone(r.residual.Vector())
	d := b.commit()
	d.man.Digest = [32]byte{}
	if err := r.Apply(d.man, d.path); !errors.Is(err, ErrDiverged) {
		t.Fatalf("error %v, want ErrDiverged", err)
	}
	if _, _, ok := r.Held(); ok {
		t.Fatal("the state is still held")
	}
	if err := r.Apply(b.man, d.path); !errors.Is(err, ErrDiverged) {
		t.Fatalf("error %v without a state, want ErrDiverged", err)
	}
	must(t, r.Install(b.man, b.snapshot()))
	b.holdsState(r)
	sameBits(t, "residual", r.residual.Vector(), whole)
	sameBits(t, "residual after restart", reopen(t, r).residual.Vector(), whole)
}

func TestAFullPullPastTheUpdatesCommitGoesByTheCoordinatorsAnswer(t *testing.T) {
	for _, accepted := range []bool{true, false} {
		b := newBench(t, algorithm.DiLoCo)
		r := open(t, t.TempDir())
		must(t, r.Install(b.man, b.snapshot()))
		b.stage(r, "mine")
		if accepted {
			must(t, r.Accept())
		}
		b.commit("mine")
		b.commit()
		must(t, r.Install(b.man, b.snapshot()))
		if r.Pending() != nil {
			t.Fatal("the update is still pending")
		}
		if zero := r.ResidualNorm() == 0; zero != accepted {
			t.Fatalf("accepted %v: residual norm %g", accepted, r.ResidualNorm())
		}
	}
}

func TestAFullPullOfABadFileChangesNothing(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	wrong := b.man
	wrong.Version, wrong.Digest = 7, [32]byte{}
	if err := r.Install(wrong, b.snapshot()); err == nil {
		t.Fatal("a state with another digest was installed")
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	must(t, os.WriteFile(garbage, []byte("no model"), 0o600))
	if err := r.Install(b.man, garbage); err == nil {
		t.Fatal("garbage was installed")
	}
	b.holdsState(r)
}

func TestAChangeOfTransformKeepsTheResidual(t *testing.T) {
	b := newBench(t, algorithm.DecoupledMomentum)
	r := open(t, t.TempDir())
	must(t, r.Install(b.man, b.snapshot()))
	b.stage(r, "mine")
	if _, err := r.Prepare(algorithm.Identity, nil, true); err == nil {
		t.Fatal("the transform changed under a pending update")
	}
	must(t, r.Drop())
	norm := r.ResidualNorm()
	_, err := r.Prepare(algorithm.Identity, nil, true)
	must(t, err)
	if got := r.ResidualNorm(); math.Abs(got-norm) > 1e-4*norm {
		t.Fatalf("norm %g, was %g: the transforms are orthonormal", got, norm)
	}
}
