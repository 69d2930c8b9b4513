package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"

	"girassol.dev/internal/tensor"
)

// WriteRollback makes the state of an older version the newest one: m.Version,
// which must be the one after the newest. m.Rollback says where it came from. It
// is there as one step, by its snapshot; a record among the commits follows, by
// which it survives the snapshot's damage. State and residual must not change
// until it returns. The rest is as for WriteSnapshot.
//
// made says whether the version is visible: with an error the coordinator should
// stop, and the next start finds out what stays.
func (s *Store) WriteRollback(m Manifest, st *tensor.State, residual []float32) (made bool, err error) {
	m.Kind, m.Members = KindRollback, nil
	s.mu.Lock()
	err = s.follows(m.Version)
	s.mu.Unlock()
	if err != nil {
		return false, fmt.Errorf("checkpoint: rollback to version %d: %w", m.parent(), err)
	}
	if _, err = s.writeSnapshot(m.Version, m, st, residual); err == nil {
		err = s.recordRollback(m)
	}
	s.mu.Lock()
	made = s.newest != nil && *s.newest == m.Version
	s.mu.Unlock()
	if err != nil {
		return made, fmt.Errorf("checkpoint: rollback to version %d as version %d: %w", m.parent(), m.Version, err)
	}
	if err := s.prune(); err != nil {
		s.log.Warn("older versions stay until the next snapshot", "error", err)
	}
	return made, nil
}

// recordRollback notes the newest version, a rollback, among the commits.
func (s *Store) recordRollback(m Manifest) error {
	dir, err := os.MkdirTemp(s.path(stagingDir), "rollback-"+versionName(m.Version)+"-")
	if err != nil {
		return err
	}
	defer func() { _ = s.disk.remove(dir) }()
	m.Term, m.State, m.Residual = s.term, nil, nil
	m.DeltaBytes, m.DeltaCRC32C, m.Updates = 0, 0, nil
	if err := s.disk.writeManifest(filepath.Join(dir, manifestFile), m); err != nil {
		return err
	}
	if err := s.disk.syncDir(dir); err != nil {
		return err
	}
	return s.publish(dir, commitsDir, m.Version, func(v uint64) error {
		if s.newest == nil || *s.newest < v {
			return fmt.Errorf("there is no snapshot of version %d", v)
		}
		return nil
	})
}
