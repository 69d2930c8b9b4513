package wire

import (
	"encoding/binary"
	"math"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Tags of the fields that PushRequest and PullResponse have in common.
const (
	tagHeader  = 1<<3 | uint64(protowire.BytesType)
	tagOffset  = 2<<3 | uint64(protowire.VarintType)
	tagCRC     = 3<<3 | uint64(protowire.Fixed32Type)
	tagPayload = 15<<3 | uint64(protowire.BytesType)
)

// smallPayload is the size in bytes below which copying is cheaper than keeping
// a pooled buffer.
const smallPayload = 4 << 10

// Codec returns the gRPC codec of both services. What it writes and reads is
// protobuf, byte for byte, so that its peer may use generated code; only the
// way to it differs. PushRequest and PullResponse are encoded by hand:
//
//   - Sending: a payload handed out by SendPayload goes to the socket by
//     reference and returns to its pool once written. Any other payload is copied
//     once, so that its owner may reuse it when Send returns, as with generated
//     code.
//   - Receiving: the payload is copied once, out of the HTTP/2 frames into a
//     pooled buffer that belongs to the receiver. Release gives it back; a
//     payload that is not released is left to the garbage collector. PushFrames
//     and PullFrames leave it in the frames.
//
// All other messages go through the registered protobuf codec.
func Codec() encoding.CodecV2 { return codec{generated: encoding.GetCodecV2(grpcproto.Name)} }

type codec struct{ generated encoding.CodecV2 }

func (codec) Name() string { return grpcproto.Name }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *coordinatorv1.PushRequest:
		if m == nil {
			break
		}
		var header proto.Message
		if m.Header != nil {
			header = m.Header
		}
		return marshal(header, m.Offset, m.Crc32C, m.Payload, m.ProtoReflect().GetUnknown())
	case *coordinatorv1.PullResponse:
		if m == nil {
			break
		}
		var header proto.Message
		if m.Header != nil {
			header = m.Header
		}
		return marshal(header, m.Offset, m.Crc32C, m.Payload, m.ProtoReflect().GetUnknown())
	}
	return c.generated.Marshal(v)
}

func marshal(header proto.Message, offset uint64, crc uint32, payload, unknown []byte) (mem.BufferSlice, error) {
	headerSize := 0
	if header != nil {
		headerSize = proto.Size(header)
	}
	// 40 bytes hold the tags, both lengths, the offset and the CRC.
	head := make([]byte, 0, headerSize+40)
	if header != nil {
		head = protowire.AppendVarint(head, tagHeader)
		head = protowire.AppendVarint(head, uint64(headerSize))
		var err error
		if head, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(head, header); err != nil {
			return nil, err
		}
	}
	if offset != 0 {
		head = protowire.AppendVarint(head, tagOffset)
		head = protowire.AppendVarint(head, offset)
	}
	if crc != 0 {
		head = protowire.AppendVarint(head, tagCRC)
		head = protowire.AppendFixed32(head, crc)
	}
	if len(payload) > 0 {
		head = protowire.AppendVarint(head, tagPayload)
		head = protowire.AppendVarint(head, uint64(len(payload)))
	}
	if len(payload) < smallPayload {
		head = append(head, payload...)
		return mem.BufferSlice{mem.SliceBuffer(append(head, unknown...))}, nil
	}
	out := mem.BufferSlice{mem.SliceBuffer(head), payloadBuffer(payload)}
	if len(unknown) > 0 {
		out = append(out, mem.SliceBuffer(unknown))
	}
	return out, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *PushFrames:
		return m.unmarshal(data)
	case *PullFrames:
		return m.unmarshal(data)
	case *coordinatorv1.SessionRequest:
		if data.Len() > MaxSessionMessage {
			keepRaw(m, data.Materialize())
			return nil
		}
	case *coordinatorv1.PushRequest:
		f, ok := parse(data, copyPayload)
		if !ok {
			if b := data.Materialize(); excess(b) != "" {
				keepRaw(m, b)
				return nil
			}
			break
		}
		m.Reset()
		m.Offset, m.Crc32C, m.Payload = f.offset, f.crc, f.payload
		if f.hasHeader {
			m.Header = new(coordinatorv1.PushHeader)
			if headerExcess(f.header) != "" {
				keepRaw(m.Header, f.header)
				return nil
			}
			return f.unmarshalHeader(m.Header)
		}
		return nil
	case *coordinatorv1.PullResponse:
		f, ok := parse(data, copyPayload)
		if !ok {
			break
		}
		m.Reset()
		m.Offset, m.Crc32C, m.Payload = f.offset, f.crc, f.payload
		if f.hasHeader {
			m.Header = new(coordinatorv1.PullHeader)
			return f.unmarshalHeader(m.Header)
		}
		return nil
	}
	return c.generated.Unmarshal(data, v)
}

// fields of a PushRequest or PullResponse.
type fields struct {
	header    []byte
	hasHeader bool
	offset    uint64
	crc       uint32
	payload   []byte
}

func (f *fields) unmarshalHeader(m proto.Message) error { return proto.Unmarshal(f.header, m) }

// parse reads the messages that Girassol itself writes: each of the known fields
// at most once. It refuses all else, unknown fields as well as garbage: generated
// code then decides. payload takes the payload's n bytes off the cursor.
func parse(data mem.BufferSlice, payload func(c *cursor, n int) ([]byte, bool)) (f fields, ok bool) {
	defer func() {
		if !ok {
			releasePayload(f.payload)
			f = fields{}
		}
	}()
	c := cursor{rest: data}
	hasPayload := false
	for {
		tag, n := c.varint()
		if n == 0 {
			return f, c.empty()
		}
		switch tag {
		case tagHeader:
			if f.hasHeader {
				return f, false
			}
			f.hasHeader = true
			if f.header, ok = c.bytes(copyHeader); !ok {
				return f, false
			}
		case tagOffset:
			if f.offset, n = c.varint(); n == 0 {
				return f, false
			}
		case tagCRC:
			var b [4]byte
			if c.read(b[:]) != len(b) {
				return f, false
			}
			f.crc = binary.LittleEndian.Uint32(b[:])
		case tagPayload:
			if hasPayload {
				return f, false
			}
			hasPayload = true
			if f.payload, ok = c.bytes(payload); !ok {
				return f, false
			}
		default:
			return f, false
		}
	}
}

// cursor reads through frames without joining them.
type cursor struct {
	frame []byte
	rest  mem.BufferSlice
}

// empty says whether all is read; it moves to the next frame that holds bytes.
func (c *cursor) empty() bool {
	for len(c.frame) == 0 {
		if len(c.rest) == 0 {
			return true
		}
		c.frame, c.rest = c.rest[0].ReadOnlyData(), c.rest[1:]
	}
	return false
}

// read fills b and returns how much there was.
func (c *cursor) read(b []byte) int {
	n := 0
	for n < len(b) && !c.empty() {
		k := copy(b[n:], c.frame)
		c.frame, n = c.frame[k:], n+k
	}
	return n
}

// varint returns the value and its length, 0 at the end of the data. A varint
// that breaks off or overflows reads as the end with data left, or with the
// length 0 where a value is due.
func (c *cursor) varint() (v uint64, n int) {
	for n < binary.MaxVarintLen64 && !c.empty() {
		b := c.frame[0]
		if n == binary.MaxVarintLen64-1 && b > 1 {
			return 0, 0
		}
		c.frame = c.frame[1:]
		v |= uint64(b&0x7f) << (7 * n)
		n++
		if b < 0x80 {
			return v, n
		}
	}
	if n > 0 {
		// Broken off: leave something behind so that it is no clean end.
		c.frame = brokenOff
	}
	return 0, 0
}

var brokenOff = []byte{0xff}

// bytes reads a length and gives take so many bytes to take.
func (c *cursor) bytes(take func(c *cursor, n int) ([]byte, bool)) ([]byte, bool) {
	size, n := c.varint()
	if n == 0 || size > math.MaxInt32 {
		return nil, false
	}
	remaining := len(c.frame) + c.rest.Len()
	if int(size) > remaining {
		return nil, false
	}
	if size == 0 {
		return nil, true
	}
	return take(c, int(size))
}

func copyHeader(c *cursor, n int) ([]byte, bool) {
	b := make([]byte, n)
	return b, c.read(b) == n
}

// copyPayload copies into a pooled buffer.
func copyPayload(c *cursor, n int) ([]byte, bool) {
	b := newPayload(n)
	return b, c.read(b) == n
}
