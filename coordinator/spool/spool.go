// Package spool keeps uploads while they arrive: small ones in memory, big ones
// in a file, so that the coordinator's memory does not grow with the number of
// sites. An upload can be broken off and resumed.
//
// It must not know what the bytes mean.
package spool

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// MemoryLimit is the size up to which an upload stays in memory, in bytes.
const MemoryLimit = 4 << 20

// Spool is one upload. It is safe for concurrent use; only the newest attempt
// can append.
type Spool struct {
	size int64

	mu       sync.Mutex
	attempt  int
	received int64
	memory   []byte
	file     *os.File
	closed   bool
}

// New makes a spool for size bytes; a big one takes a nameless file in dir.
func New(dir string, size int64) (*Spool, error) {
	s := &Spool{size: size}
	if size <= MemoryLimit {
		return s, nil
	}
	f, err := os.CreateTemp(dir, "upload-*")
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	// The file lives as long as its descriptor: nothing to clean up after a crash.
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("spool: %w", err)
	}
	s.file = f
	return s, nil
}

// ErrSuperseded tells an older attempt that a newer one has taken over.
var ErrSuperseded = fmt.Errorf("spool: a newer attempt has taken over this upload")

// Attempt starts a new attempt at this upload. Older ones can no longer append.
// It returns the offset from which to go on.
func (s *Spool) Attempt() (attempt int, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt++
	return s.attempt, s.received
}

// Append adds bytes behind those received so far, and tells where.
func (s *Spool) Append(attempt int, p []byte) (at int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return 0, os.ErrClosed
	case attempt != s.attempt:
		return 0, ErrSuperseded
	case int64(len(p)) > s.size-s.received:
		return 0, fmt.Errorf("spool: more than the announced %d bytes", s.size)
	}
	at = s.received
	if s.file == nil {
		s.memory = append(s.memory, p...)
	} else if _, err := s.file.WriteAt(p, at); err != nil {
		return 0, fmt.Errorf("spool: %w", err)
	}
	s.received += int64(len(p))
	return at, nil
}

// Complete says that all bytes are there.
func (s *Spool) Complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received == s.size
}

// Size is the announced size in bytes.
func (s *Spool) Size() int64 { return s.size }

// ReadAt reads what was received; after Close it fails.
func (s *Spool) ReadAt(p []byte, off int64) (int, error) {
	if s.file != nil {
		return s.file.ReadAt(p, off)
	}
	s.mu.Lock()
	memory, closed := s.memory, s.closed
	s.mu.Unlock()
	if closed {
		return 0, os.ErrClosed
	}
	if off < 0 || off > int64(len(memory)) {
		return 0, io.EOF
	}
	n := copy(p, memory[off:])
	if n < len(p) {
		return n, io.EOF
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
	s.memory = nil
}
