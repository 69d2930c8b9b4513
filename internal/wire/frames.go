package wire

import (
	"errors"
	"hash/crc32"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// PushFrames is a PushRequest whose payload still lies in the frames it came in: who
// knows where the bytes belong copies them there, once. It is received with RecvMsg
// on a stream that uses Codec, may be received into again and again, and must be
// released after each time; it cannot be sent.
type PushFrames struct {
	Header *coordinatorv1.PushHeader
	Offset uint64
	CRC32C uint32

	size  int
	parts [][]byte
	held  mem.BufferSlice
}

// Size of the payload in bytes.
func (f *PushFrames) Size() int { return f.size }

// Release gives the frames back. The payload is gone.
func (f *PushFrames) Release() {
	f.held.Free()
	clear(f.parts)
	f.held, f.parts, f.size = nil, f.parts[:0], 0
}

// copyTo fills the pieces, which are as long as the payload together, and sums them
// while they are in cache.
func (f *PushFrames) copyTo(pieces [][]byte) (crc uint32) {
	parts := f.parts
	var part []byte
	for _, p := range pieces {
		for len(p) > 0 {
			if len(part) == 0 {
				part, parts = parts[0], parts[1:]
			}
			n := copy(p, part)
			crc = crc32.Update(crc, castagnoli, p[:n])
			p, part = p[n:], part[n:]
		}
	}
	return crc
}

// unmarshal reads the message of the frames.
func (f *PushFrames) unmarshal(data mem.BufferSlice) error {
	f.Release()
	f.Header = nil
	got, ok := parse(data, func(c *cursor, n int) ([]byte, bool) {
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
		return f.generated(data)
	}
	f.Offset, f.CRC32C = got.offset, got.crc
	if f.size > 0 {
		data.Ref()
		f.held = data
	}
	if got.hasHeader {
		f.Header = new(coordinatorv1.PushHeader)
		if headerExcess(got.header) != "" {
			keepRaw(f.Header, got.header)
			return nil
		}
		return got.unmarshalHeader(f.Header)
	}
	return nil
}

// generated reads what only generated code can.
func (f *PushFrames) generated(data mem.BufferSlice) error {
	f.Release()
	var m coordinatorv1.PushRequest
	b := data.Materialize()
	if why := excess(b); why != "" {
		return errors.New("wire: " + why)
	}
	if err := proto.Unmarshal(b, &m); err != nil {
		return err
	}
	f.Header, f.Offset, f.CRC32C, f.size = m.Header, m.Offset, m.Crc32C, len(m.Payload)
	if f.size > 0 {
		f.parts = append(f.parts, m.Payload)
	}
	return nil
}

// Filler keeps the next n bytes of a payload: those that fill writes into the pieces,
// which are n bytes together. Where fill fails, nothing is kept.
type Filler interface {
	Fill(n int, fill func(pieces [][]byte) error) error
}
