// Package spool keeps uploads while they arrive: in memory that all of them share
// and that has a bound, and what does not fit there in files, so that the
// coordinator's memory does not grow with the number of sites. An upload can be
// broken off and resumed.
//
// It must not know what the bytes mean.
package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"girassol.dev/internal/vectored"
)

// Spool is one upload. It is safe for concurrent use; only the newest attempt can
// append.
type Spool struct {
	dir    string
	size   int64
	memory *Memory

	mu       sync.RWMutex
	attempt  int
	received int64
	// blocks of Block bytes each, from the start: nil where the file has the bytes.
	blocks [][]byte
	file   *os.File // nil until something did not fit into memory
	closed bool
}

// New makes a spool for size bytes. What memory has no room for goes to a nameless
// file in dir; with a nil memory everything does.
func New(dir string, size int64, memory *Memory) *Spool {
	return &Spool{dir: dir, size: size, memory: memory}
}

// ErrSuperseded tells an older attempt that a newer one has taken over.
var ErrSuperseded = errors.New("spool: a newer attempt has taken over this upload")

// Writer is an attempt at an upload. It is for one goroutine.
type Writer struct {
	s       *Spool
	attempt int
	// kept and toFile are of the Append at work.
	kept, toFile [][]byte
}

// Attempt starts a new attempt at this upload. Older ones can no longer append.
// It returns the offset from which to go on.
func (s *Spool) Attempt() (w *Writer, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt++
	return &Writer{s: s, attempt: s.attempt}, s.received
}

// Append keeps the pieces, one behind the other, after the bytes received so far, and
// tells where, and in which pieces they lie now: until the next Append, until the spool
// is closed or, those that went to the file, for as long as the caller's own do. Where
// it fails, nothing is kept.
func (w *Writer) Append(pieces [][]byte) (at int64, kept [][]byte, err error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(0)
	for _, p := range pieces {
		n += int64(len(p))
	}
	switch {
	case s.closed:
		return 0, nil, os.ErrClosed
	case w.attempt != s.attempt:
		return 0, nil, ErrSuperseded
	case n > s.size-s.received:
		return 0, nil, fmt.Errorf("spool: more than the announced %d bytes", s.size)
	}
	if err := w.keep(pieces); err != nil {
		return 0, nil, err
	}
	at = s.received
	s.received += n
	return at, w.kept, nil
}

// keep copies what has a place in memory there and writes the rest to the file,
// neighbours with one call. The spool's lock is held.
func (w *Writer) keep(pieces [][]byte) error {
	s := w.s
	w.kept, w.toFile = w.kept[:0], w.toFile[:0]
	defer func() { clear(w.toFile) }()
	at := s.received
	from := at // of what goes to the file
	for _, p := range pieces {
		for len(p) > 0 {
			i, into := int(at/Block), int(at%Block)
			if i == len(s.blocks) {
				s.blocks = append(s.blocks, s.memory.take(min(Block, s.size-at)))
			}
			k := min(len(p), Block-into)
			if b := s.blocks[i]; b != nil {
				if err := s.write(w.toFile, from); err != nil {
					return err
				}
				w.toFile, from = w.toFile[:0], at+int64(k)
				w.kept = append(w.kept, b[into:into+copy(b[into:], p[:k])])
			} else {
				w.toFile = append(w.toFile, p[:k])
				w.kept = append(w.kept, p[:k])
			}
			p, at = p[k:], at+int64(k)
		}
	}
	return s.write(w.toFile, from)
}

func (s *Spool) write(pieces [][]byte, at int64) error {
	if len(pieces) == 0 {
		return nil
	}
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "upload-*")
		if err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		// The file lives as long as its descriptor: nothing to clean up after a crash.
		if err := os.Remove(f.Name()); err != nil {
			_ = f.Close()
			return fmt.Errorf("spool: %w", err)
		}
		s.file = f
	}
	if err := vectored.WriteAt(s.file, pieces, at); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// Complete says that all bytes are there.
func (s *Spool) Complete() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.received == s.size
}

// Size is the announced size in bytes.
func (s *Spool) Size() int64 { return s.size }

// InMemory is how many of the received bytes are held in memory.
func (s *Spool) InMemory() (n int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i, b := range s.blocks {
		if b != nil {
			n += max(0, min(Block, s.received-int64(i)*Block))
		}
	}
	return n
}

// ReadAt reads what was received; after Close it fails.
func (s *Spool) ReadAt(p []byte, off int64) (n int, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return 0, os.ErrClosed
	}
	if off < 0 {
		return 0, fmt.Errorf("spool: read at byte %d", off)
	}
	for n < len(p) {
		at := off + int64(n)
		if at >= s.received {
			return n, io.EOF
		}
		i := int(at / Block)
		b := s.blocks[i]
		if b != nil {
			n += copy(p[n:], b[at%Block:min(Block, s.received-int64(i)*Block)])
			continue
		}
		// As far as the file goes on.
		to := i + 1
		for to < len(s.blocks) && s.blocks[to] == nil && int64(to)*Block < off+int64(len(p)) {
			to++
		}
		end := min(int64(to)*Block, s.received, off+int64(len(p)))
		k, err := s.file.ReadAt(p[n:n+int(end-at)], at)
		n += k
		if err != nil {
			return n, fmt.Errorf("spool: %w", err)
		}
	}
	return n, nil
}

// Close frees the upload. The disk space of a big one may come back a little
// later: that takes tens of milliseconds, more than whoever ends a round has for
// each of its uploads.
func (s *Spool) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	if s.file != nil {
		go func() { _ = s.file.Close() }()
	}
	for _, b := range s.blocks {
		s.memory.give(b)
	}
	s.blocks = nil
}
