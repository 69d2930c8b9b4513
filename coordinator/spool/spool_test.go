package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// places are where uploads of a size may lie.
func places(t *testing.T, test func(t *testing.T, size int64, memory *Memory)) {
	for _, p := range []struct {
		name  string
		size  int64
		bound int64
	}{
		{"small, in memory", 1000, 1 << 20},
		{"in memory", 5<<20 + 1000, 8 << 20},
		{"in both", 5<<20 + 1000, 3 << 20},
		{"in a file", 5<<20 + 1000, 0},
	} {
		t.Run(p.name, func(t *testing.T) {
			m := NewMemory(p.bound)
			t.Cleanup(func() {
				m.Close()
				if total, used := m.Held(); total != 0 || used != 0 {
					t.Errorf("%d bytes stay, %d of them in use", total, used)
				}
			})
			test(t, p.size, m)
			if total, _ := m.Held(); total > p.bound {
				t.Errorf("holds %d bytes, may %d", total, p.bound)
			}
		})
	}
}

// add keeps p in pieces as frames are, of 16 KiB and less.
func add(w *Writer, p []byte) error {
	var pieces [][]byte
	want := p
	for len(p) > 0 {
		k := min(len(p), 16<<10-len(pieces)%2)
		pieces = append(pieces, p[:k])
		p = p[k:]
	}
	_, kept, err := w.Append(pieces)
	if got := bytes.Join(kept, nil); err == nil && !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes, of which other %d are shown", len(want), len(got))
	}
	return err
}

func noise(n int64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func filled(t *testing.T, size int64, m *Memory) *Spool {
	t.Helper()
	s := New(t.TempDir(), size, m)
	t.Cleanup(s.Close)
	w, _ := s.Attempt()
	if err := add(w, bytes.Repeat([]byte{7}, int(size))); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatWasKeptIsRead(t *testing.T) {
	places(t, func(t *testing.T, size int64, m *Memory) {
		want := noise(size)
		s := New(t.TempDir(), size, m)
		defer s.Close()
		w, _ := s.Attempt()
		rng := rand.New(rand.NewPCG(2, 3))
		for at := 0; at < len(want); {
			n := min(len(want)-at, 1+rng.IntN(1<<20))
			if err := add(w, want[at:at+n]); err != nil {
				t.Fatal(err)
			}
			at += n
			// A part of what is there, at random.
			from := rng.IntN(at)
			got := make([]byte, 1+rng.IntN(at-from))
			if k, err := s.ReadAt(got, int64(from)); err != nil || k != len(got) || !bytes.Equal(got, want[from:from+k]) {
				t.Fatalf("%d of %d bytes at %d: %v", k, len(got), from, err)
			}
		}
		got := make([]byte, size+1)
		if n, err := s.ReadAt(got, 0); !errors.Is(err, io.EOF) || int64(n) != size || !bytes.Equal(got[:n], want) {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if _, err := s.ReadAt(got, -1); err == nil {
			t.Fatal("read before the start")
		}
	})
}

// Bytes for which there is no room are as if they had not come; they can come again.
func TestAnAppendThatFailsKeepsNothing(t *testing.T) {
	places(t, func(t *testing.T, size int64, m *Memory) {
		dir := filepath.Join(t.TempDir(), "spool")
		s := New(dir, size, m) // no file can be made there yet
		defer s.Close()
		w, _ := s.Attempt()
		want := noise(size)
		first := add(w, want)
		if inMemory := s.InMemory() == size; inMemory != (first == nil) || s.Complete() != inMemory {
			t.Fatalf("%v, %d of %d bytes in memory, complete: %t", first, s.InMemory(), size, s.Complete())
		}
		if first != nil {
			if n, err := s.ReadAt(make([]byte, 1), 0); n != 0 || !errors.Is(err, io.EOF) {
				t.Fatalf("what failed was kept: %d bytes, %v", n, err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := add(w, want); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, size)
		if _, err := s.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) || !s.Complete() {
			t.Fatal(err, s.Complete())
		}
	})
}

// A round may end while an upload is still being checked.
func TestCloseWhileAnotherReads(t *testing.T) {
	places(t, func(t *testing.T, size int64, m *Memory) {
		s := filled(t, size, m)
		var wg sync.WaitGroup
		wg.Go(func() {
			b := make([]byte, 100)
			for {
				n, err := s.ReadAt(b, 50)
				if errors.Is(err, os.ErrClosed) {
					return
				}
				if err != nil || n != 100 || b[99] != 7 {
					t.Errorf("read %d bytes, %v", n, err)
					return
				}
			}
		})
		s.Close()
		wg.Wait()
	})
}

func TestOnlyTheNewestAttemptAppendsAndNotPastTheSize(t *testing.T) {
	places(t, func(t *testing.T, size int64, m *Memory) {
		s := New(t.TempDir(), size, m)
		t.Cleanup(s.Close)
		old, offset := s.Attempt()
		if err := add(old, []byte("abc")); err != nil || offset != 0 {
			t.Fatal(offset, err)
		}
		w, offset := s.Attempt()
		if offset != 3 || s.Complete() {
			t.Fatalf("goes on at %d", offset)
		}
		if err := add(old, []byte("d")); !errors.Is(err, ErrSuperseded) {
			t.Fatalf("an old attempt appends: %v", err)
		}
		if err := add(w, make([]byte, size-2)); err == nil {
			t.Fatal("more bytes than announced")
		}
		if err := add(w, make([]byte, size-3)); err != nil || !s.Complete() {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := s.ReadAt(got, 0); err != nil || string(got) != "abc\x00" {
			t.Fatalf("%q, %v", got, err)
		}
		if n, err := s.ReadAt(got, size-1); n != 1 || !errors.Is(err, io.EOF) {
			t.Fatal(n, err)
		}
		s.Close()
		if err := add(w, nil); !errors.Is(err, os.ErrClosed) {
			t.Fatalf("append after Close: %v", err)
		}
	})
}

func TestBigUploadLeavesNoFileBehind(t *testing.T) {
	dir := t.TempDir()
	s := New(dir, 1<<20, nil)
	defer s.Close()
	w, _ := s.Attempt()
	if err := add(w, make([]byte, 1<<20)); err != nil || s.InMemory() != 0 {
		t.Fatal(err, s.InMemory())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatalf("%v, %v: a crash would leave them for ever", left, err)
	}
}

// Uploads take what there is, in whatever order, and what one gives back the next one
// gets; no more is ever held than may be.
func TestMemoryIsSharedAndNeverMoreThanItsBound(t *testing.T) {
	const bound = 9<<20 + 100
	m := NewMemory(bound)
	dir := t.TempDir()
	var open []*Spool
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		size := int64(1 + rng.IntN(5<<20))
		s := New(dir, size, m)
		w, _ := s.Attempt()
		if err := add(w, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if open = append(open, s); len(open) > 6 {
			i := rng.IntN(len(open))
			open[i].Close()
			open = append(open[:i], open[i+1:]...)
		}
		var in int64
		for _, s := range open {
			in += s.InMemory()
		}
		if total, used := m.Held(); total > bound || used > total || used < in {
			t.Fatalf("%d bytes held, %d of them used for %d of uploads, may be %d", total, used, in, bound)
		}
	}
	for _, s := range open {
		s.Close()
	}
	s := filled(t, 8<<20, m)
	if s.InMemory() != 8<<20 {
		t.Errorf("%d bytes in memory that nobody else uses", s.InMemory())
	}
	m.Bound(1 << 20)
	if total, _ := m.Held(); total < 8<<20 {
		t.Error("taken from under an upload")
	}
	s.Close()
	if total, used := m.Held(); total != 0 || used != 0 {
		t.Errorf("%d bytes stay above a lower bound, %d used", total, used)
	}
}
