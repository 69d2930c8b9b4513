package checkpoint

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"girassol.dev/internal/tensor"
)

// Recovered is where a store stands, or stood at an older version. The state is
// that of the snapshot: apply the deltas of Commits in order, and compare digests.
type Recovered struct {
	// State of the snapshot, nil when the store is empty.
	State *tensor.State
	// Residual of the snapshot, of tensor.NewVector; nil when it has none.
	Residual []float32
	Snapshot Manifest
	// Commits that lead from the snapshot to the version, in order; their deltas
	// have been checked. A KindRollback among them has the state that those before it
	// lead to, so that versions may be passed over there.
	Commits []Manifest
	// Damage names every file that was found damaged and did without.
	Damage []string

	damaged []folder
}

// folder of one version, under commits or snapshots.
type folder struct {
	sub     string
	version uint64
}

// Empty says that there is no model yet.
func (r Recovered) Empty() bool { return r.State == nil }

// Close frees state and residual, for who has not taken them over.
func (r Recovered) Close() {
	if r.State != nil {
		r.State.Close()
	}
	tensor.FreeVector(r.Residual)
}

// Latest is the manifest of the newest version.
func (r Recovered) Latest() Manifest {
	if n := len(r.Commits); n > 0 {
		return r.Commits[n-1]
	}
	return r.Snapshot
}

// Recover finds the newest good snapshot and the commits after it, checking
// every checksum. A damaged snapshot or last commit is set aside in the folder
// damaged, and reported; damage anywhere else is an error that says what to do.
// Call it before the first commit, when nothing else uses the store.
func (s *Store) Recover() (Recovered, error) {
	r, err := s.recoverNewest()
	if err != nil {
		return Recovered{}, err
	}
	if v := r.Snapshot.Version; r.Snapshot.Kind == KindRollback && !s.has(commitsDir, v) {
		// A crash came between the rollback's snapshot and its record.
		if err := s.recordRollback(r.Snapshot); err != nil {
			r.Close()
			return Recovered{}, fmt.Errorf("checkpoint: recording the rollback of version %d: %w", v, err)
		}
	}
	return r, nil
}

func (s *Store) recoverNewest() (Recovered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayWrite(); err != nil {
		return Recovered{}, fmt.Errorf("checkpoint: %w", err)
	}
	r, err := s.recover()
	if err != nil {
		return Recovered{}, err
	}
	if err := s.setAside(r); err != nil {
		r.Close()
		return Recovered{}, err
	}
	for _, d := range r.Damage {
		s.log.Warn("commit log damaged", "term", s.term, "damage", d)
	}
	return r, nil
}

func (s *Store) setAside(r Recovered) error {
	for _, d := range r.damaged {
		to := s.path(damagedDir, fmt.Sprintf("%s-%s-term-%d", d.sub, versionName(d.version), s.term))
		if err := s.disk.rename(s.path(d.sub, versionName(d.version)), to); err != nil {
			return fmt.Errorf("checkpoint: setting damaged version %d aside: %w", d.version, err)
		}
		if err := errors.Join(s.disk.syncDir(s.path(d.sub)), s.disk.syncDir(s.path(damagedDir))); err != nil {
			return fmt.Errorf("checkpoint: setting damaged version %d aside: %w", d.version, err)
		}
	}
	s.newest = nil
	return s.findNewest()
}

// ReadLatest is Recover without a lock and without changing anything: the model
// of a store whose coordinator has stopped.
func ReadLatest(dir string) (Recovered, error) {
	r, err := Read(dir)
	if err != nil {
		return Recovered{}, err
	}
	return r.Latest()
}

// Latest is Recover without changing anything, also while a coordinator writes.
func (r *Reader) Latest() (Recovered, error) {
	for {
		before, err := r.versions(snapshotsDir)
		if err != nil {
			return Recovered{}, err
		}
		out, err := r.recover()
		if err == nil && len(out.Damage) == 0 {
			return out, nil
		}
		after, listErr := r.versions(snapshotsDir)
		if listErr != nil || slices.Equal(before, after) {
			return out, err
		}
		// A coordinator has pruned what was being read.
		if err == nil {
			out.Close()
		}
	}
}

func (r *Reader) checkSum(want FileSum, parts ...string) error {
	f, err := r.openSized(want.Bytes, parts...)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := crc32.New(castagnoli)
	if _, err := io.CopyBuffer(h, io.NewSectionReader(f, 0, want.Bytes), make([]byte, 1<<20)); err != nil {
		return fmt.Errorf("checkpoint: reading %s: %w", r.path(parts...), err)
	}
	if h.Sum32() != want.CRC32C {
		return fmt.Errorf("checkpoint: %s has CRC-32C %08x, the manifest says %08x", r.path(parts...), h.Sum32(), want.CRC32C)
	}
	return nil
}

// loadSnapshot sets out's state, residual and snapshot.
func (r *Reader) loadSnapshot(version uint64, out *Recovered) error {
	m, err := r.manifest(snapshotsDir, version)
	if err != nil {
		return err
	}
	name := versionName(version)
	if m.State == nil {
		return fmt.Errorf("checkpoint: %s lists no state", r.path(snapshotsDir, name, manifestFile))
	}
	if err := r.checkSum(*m.State, snapshotsDir, name, stateFile); err != nil {
		return err
	}
	path := r.path(snapshotsDir, name, stateFile)
	state, err := loadState(path)
	if err != nil {
		return err
	}
	layout, digest := state.Layout.Digest(), state.Digest()
	if m.LayoutDigest != hex.EncodeToString(layout[:]) || m.Digest != hex.EncodeToString(digest[:]) {
		state.Close()
		return fmt.Errorf("checkpoint: %s has digest %x, its manifest says %s", path, digest, m.Digest)
	}
	var residual []float32
	if m.Residual != nil {
		if residual, err = r.loadResidual(*m.Residual, name); err != nil {
			state.Close()
			return err
		}
	}
	out.State, out.Residual, out.Snapshot = state, residual, m
	return nil
}

func loadState(path string) (_ *tensor.State, err error) {
	f, err := tensor.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	state, err := tensor.LoadState(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return state, nil
}

func (r *Reader) loadResidual(sum FileSum, name string) (_ []float32, err error) {
	if err := r.checkSum(sum, snapshotsDir, name, residualFile); err != nil {
		return nil, err
	}
	path := r.path(snapshotsDir, name, residualFile)
	f, err := tensor.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	specs := f.Specs()
	if len(specs) != 1 || specs[0].Name != residualTensor {
		return nil, fmt.Errorf("checkpoint: %s holds no single tensor %q", path, residualTensor)
	}
	v := tensor.NewVector(specs[0].Elements())
	if err := f.ReadFloats(residualTensor, v); err != nil {
		tensor.FreeVector(v)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}
