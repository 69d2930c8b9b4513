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
	scratch []byte
	pieces  [][]byte
}

// Attempt starts a new attempt at this upload. Older ones can no longer append.
// It returns the offset from which to go on.
func (s *Spool) Attempt() (w *Writer, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt++
	return &Writer{s: s, attempt: s.attempt}, s.received
}

// Fill keeps the n bytes that fill writes into the pieces it is given, behind those
// received so far, and tells where. They lie in the pieces until the next Fill or
// until the spool is closed. Where fill fails, nothing is kept.
func (w *Writer) Fill(n int, fill func(pieces [][]byte) error) (at int64, pieces [][]byte, err error) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return 0, nil, os.ErrClosed
	case w.attempt != s.attempt:
		return 0, nil, ErrSuperseded
	case int64(n) > s.size-s.received:
		return 0, nil, fmt.Errorf("spool: more than the announced %d bytes", s.size)
	}
	w.lay(n)
	if err := fill(w.pieces); err != nil {
		return 0, nil, err
	}
	at = s.received
	if err := s.spill(at, w.pieces); err != nil {
		return 0, nil, err
	}
	s.received += int64(n)
	return at, w.pieces, nil
}

// lay finds places for the next n bytes, of one block each: in memory, or in the
// scratch, from where they go to the file. The spool's lock is held.
func (w *Writer) lay(n int) {
	s := w.s
	w.pieces = w.pieces[:0]
	scratch := w.scratch
	for at := s.received; n > 0; {
		i, from := int(at/Block), int(at%Block)
		k := min(n, Block-from)
		if i == len(s.blocks) {
			s.blocks = append(s.blocks, s.memory.take(min(Block, s.size-at)))
		}
		if b := s.blocks[i]; b != nil {
			w.pieces = append(w.pieces, b[from:from+k])
		} else {
			if len(scratch) < k {
				scratch = make([]byte, max(k, min(n, 4*Block)))
				w.scratch = scratch
			}
			w.pieces = append(w.pieces, scratch[:k])
			scratch = scratch[k:]
		}
		at += int64(k)
		n -= k
	}
}

// spill writes the pieces that have no place in memory to the file, neighbours with
// one call. The lock is held.
func (s *Spool) spill(at int64, pieces [][]byte) error {
	for len(pieces) > 0 {
		p := pieces[0]
		pieces = pieces[1:]
		i := at / Block
		if s.blocks[i] == nil {
			for len(pieces) > 0 && s.blocks[(at+int64(len(p)))/Block] == nil && adjacent(p, pieces[0]) {
				p = p[:len(p)+len(pieces[0])]
				pieces = pieces[1:]
			}
			if err := s.writeAt(p, at); err != nil {
				return err
			}
		}
		at += int64(len(p))
	}
	return nil
}

func (s *Spool) writeAt(p []byte, at int64) error {
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
	if _, err := s.file.WriteAt(p, at); err != nil {
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
