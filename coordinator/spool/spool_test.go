package spool

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
)

func sizes() map[string]int64 {
	return map[string]int64{"in memory": 1000, "in a file": MemoryLimit + 1000}
}

func filled(t *testing.T, size int64) *Spool {
	t.Helper()
	s, err := New(t.TempDir(), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	attempt, _ := s.Attempt()
	if _, err := s.Append(attempt, bytes.Repeat([]byte{7}, int(size))); err != nil {
		t.Fatal(err)
	}
	return s
}

// A round may end while an upload is still being checked.
func TestCloseWhileAnotherReads(t *testing.T) {
	for name, size := range sizes() {
		t.Run(name, func(t *testing.T) {
			s := filled(t, size)
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
}

func TestOnlyTheNewestAttemptAppendsAndNotPastTheSize(t *testing.T) {
	for name, size := range sizes() {
		t.Run(name, func(t *testing.T) {
			s, err := New(t.TempDir(), size)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			old, offset := s.Attempt()
			if _, err := s.Append(old, []byte("abc")); err != nil || offset != 0 {
				t.Fatal(offset, err)
			}
			attempt, offset := s.Attempt()
			if offset != 3 || s.Complete() {
				t.Fatalf("goes on at %d", offset)
			}
			if _, err := s.Append(old, []byte("d")); !errors.Is(err, ErrSuperseded) {
				t.Fatalf("an old attempt appends: %v", err)
			}
			if _, err := s.Append(attempt, make([]byte, size-2)); err == nil {
				t.Fatal("more bytes than announced")
			}
			if _, err := s.Append(attempt, make([]byte, size-3)); err != nil || !s.Complete() {
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
			if _, err := s.Append(attempt, nil); !errors.Is(err, os.ErrClosed) {
				t.Fatalf("append after Close: %v", err)
			}
		})
	}
}

func TestBigUploadLeavesNoFileBehind(t *testing.T) {
	dir := t.TempDir()
	s, err := New(dir, MemoryLimit+1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatalf("%v, %v: a crash would leave them for ever", left, err)
	}
}
