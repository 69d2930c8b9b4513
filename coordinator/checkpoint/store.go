package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// ErrFenced says that a newer coordinator has taken over the store: this one
// must stop, and nothing it was about to commit exists.
var ErrFenced = errors.New("a newer coordinator has taken over the store")

// ErrClosed says that the store was closed.
var ErrClosed = errors.New("the commit log is closed")

// HeldError says that another coordinator has the store open.
type HeldError struct {
	Dir string
	// Holder is what the other one wrote about itself.
	Holder string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("checkpoint: store %s is held by %s: stop that coordinator, or give this one another folder", e.Dir, e.Holder)
}

// Store is the commit log, open for writing by one coordinator. Its methods may
// be used by several goroutines at once; a Commit belongs to one.
type Store struct {
	*Reader
	log  *slog.Logger
	disk disk
	term uint64
	lock *os.File

	mu     sync.Mutex // guards what follows, and every rename
	closed bool
	newest *uint64 // version; nil while the store is empty
	pruned uint64  // folders moved to staging, for their names

	pinned atomic.Pointer[uint64] // version that is not pruned; nil for none
}

const (
	commitsDir   = "commits"
	snapshotsDir = "snapshots"
	stagingDir   = "staging"
	damagedDir   = "damaged"
	updatesDir   = "updates"

	manifestFile = "manifest.json"
	deltaFile    = "delta.bin"
	stateFile    = "state.safetensors"
	residualFile = "residual.safetensors"
	termFile     = "TERM"
	lockFile     = "LOCK"
)

// Open opens the store in dir, which is made when it is missing, and starts a
// new term, which fences coordinators of older ones. While it is open nobody
// else can open it: a HeldError names the holder. Close it.
func Open(dir string, log *slog.Logger) (*Store, error) { return open(dir, log, realDisk) }

func open(dir string, log *slog.Logger, d disk) (_ *Store, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	lock, err := acquire(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{Reader: &Reader{dir: dir}, log: log, disk: d, lock: lock}
	defer func() {
		if err != nil {
			_ = release(lock)
		}
	}()
	if err := os.RemoveAll(s.path(stagingDir)); err != nil {
		return nil, fmt.Errorf("checkpoint: emptying %s: %w", s.path(stagingDir), err)
	}
	for _, sub := range []string{commitsDir, snapshotsDir, stagingDir, damagedDir} {
		if err := os.MkdirAll(s.path(sub), 0o755); err != nil {
			return nil, fmt.Errorf("checkpoint: %w", err)
		}
	}
	if err := s.findNewest(); err != nil {
		return nil, err
	}
	if err := s.startTerm(); err != nil {
		return nil, err
	}
	log.Info("commit log open", "dir", dir, "term", s.term)
	return s, nil
}

func (s *Store) findNewest() error {
	for _, sub := range []string{commitsDir, snapshotsDir} {
		versions, err := s.versions(sub)
		if err != nil {
			return err
		}
		if n := len(versions); n > 0 && (s.newest == nil || versions[n-1] > *s.newest) {
			s.newest = &versions[n-1]
		}
	}
	return nil
}

// startTerm writes the next term. Terms never go back, also when TERM was lost:
// the newest manifests know theirs.
func (s *Store) startTerm() error {
	last, err := s.diskTerm()
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, sub := range []string{commitsDir, snapshotsDir} {
		versions, err := s.versions(sub)
		if err != nil {
			return err
		}
		if n := len(versions); n > 0 {
			// A damaged manifest is Recover's business.
			m, err := s.manifest(sub, versions[n-1])
			if errors.Is(err, ErrDigestForm) {
				return err
			}
			if err == nil {
				last = max(last, m.Term)
			}
		}
	}
	s.term = last + 1
	if err := writeTerm(s.dir, s.term); err != nil {
		return fmt.Errorf("checkpoint: starting term %d: %w", s.term, err)
	}
	return nil
}

// Term is this opening of the store, from 1, greater than every one before.
func (s *Store) Term() uint64 { return s.term }

// Close lets others open the store. Commits in flight can no longer finish.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if err := release(s.lock); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// mayMake says whether version may be made now, as far as the store is concerned
// and as far as allowed is. It is called with mu held, before anything becomes
// visible.
func (s *Store) mayMake(version uint64, allowed func(uint64) error) error {
	if err := s.mayWrite(); err != nil {
		return err
	}
	return allowed(version)
}

func (s *Store) mayWrite() error {
	if s.closed {
		return ErrClosed
	}
	term, err := s.diskTerm()
	switch {
	case err != nil:
		return err
	case term > s.term:
		return fmt.Errorf("%w: %s has term %d, this one is %d", ErrFenced, s.path(termFile), term, s.term)
	case term < s.term:
		return fmt.Errorf("%s has term %d, older than ours, %d: the store was replaced under this coordinator; restart it", s.path(termFile), term, s.term)
	}
	return nil
}

// diskTerm reads TERM; 0 when there is none yet.
func (s *Store) diskTerm() (uint64, error) {
	path := s.path(termFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	term, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %.40q, want a number: if no coordinator runs on this store, delete the file", path, b)
	}
	return term, nil
}

func (r *Reader) path(parts ...string) string {
	return filepath.Join(append([]string{r.dir}, parts...)...)
}

func versionName(v uint64) string { return fmt.Sprintf("%012d", v) }
