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

// Recovered is where a store stands. The state is that of the snapshot: apply
// the deltas of Commits in order, and compare digests.
type Recovered struct {
	// State of the snapshot, nil when the store is empty.
	State *tensor.State
	// Residual of the snapshot, of tensor.NewVector; nil when it has none.
	Residual []float32
	Snapshot Manifest
	// Commits after the snapshot, ascending and without gaps; their deltas have
	// been checked.
	Commits []Manifest
	// Damage names every file that was found damaged and did without.
	Damage []string

	damaged []damagedFolder
}

type damagedFolder struct {
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

func (r *Reader) recover() (Recovered, error) {
	snapshots, err := r.versions(snapshotsDir)
	if err != nil {
		return Recovered{}, err
	}
	commits, err := r.versions(commitsDir)
	if err != nil {
		return Recovered{}, err
	}
	if len(snapshots) == 0 && len(commits) == 0 {
		return Recovered{}, nil
	}
	var out Recovered
	for _, v := range slices.Backward(snapshots) {
		err := r.loadSnapshot(v, &out)
		if err == nil {
			break
		}
		out.Damage = append(out.Damage, fmt.Sprintf("snapshot of version %d: %v", v, err))
		out.damaged = append(out.damaged, damagedFolder{snapshotsDir, v})
	}
	if out.State == nil {
		return Recovered{}, fmt.Errorf("checkpoint: %s has no good snapshot; bring a copy back into %s, or start with an empty folder: %q",
			r.dir, r.path(snapshotsDir), out.Damage)
	}
	if err := r.collect(commits, &out); err != nil {
		out.Close()
		return Recovered{}, err
	}
	return out, nil
}

// collect checks the commits after the snapshot.
func (r *Reader) collect(commits []uint64, out *Recovered) error {
	first, found := slices.BinarySearch(commits, out.Snapshot.Version)
	if found {
		first++
	}
	commits = commits[first:]
	for i, v := range commits {
		if want := out.Latest().Version + 1; v != want {
			return fmt.Errorf("checkpoint: %s is missing, the next commit is %d: bring it back from a copy of the store, or move the later folders away to go on from version %d (damaged: %q)",
				r.path(commitsDir, versionName(want)), v, want-1, out.Damage)
		}
		m, err := r.checkCommit(v, out.Latest())
		if err == nil {
			out.Commits = append(out.Commits, m)
			continue
		}
		if i < len(commits)-1 {
			return fmt.Errorf("checkpoint: version %d is damaged, and %d commits follow it: %w: bring %s back from a copy of the store, or move it and the later folders away to go on from version %d",
				v, len(commits)-1-i, err, r.path(commitsDir, versionName(v)), v-1)
		}
		out.Damage = append(out.Damage, fmt.Sprintf("commit of version %d: %v", v, err))
		out.damaged = append(out.damaged, damagedFolder{commitsDir, v})
	}
	return nil
}

// checkCommit verifies a commit that follows before.
func (r *Reader) checkCommit(version uint64, before Manifest) (Manifest, error) {
	m, err := r.manifest(commitsDir, version)
	if err != nil {
		return Manifest{}, err
	}
	if m.Kind != KindCommit || m.LayoutDigest != before.LayoutDigest || m.Term < before.Term {
		return Manifest{}, fmt.Errorf("%s: a %s of term %d with layout %s does not follow version %d of term %d with layout %s",
			r.path(commitsDir, versionName(version), manifestFile), m.Kind, m.Term, m.LayoutDigest, before.Version, before.Term, before.LayoutDigest)
	}
	if err := r.checkSum(FileSum{m.DeltaBytes, m.DeltaCRC32C}, commitsDir, versionName(version), deltaFile); err != nil {
		return Manifest{}, err
	}
	return m, nil
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
