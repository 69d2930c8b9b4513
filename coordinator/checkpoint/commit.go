package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Commit is a version being written. Finish it or Abort it.
type Commit struct {
	s       *Store
	version uint64
	dir     string
	delta   *summed
	updates []UpdateFile
	err     error
	done    bool
}

// Begin starts to write a version, which must be the one after the newest.
// Nothing of it is visible until Finish.
func (s *Store) Begin(version uint64) (*Commit, error) {
	s.mu.Lock()
	err := s.mayMake(version, s.follows)
	s.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	dir, err := os.MkdirTemp(s.path(stagingDir), "commit-"+versionName(version)+"-")
	if err != nil {
		return nil, fmt.Errorf("checkpoint: version %d: %w", version, err)
	}
	c := &Commit{s: s, version: version, dir: dir}
	if c.delta, err = s.disk.createSummed(filepath.Join(dir, deltaFile)); err != nil {
		c.Abort()
		return nil, fmt.Errorf("checkpoint: version %d: %w", version, err)
	}
	return c, nil
}

// follows is called with mu held.
func (s *Store) follows(version uint64) error {
	switch {
	case s.newest == nil:
		return fmt.Errorf("version %d has nothing to build on: write the seed with WriteSnapshot first", version)
	case version != *s.newest+1:
		return fmt.Errorf("version %d does not follow the newest, %d", version, *s.newest)
	}
	return nil
}

// Delta takes the encoded merge. Its first error stays and fails Finish too.
func (c *Commit) Delta() io.Writer { return c.delta }

// AddUpdate archives the accepted payload of a member; a failure fails the
// commit.
func (c *Commit) AddUpdate(member string, r io.Reader) error {
	if c.err != nil {
		return c.err
	}
	if c.err = c.addUpdate(member, r); c.err != nil {
		c.err = fmt.Errorf("checkpoint: version %d, update of %s: %w", c.version, member, c.err)
	}
	return c.err
}

func (c *Commit) addUpdate(member string, r io.Reader) error {
	for _, u := range c.updates {
		if u.Member == member {
			return errors.New("added twice")
		}
	}
	if len(c.updates) == 0 {
		if err := c.s.disk.mkdir(filepath.Join(c.dir, updatesDir)); err != nil {
			return err
		}
	}
	sum, err := c.s.disk.writeFile(filepath.Join(c.dir, updatesDir, updateName(len(c.updates))), func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
	if err != nil {
		return err
	}
	c.updates = append(c.updates, UpdateFile{member, sum})
	return nil
}

func updateName(i int) string { return fmt.Sprintf("%04d.bin", i) }

// Finish makes the commit durable and visible, as one step: after an error it
// is not there. It fills in the manifest's version, term, kind and files. The
// error wraps ErrFenced when a newer coordinator has opened the store.
//
// One error is different: when the rename succeeded but syncing its folder
// failed, nobody can know what a loss of power would leave. The commit then
// counts as made for readers and for the next Begin, Finish says so, and the
// coordinator should stop without announcing it.
func (c *Commit) Finish(m Manifest) error {
	if c.done {
		return fmt.Errorf("checkpoint: version %d was already finished or aborted", c.version)
	}
	defer c.Abort() // removes what was not renamed
	if err := c.finish(m); err != nil {
		return fmt.Errorf("checkpoint: committing version %d: %w", c.version, err)
	}
	return nil
}

func (c *Commit) finish(m Manifest) error {
	if c.err != nil {
		return c.err
	}
	if m.Kind == "" {
		m.Kind = KindCommit
	}
	if m.Kind != KindCommit {
		return fmt.Errorf("kind is %q: what has no delta is written by WriteSnapshot or WriteRollback", m.Kind)
	}
	d := c.s.disk
	sum, err := c.delta.finish()
	c.delta = nil
	if err != nil {
		return err
	}
	if len(c.updates) > 0 {
		if err := d.syncDir(filepath.Join(c.dir, updatesDir)); err != nil {
			return err
		}
	}
	m.Version, m.Term = c.version, c.s.term
	m.DeltaBytes, m.DeltaCRC32C = sum.Bytes, sum.CRC32C
	m.Updates, m.State, m.Residual = c.updates, nil, nil
	if err := d.writeManifest(filepath.Join(c.dir, manifestFile), m); err != nil {
		return err
	}
	if err := d.syncDir(c.dir); err != nil {
		return err
	}
	return c.s.publish(c.dir, commitsDir, c.version, c.s.follows)
}

// publish renames a finished folder into place, if the store is still ours and
// allowed says that the version may appear.
func (s *Store) publish(dir, sub string, version uint64, allowed func(uint64) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayMake(version, allowed); err != nil {
		return err
	}
	// A folder that is already there, of a coordinator that flock did not keep
	// out, makes the rename fail.
	if err := s.disk.rename(dir, s.path(sub, versionName(version))); err != nil {
		return err
	}
	if s.newest == nil || version > *s.newest {
		s.newest = &version
	}
	if err := s.disk.syncDir(s.path(sub)); err != nil {
		return fmt.Errorf("written, but not known to survive a loss of power; stop, check the disk and restart: %w", err)
	}
	return nil
}

// Abort drops the commit. After Finish it does nothing.
func (c *Commit) Abort() {
	if c.done {
		return
	}
	c.done = true
	if c.delta != nil {
		c.delta.drop()
	}
	if err := c.s.disk.remove(c.dir); err != nil {
		c.s.log.Warn("staging folder stays until the next start", "dir", c.dir, "error", err)
	}
}
