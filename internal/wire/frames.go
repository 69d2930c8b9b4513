package wire

import (
	"errors"
	"hash/crc32"
	"io"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Frames is a chunk whose payload still lies in the frames it came in: who knows where
// the bytes belong brings them there. It is received with RecvMsg, as PushFrames or
// PullFrames, on a stream that uses Codec, may be received into again and again, and
// must be released after each time; it cannot be sent.
type Frames struct {
	Offset uint64
	CRC32C uint32

	size  int
	parts [][]byte
	held  mem.BufferSlice
}

// PushFrames is a PushRequest.
type PushFrames struct {
	Header *coordinatorv1.PushHeader
	Frames
}

// PullFrames is a PullResponse.
type PullFrames struct {
	Header *coordinatorv1.PullHeader
	Frames
}

// Size of the payload in bytes.
func (f *Frames) Size() int { return f.size }

// Release gives the frames back. The payload is gone.
func (f *Frames) Release() {
	f.held.Free()
	clear(f.parts)
	f.held, f.parts, f.size = nil, f.parts[:0], 0
}

// sum is the payload's CRC32C.
func (f *Frames) sum() (crc uint32) {
	for _, p := range f.parts {
		crc = crc32.Update(crc, castagnoli, p)
	}
	return crc
}

// unmarshal reads the message of the frames, all but its header; ok says whether it is
// one that Girassol itself writes.
func (f *Frames) unmarshal(data mem.BufferSlice) (got fields, ok bool) {
	f.Release()
	got, ok = parse(data, func(c *cursor, n int) ([]byte, bool) {
		f.size = n
		for n > 0 && !c.empty() {
			k := min(n, len(c.frame))
			f.parts = append(f.parts, c.frame[:k])
			c.frame = c.frame[k:]
			n -= k
		}
		return nil, n == 0
	})
	if !ok {
		f.Release()
		return got, false
	}
	f.Offset, f.CRC32C = got.offset, got.crc
	if f.size > 0 {
		data.Ref()
		f.held = data
	}
	return got, true
}

// take is what only generated code can read.
func (f *Frames) take(m Chunk) {
	f.Offset, f.CRC32C, f.size = m.GetOffset(), m.GetCrc32C(), len(m.GetPayload())
	if f.size > 0 {
		f.parts = append(f.parts, m.GetPayload())
	}
}

func (f *PushFrames) unmarshal(data mem.BufferSlice) error {
	f.Header = nil
	got, ok := f.Frames.unmarshal(data)
	switch {
	case !ok:
		var m coordinatorv1.PushRequest
		b := data.Materialize()
		if why := excess(b); why != "" {
			return errors.New("wire: " + why)
		}
		if err := proto.Unmarshal(b, &m); err != nil {
			return err
		}
		f.Header = m.Header
		f.take(&m)
	case got.hasHeader:
		f.Header = new(coordinatorv1.PushHeader)
		if headerExcess(got.header) != "" {
			keepRaw(f.Header, got.header)
			return nil
		}
		return got.unmarshalHeader(f.Header)
	}
	return nil
}

func (f *PullFrames) unmarshal(data mem.BufferSlice) error {
	f.Header = nil
	got, ok := f.Frames.unmarshal(data)
	switch {
	case !ok:
		var m coordinatorv1.PullResponse
		if err := proto.Unmarshal(data.Materialize(), &m); err != nil {
			return err
		}
		f.Header = m.Header
		f.take(&m)
	case got.hasHeader:
		f.Header = new(coordinatorv1.PullHeader)
		return got.unmarshalHeader(f.Header)
	}
	return nil
}

// Appender keeps the pieces of a payload, one behind the other, after those kept so
// far. They are the caller's again when Append returns. Where it fails, nothing is
// kept.
type Appender interface {
	Append(pieces [][]byte) error
}

// AppendTo is an Appender that writes to w, of which a failing write may have taken a
// part: then there is no going on.
func AppendTo(w io.Writer) Appender { return writer{w} }

type writer struct{ io.Writer }

func (w writer) Append(pieces [][]byte) error {
	for _, p := range pieces {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
