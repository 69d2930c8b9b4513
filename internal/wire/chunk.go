package wire

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
)

// ChunkSize is the most payload bytes of one message: 1 MiB, the best of what
// was measured, far below MaxMessage.
const ChunkSize = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C is the Castagnoli checksum of a chunk's payload.
func CRC32C(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// Chunk is a PushRequest or a PullResponse.
type Chunk interface {
	GetOffset() uint64
	GetCrc32C() uint32
	GetPayload() []byte
}

// PayloadError says why a transfer cannot go on. Reason is one of
// ChecksumMismatch, UnexpectedOffset, Truncated, TooLarge and Malformed.
type PayloadError struct {
	Reason  v1alpha1.Reason
	Message string
}

func (e *PayloadError) Error() string { return "payload: " + e.Message }

func payloadErrorf(r v1alpha1.Reason, format string, args ...any) error {
	return &PayloadError{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// SendPayload reads the bytes [from, size) of r and hands them to send in chunks
// of at most ChunkSize, in order, each with its offset and CRC32C. The buffers
// are SendPayload's own: the payload is good until send returns, and longer, as
// long as gRPC needs it, where send puts it as it is into a PushRequest or
// PullResponse of a stream that uses Codec.
//
// It stops at the first error of send and returns it as it is.
func SendPayload(send func(offset uint64, crc uint32, payload []byte) error, r io.ReaderAt, size, from int64) error {
	return sendPayload(size, from, func(n int) error {
		o := newOutgoing()
		defer o.release()
		crc, err := readChunk(r, o.block[:n], from, size)
		if err != nil {
			return err
		}
		err = send(uint64(from), crc, o.block[:n])
		from += int64(n)
		return err
	})
}

// sendPayload calls next for chunk after chunk of the bytes [from, size).
func sendPayload(size, from int64, next func(n int) error) error {
	if from < 0 || from > size {
		return payloadErrorf(v1alpha1.ReasonUnexpectedOffset, "cannot send from byte %d of %d", from, size)
	}
	for from < size {
		n := int(min(size-from, ChunkSize))
		if err := next(n); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

func readChunk(r io.ReaderAt, payload []byte, from, size int64) (crc uint32, err error) {
	if got, err := r.ReadAt(payload, from); got < len(payload) {
		if err == nil || errors.Is(err, io.EOF) {
			return 0, payloadErrorf(v1alpha1.ReasonTruncated, "the source ends at byte %d of %d", from+int64(got), size)
		}
		return 0, fmt.Errorf("payload: read byte %d of %d: %w", from, size, err)
	}
	return CRC32C(payload), nil
}

// Receiver takes the chunks of one payload in order and passes their bytes on. Its
// zero value is of no use; see NewReceiver and NewFrameReceiver.
type Receiver struct {
	w            io.Writer
	appender     Appender
	offset, size int64
}

// NewReceiver returns a Receiver for the bytes [from, size). w gets the first of
// them at its current position. The caller has checked that it wants so many.
func NewReceiver(w io.Writer, size, from int64) *Receiver {
	return &Receiver{w: w, offset: from, size: size}
}

// NewFrameReceiver is NewReceiver for who receives PushFrames or PullFrames.
func NewFrameReceiver(a Appender, size, from int64) *Receiver {
	return &Receiver{appender: a, offset: from, size: size}
}

// Offset is the byte at which the next chunk starts, where a broken transfer
// resumes.
func (r *Receiver) Offset() int64 { return r.offset }

// Complete says whether all bytes have arrived.
func (r *Receiver) Complete() bool { return r.offset >= r.size }

// Take checks a chunk, writes its payload and releases it. A chunk that fails a
// check, a *PayloadError, leaves w and the offset as they were.
func (r *Receiver) Take(c Chunk) error {
	defer Release(c)
	p := c.GetPayload()
	if err := r.fits(c.GetOffset(), len(p)); err != nil {
		return err
	}
	if err := r.matches(CRC32C(p), c.GetCrc32C()); err != nil {
		return err
	}
	n, err := r.w.Write(p)
	r.offset += int64(n)
	return r.kept(err)
}

// TakeFrames is Take of a chunk in its frames.
func (r *Receiver) TakeFrames(f *Frames) error {
	defer f.Release()
	if err := r.fits(f.Offset, f.size); err != nil {
		return err
	}
	if err := r.matches(f.sum(), f.CRC32C); err != nil {
		return err
	}
	err := r.appender.Append(f.parts)
	if err == nil {
		r.offset += int64(f.size)
	}
	return r.kept(err)
}

func (r *Receiver) fits(offset uint64, n int) error {
	switch {
	case n == 0:
		return payloadErrorf(v1alpha1.ReasonMalformed, "empty chunk at byte %d of %d", r.offset, r.size)
	case n > ChunkSize:
		return payloadErrorf(v1alpha1.ReasonTooLarge, "chunk of %d bytes, at most %d are allowed", n, ChunkSize)
	case offset != uint64(r.offset):
		return payloadErrorf(v1alpha1.ReasonUnexpectedOffset, "chunk at byte %d, want byte %d of %d", offset, r.offset, r.size)
	case int64(n) > r.size-r.offset:
		return payloadErrorf(v1alpha1.ReasonTooLarge, "chunk of %d bytes at byte %d goes past the end at byte %d", n, r.offset, r.size)
	}
	return nil
}

func (r *Receiver) matches(got, want uint32) error {
	if got != want {
		return payloadErrorf(v1alpha1.ReasonChecksumMismatch, "CRC32C %08x of the chunk at byte %d, its sender computed %08x", got, r.offset, want)
	}
	return nil
}

func (r *Receiver) kept(err error) error {
	if err != nil {
		return fmt.Errorf("payload: write byte %d of %d: %w", r.offset, r.size, err)
	}
	return nil
}

// Finish is to be called when the sender has ended: it fails with Truncated when
// bytes are missing.
func (r *Receiver) Finish() error {
	if !r.Complete() {
		return payloadErrorf(v1alpha1.ReasonTruncated, "ended at byte %d of %d", r.offset, r.size)
	}
	return nil
}

// Release gives a received message's payload back to the pool and unsets it.
// Nothing else may refer to the payload any more. It is optional, harmless on
// payloads that are not pooled, and for messages received through Codec only.
func Release(c Chunk) {
	switch m := c.(type) {
	case *coordinatorv1.PushRequest:
		if m != nil {
			releasePayload(m.Payload)
			m.Payload = nil
		}
	case *coordinatorv1.PullResponse:
		if m != nil {
			releasePayload(m.Payload)
			m.Payload = nil
		}
	}
}
