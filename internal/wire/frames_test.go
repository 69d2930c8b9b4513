package wire

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
)

// whole is the message that frames hold.
func whole(f *PushFrames) *coordinatorv1.PushRequest {
	m := &coordinatorv1.PushRequest{Header: f.Header, Offset: f.Offset, Crc32C: f.CRC32C}
	if f.Size() > 0 {
		m.Payload = make([]byte, f.Size())
		copy(m.Payload, bytes.Join(f.parts, nil))
	}
	return m
}

// Bytes from outside, cut into frames anywhere: what is read is what generated code
// reads, and a message received into again holds nothing of the one before.
func FuzzPushFrames(f *testing.F) {
	for _, m := range pushMessages() {
		if b, err := proto.Marshal(m); err == nil && len(b) < 20_000 {
			f.Add(b, uint64(len(b)))
		}
	}
	f.Add([]byte{0x7a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1}, uint64(0))
	f.Add([]byte{0x0a, 0x00, 0x0a, 0x00, 0x7a, 1, 2, 0x7a, 0}, uint64(1))
	f.Add([]byte{0x7a, 1, 2, 0x0a, 0x05, 1}, uint64(1))
	f.Add([]byte{0x10, 0x80}, uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		got := &PushFrames{Header: &coordinatorv1.PushHeader{Round: 7}, Frames: Frames{Offset: 8, CRC32C: 9, size: 3, parts: [][]byte{{1, 2, 3}}}}
		want := new(coordinatorv1.PushRequest)
		wantErr := proto.Unmarshal(b, want)
		err := Codec().Unmarshal(frames(b, seed), got)
		defer got.Release()
		if (wantErr == nil) != (err == nil) {
			t.Fatalf("error %v, generated code says %v", err, wantErr)
		}
		if wantErr != nil {
			return
		}
		want.ProtoReflect().SetUnknown(nil)
		if len(want.Payload) == 0 {
			want.Payload = nil
		}
		if m := whole(got); !proto.Equal(m, want) {
			t.Fatalf("reads %v, generated code %v", m, want)
		}
		if got.Size() > 0 && got.sum() != CRC32C(want.GetPayload()) {
			t.Fatal("sums to something else")
		}
	})
}

// The same for what is pulled.
func FuzzPullFrames(f *testing.F) {
	for _, m := range pullMessages() {
		if b, err := proto.Marshal(m); err == nil && len(b) < 20_000 {
			f.Add(b, uint64(len(b)))
		}
	}
	f.Add([]byte{0x7a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1}, uint64(0))
	f.Add([]byte{0x0a, 0x00, 0x0a, 0x00, 0x7a, 1, 2, 0x7a, 0}, uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		got := &PullFrames{Header: &coordinatorv1.PullHeader{Round: 7}, Frames: Frames{Offset: 8, CRC32C: 9, size: 3, parts: [][]byte{{1, 2, 3}}}}
		want := new(coordinatorv1.PullResponse)
		wantErr := proto.Unmarshal(b, want)
		err := Codec().Unmarshal(frames(b, seed), got)
		defer got.Release()
		if (wantErr == nil) != (err == nil) {
			t.Fatalf("error %v, generated code says %v", err, wantErr)
		}
		if wantErr != nil {
			return
		}
		m := &coordinatorv1.PullResponse{Header: got.Header, Offset: got.Offset, Crc32C: got.CRC32C, Payload: bytes.Join(got.parts, nil)}
		want.ProtoReflect().SetUnknown(nil)
		if !proto.Equal(m, want) || got.Size() != len(want.GetPayload()) || got.sum() != CRC32C(want.GetPayload()) {
			t.Fatalf("reads %v, generated code %v", m, want)
		}
	})
}

// filled takes bytes as an upload does.
type filled struct {
	bytes.Buffer
	fail error
}

func (f *filled) Append(pieces [][]byte) error {
	if f.fail != nil {
		return f.fail
	}
	return AppendTo(&f.Buffer).Append(pieces)
}

// A chunk in its frames is checked as any other: what is wrong with it leaves nothing
// behind and the offset where it was.
func TestChunksInTheirFramesAreChecked(t *testing.T) {
	payload := random(1, 3000)
	message := func(change func(*coordinatorv1.PushRequest)) *PushFrames {
		m := &coordinatorv1.PushRequest{Offset: 10, Crc32C: CRC32C(payload), Payload: payload}
		change(m)
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		f := new(PushFrames)
		if err := Codec().Unmarshal(frames(b, 5), f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, tc := range []struct {
		reason v1alpha1.Reason
		size   int64
		change func(*coordinatorv1.PushRequest)
	}{
		{v1alpha1.ReasonChecksumMismatch, 5000, func(m *coordinatorv1.PushRequest) { m.Crc32C++ }},
		{v1alpha1.ReasonUnexpectedOffset, 5000, func(m *coordinatorv1.PushRequest) { m.Offset-- }},
		{v1alpha1.ReasonMalformed, 5000, func(m *coordinatorv1.PushRequest) { m.Payload = nil }},
		{v1alpha1.ReasonTooLarge, 3009, func(*coordinatorv1.PushRequest) {}},
		{v1alpha1.ReasonTooLarge, 5 << 20, func(m *coordinatorv1.PushRequest) { m.Payload = make([]byte, ChunkSize+1) }},
	} {
		var to filled
		r := NewFrameReceiver(&to, tc.size, 10)
		err := r.TakeFrames(&message(tc.change).Frames)
		var fault *PayloadError
		if !errors.As(err, &fault) || fault.Reason != tc.reason || to.Len() > 0 || r.Offset() != 10 {
			t.Errorf("want %s: %v, %d bytes kept, offset %d", tc.reason, err, to.Len(), r.Offset())
		}
	}
	full := errors.New("full")
	to := filled{fail: full}
	r := NewFrameReceiver(&to, 5000, 10)
	if err := r.TakeFrames(&message(func(*coordinatorv1.PushRequest) {}).Frames); !errors.Is(err, full) || r.Offset() != 10 {
		t.Fatalf("%v, offset %d", err, r.Offset())
	}
	to.fail = nil
	if err := r.TakeFrames(&message(func(*coordinatorv1.PushRequest) {}).Frames); err != nil || r.Offset() != 3010 || !bytes.Equal(to.Bytes(), payload) || r.Complete() {
		t.Fatalf("%v, offset %d, %d bytes kept", err, r.Offset(), to.Len())
	}
}
