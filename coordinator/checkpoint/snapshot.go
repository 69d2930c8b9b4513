package checkpoint

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// keepSnapshots is how many snapshots stay, so that one may be damaged.
const keepSnapshots = 2

// residualTensor is the one tensor of a residual file.
const residualTensor = "residual"

// WriteSnapshot writes the whole state of a version: the newest or an older one
// that is newer than the newest snapshot. m is that version's manifest; with
// KindSeed it starts the store. A nil residual is none. Writing the newest
// snapshot again does nothing.
//
// State and residual must not change until it returns; commits may go on
// meanwhile. Afterwards all but the two newest snapshots, and the commits up to
// the older one, are deleted, except what a version that is kept is made of.
// Errors are as for Finish; after one the old snapshots are still there.
func (s *Store) WriteSnapshot(version uint64, m Manifest, st *tensor.State, residual []float32) error {
	again, err := s.writeSnapshot(version, m, st, residual)
	if err != nil {
		return fmt.Errorf("checkpoint: snapshot of version %d: %w", version, err)
	}
	if again {
		return nil
	}
	if err := s.prune(); err != nil {
		return fmt.Errorf("checkpoint: snapshot of version %d is written; deleting older ones: %w", version, err)
	}
	return nil
}

func (s *Store) writeSnapshot(version uint64, m Manifest, st *tensor.State, residual []float32) (again bool, err error) {
	allowed := func(uint64) error { return s.snapshotFits(version, m.Kind) }
	s.mu.Lock()
	if err := s.mayWrite(); err != nil {
		s.mu.Unlock()
		return false, err
	}
	snapshots, err := s.versions(snapshotsDir)
	again = err == nil && len(snapshots) > 0 && snapshots[len(snapshots)-1] == version
	if err == nil && !again {
		err = allowed(version)
	}
	s.mu.Unlock()
	if err != nil {
		return false, err
	}
	m.Version = version
	layout, digest := st.Layout.Digest(), st.Digest()
	if m.LayoutDigest != hex.EncodeToString(layout[:]) || m.Digest != hex.EncodeToString(digest[:]) {
		return false, fmt.Errorf("the state has layout %x and digest %x, the manifest says %s and %s", layout, digest, m.LayoutDigest, m.Digest)
	}
	for _, v := range [][]float32{st.Theta, st.Momentum, st.Buffers, residual} {
		if i := kernel.Finite(v); i >= 0 {
			return false, fmt.Errorf("the state holds %g: it diverged; roll back to an earlier version", v[i])
		}
	}
	if again {
		old, err := s.manifest(snapshotsDir, version)
		if err == nil && old.Digest != m.Digest {
			err = fmt.Errorf("there is one already, with digest %s instead of %s", old.Digest, m.Digest)
		}
		return true, err
	}
	dir, err := os.MkdirTemp(s.path(stagingDir), "snapshot-"+versionName(version)+"-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.disk.remove(dir)) }()
	state, err := s.disk.writeFile(filepath.Join(dir, stateFile), func(w io.Writer) error {
		return tensor.SaveState(w, st, true)
	})
	if err != nil {
		return false, err
	}
	m.Term, m.State, m.Residual = s.term, &state, nil
	m.DeltaBytes, m.DeltaCRC32C, m.Updates = 0, 0, nil
	if residual != nil {
		sum, err := s.disk.writeFile(filepath.Join(dir, residualFile), func(w io.Writer) error {
			return tensor.SaveVectors(w, []string{residualTensor}, [][]float32{residual}, nil)
		})
		if err != nil {
			return false, err
		}
		m.Residual = &sum
	}
	if err := s.disk.writeManifest(filepath.Join(dir, manifestFile), m); err != nil {
		return false, err
	}
	if err := s.disk.syncDir(dir); err != nil {
		return false, err
	}
	return false, s.publish(dir, snapshotsDir, version, allowed)
}

// snapshotFits is called with mu held.
func (s *Store) snapshotFits(version uint64, kind string) error {
	snapshots, err := s.versions(snapshotsDir)
	if err != nil {
		return err
	}
	if n := len(snapshots); n > 0 && snapshots[n-1] >= version {
		return fmt.Errorf("there is one of version %d", snapshots[n-1])
	}
	switch {
	case s.newest == nil && kind == KindSeed:
		return nil
	case s.newest == nil:
		return errors.New("the store is empty: its first snapshot must be a seed")
	case kind == KindRollback && version == *s.newest+1:
		return nil
	case version > *s.newest:
		return fmt.Errorf("the newest version is %d", *s.newest)
	}
	return nil
}

// prune deletes what the two newest snapshots make unnecessary. Folders leave
// by a rename, so that none is ever seen half deleted; files that are open stay
// readable.
func (s *Store) prune() error {
	s.mu.Lock()
	trash, err := s.moveOld()
	s.mu.Unlock()
	for _, dir := range trash {
		err = errors.Join(err, s.disk.remove(dir))
	}
	return err
}

func (s *Store) moveOld() (trash []string, err error) {
	if err := s.mayWrite(); err != nil {
		return nil, err
	}
	snapshots, err := s.versions(snapshotsDir)
	if err != nil || len(snapshots) < keepSnapshots {
		return nil, err
	}
	older := snapshots[len(snapshots)-keepSnapshots]
	commits, err := s.versions(commitsDir)
	if err != nil {
		return nil, err
	}
	keep := s.needed(older, commits)
	move := func(sub string, versions []uint64) error {
		for _, v := range versions {
			if keep[folder{sub, v}] {
				continue
			}
			s.pruned++
			to := s.path(stagingDir, fmt.Sprintf("old-%s-%s-%d", sub, versionName(v), s.pruned))
			if err := s.disk.rename(s.path(sub, versionName(v)), to); err != nil {
				return err
			}
			trash = append(trash, to)
		}
		return s.disk.syncDir(s.path(sub))
	}
	// Snapshots first: commits below the oldest snapshot are merely useless,
	// a snapshot without its commits would look like a gap.
	if err := move(snapshotsDir, snapshots[:len(snapshots)-keepSnapshots]); err != nil {
		return trash, err
	}
	last, found := slices.BinarySearch(commits, older)
	if found {
		last++
	}
	if err := s.keepCounted(commits[:last]); err != nil {
		return trash, err
	}
	return trash, move(commitsDir, commits[:last])
}
