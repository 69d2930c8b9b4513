package engine

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/algorithm"
)

// contents of the files below a folder, by path.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Every version that the log has can be read while the coordinator is at work, with the
// digest that its members were told, and nothing changes by it.
func TestEveryKeptVersionIsReadFromALogAtWork(t *testing.T) {
	t.Parallel()
	for _, name := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		t.Run(name, func(t *testing.T) {
			p := defaults(t, name)
			cfg := testConfig(t.TempDir(), p, "a", "b")
			r := newRig(t, cfg)
			agents := r.joinAll("a", "b")
			r.toModel(agents[0])
			for _, a := range agents {
				a.committed()
			}
			digests := map[uint64]string{}
			for range 11 {
				c := r.round(agents, func(a *agent, g *coordinatorv1.Grant) ([]byte, float64) {
					return vector(t, p, a.site, g.GetRound(), 0.01), 1
				})
				digests[c.GetVersion()] = hex.EncodeToString(c.GetDigest())
			}
			dir := r.killed() // no snapshot is being written
			before := contents(t, dir)
			kept, err := r.store.Kept()
			if err != nil || len(kept) < 3 {
				t.Fatal(len(kept), err)
			}
			read := func(version *uint64) string {
				st, man, err := ReadModel(dir, version)
				if err != nil {
					t.Fatal(err)
				}
				defer st.Close()
				got := st.Digest()
				if man.Digest != hex.EncodeToString(got[:]) || version != nil && man.Version != *version {
					t.Errorf("version %d, digest %x: %s", man.Version, got, man.Digest)
				}
				return man.Digest
			}
			if got := read(nil); got != digests[11] {
				t.Errorf("the newest is %s, want %s", got, digests[11])
			}
			for _, man := range kept {
				if got := read(&man.Version); got != digests[man.Version] {
					t.Errorf("version %d is %s, want %s", man.Version, got, digests[man.Version])
				}
			}
			for _, v := range []uint64{1, 12} {
				if _, _, err := ReadModel(dir, &v); !errors.Is(err, checkpoint.ErrNotKept) {
					t.Errorf("version %d: %v", v, err)
				}
			}
			if !reflect.DeepEqual(before, contents(t, dir)) {
				t.Error("reading has changed the log")
			}
			if got := read(nil); got != r.statusDigest() {
				t.Errorf("the coordinator itself is at %s", r.statusDigest())
			}
		})
	}
}

func (r *rig) statusDigest() string { return hex.EncodeToString(r.status().GetDigest()) }

// What cannot be read is told of, and no half model comes.
func TestALogThatHoldsNoGoodModelGivesNone(t *testing.T) {
	t.Parallel()
	if _, _, err := ReadModel(t.TempDir(), nil); !errors.Is(err, checkpoint.ErrNotKept) || !strings.Contains(err.Error(), "no model yet") {
		t.Error(err)
	}
	if _, _, err := ReadModel(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	p := defaults(t, algorithm.DecoupledMomentum)
	r := newRig(t, testConfig(t.TempDir(), p, "a"))
	agents := r.joinAll("a")
	r.toModel(agents[0])
	agents[0].committed()
	for range 2 {
		r.round(agents, func(a *agent, g *coordinatorv1.Grant) ([]byte, float64) {
			return vector(t, p, "a", g.GetRound(), 0.01), 1
		})
	}
	dir := r.killed()
	deltas, err := filepath.Glob(filepath.Join(dir, "commits", "*", "delta.bin"))
	if err != nil || len(deltas) != 2 {
		t.Fatal(deltas, err)
	}
	slices.Sort(deltas)
	b, err := os.ReadFile(deltas[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x10
	if err := os.WriteFile(deltas[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if st, man, err := ReadModel(dir, nil); err == nil {
		st.Close()
		t.Errorf("version %d out of a damaged log", man.Version)
	}
}
