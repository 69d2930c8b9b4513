package checkpoint

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ptr(v float64) *float64 { return &v }

// testState is what the model of these tests is at a version.
func testState(version uint64) *tensor.State {
	l, err := tensor.NewLayout([]tensor.Spec{
		{Name: "w", DType: tensor.BF16, Shape: []int64{40, 50}, Role: tensor.Parameter},
		{Name: "bias", DType: tensor.F32, Shape: nil, Role: tensor.Parameter},
		{Name: "bn.running_var", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Buffer},
		{Name: "bn.num_batches_tracked", DType: tensor.I64, Shape: nil, Role: tensor.Integer},
	})
	if err != nil {
		panic(err)
	}
	s := tensor.NewState(l)
	for i := range s.Theta {
		s.Theta[i] = float32(version) + float32(i)/7
		s.Momentum[i] = -float32(i) / float32(version+3)
	}
	s.Buffers[2] = float32(version)
	s.Integers[0] = byte(version)
	return s
}

func testResidual(version uint64) []float32 { return []float32{float32(version), 0.5, -1} }

func testManifest(version uint64, kind string) Manifest {
	s := testState(version)
	defer s.Close()
	digest, layout := s.Digest(), s.Layout.Digest()
	params, _ := algorithm.Defaults(algorithm.DecoupledMomentum)
	return Manifest{
		Version: version, Round: version + 2, Kind: kind, UnixMilli: 1e12,
		Digest: hex.EncodeToString(digest[:]), LayoutDigest: hex.EncodeToString(layout[:]), Algorithm: params,
		DigestForm: tensor.DigestForm,
	}
}

// testDelta is longer than the write buffer, so that it reaches the disk in
// several pieces.
func testDelta(version uint64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "delta of %d;", version), 30_000)
}

func snapshot(s *Store, version uint64, kind string) error {
	st := testState(version)
	defer st.Close()
	return s.WriteSnapshot(version, testManifest(version, kind), st, testResidual(version))
}

// advance makes the snapshot of a version from the one before, in pieces.
func advance(s *Store, version uint64, kind string) error {
	st := testState(version)
	defer st.Close()
	a, err := s.Advance(testManifest(version, kind), true)
	if err != nil {
		return err
	}
	defer a.Abort()
	for i, spec := range st.Layout.Tensors() {
		if spec.Role != tensor.Parameter {
			continue
		}
		at, n := st.Layout.Offset(i), spec.Elements()
		for _, piece := range [][2]int{{0, n / 2}, {n / 2, n}} {
			lo, hi := piece[0], piece[1]
			if err := a.Write(spec.Name, lo, st.Theta[at+lo:at+hi], st.Momentum[at+lo:at+hi]); err != nil {
				return err
			}
		}
	}
	if err := a.WriteResidual(0, testResidual(version)); err != nil {
		return err
	}
	if err := a.WriteAux(st.Buffers, st.Integers); err != nil {
		return err
	}
	return a.Finish()
}

func commit(s *Store, version uint64) error {
	c, err := s.Begin(version)
	if err != nil {
		return err
	}
	defer c.Abort()
	if _, err := c.Delta().Write(testDelta(version)); err != nil {
		return err
	}
	for _, member := range []string{"porto/a", "lund/b"} {
		if err := c.AddUpdate(member, strings.NewReader(fmt.Sprint(member, version))); err != nil {
			return err
		}
	}
	return c.Finish(testManifest(version, KindCommit))
}

// filled is an open store with a seed at version 1 and commits up to last.
func filled(t testing.TB, dir string, last uint64) *Store {
	t.Helper()
	s := must(open(dir, quiet(), unsyncedDisk))(t)
	t.Cleanup(func() { _ = s.Close() })
	ok(t, snapshot(s, 1, KindSeed))
	for v := uint64(2); v <= last; v++ {
		ok(t, commit(s, v))
	}
	return s
}

func readAll(t testing.TB, r ReadAtCloser, size int64) []byte {
	t.Helper()
	b := must(io.ReadAll(io.NewSectionReader(r, 0, size)))(t)
	ok(t, r.Close())
	return b
}

// check holds a recovered store against what must be in it.
func check(t testing.TB, r *Reader, got Recovered, snap, latest uint64) {
	t.Helper()
	if got.Empty() || got.Snapshot.Version != snap || got.Latest().Version != latest || len(got.Commits) != int(latest-snap) {
		t.Fatalf("snapshot %d, latest %d, %d commits; want %d, %d", got.Snapshot.Version, got.Latest().Version, len(got.Commits), snap, latest)
	}
	want := testState(snap)
	defer want.Close()
	if got.State.Digest() != want.Digest() {
		t.Fatal("the snapshot's state differs")
	}
	if !slices.Equal(got.Residual, testResidual(snap)) {
		t.Fatalf("residual %v", got.Residual)
	}
	for i, m := range got.Commits {
		v := snap + 1 + uint64(i)
		f, size, opened, err := r.OpenDelta(v)
		ok(t, err)
		if !bytes.Equal(readAll(t, f, size), testDelta(v)) || !reflect.DeepEqual(opened, m) || m.Version != v {
			t.Fatalf("commit %d differs", v)
		}
	}
}

func staged(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	for _, e := range must(os.ReadDir(filepath.Join(dir, stagingDir)))(t) {
		names = append(names, e.Name())
	}
	return names
}
