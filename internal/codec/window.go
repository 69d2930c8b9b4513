package codec

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"girassol.dev/api/federation/v1alpha1"
)

// scratch is the memory of one pass over a payload.
type scratch struct {
	raw [256 << 10]byte
	val [32 << 10]float32
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// window reads a payload forward through a small buffer.
type window struct {
	r    io.ReaderAt
	size int64 // of the payload
	at   int64 // payload offset of the next byte
	end  int64 // where the part being read ends
	buf  []byte
	lo   int // buf[lo:hi] are the bytes from at on
	hi   int
}

// peek shows the next n bytes, fewer only where the part ends. n is at most the
// buffer's length.
func (w *window) peek(n int) ([]byte, error) {
	n = int(min(int64(n), w.end-w.at))
	if w.hi-w.lo < n {
		w.hi = copy(w.buf, w.buf[w.lo:w.hi])
		w.lo = 0
		more := int(min(int64(len(w.buf)-w.hi), w.size-w.at-int64(w.hi)))
		got, err := w.r.ReadAt(w.buf[w.hi:w.hi+more], w.at+int64(w.hi))
		w.hi += got
		if w.hi < n {
			return nil, readError(err, w.at+int64(w.hi), w.size)
		}
	}
	return w.buf[w.lo : w.lo+n], nil
}

func (w *window) skip(n int) {
	w.lo += n
	w.at += int64(n)
}

// seek goes to the part [at, end).
func (w *window) seek(at, end int64) {
	if d := at - w.at; d >= 0 && d <= int64(w.hi-w.lo) {
		w.lo += int(d)
	} else {
		w.lo, w.hi = 0, 0
	}
	w.at, w.end = at, end
}

func readError(err error, at, size int64) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault(v1alpha1.ReasonTruncated, "", "%d of %d bytes are there", at, size)
	}
	return fmt.Errorf("codec: read payload at %d: %w", at, err)
}
