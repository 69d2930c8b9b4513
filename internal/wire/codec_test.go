package wire

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

// frames cuts b as HTTP/2 would, at places that depend on seed.
func frames(b []byte, seed uint64) mem.BufferSlice {
	r := rand.New(rand.NewPCG(seed, 1))
	most := []int{1, 3, 100, 16384}[seed%4]
	if len(b) > ChunkSize/2 {
		most = 16384 // gRPC's own frames; bytes one by one take too long
	}
	var out mem.BufferSlice
	for len(b) > 0 {
		n := min(len(b), 1+r.IntN(most))
		out = append(out, mem.SliceBuffer(b[:n]))
		b = b[n:]
		if r.IntN(8) == 0 {
			out = append(out, mem.SliceBuffer(nil))
		}
	}
	return out
}

func pushHeader() *coordinatorv1.PushHeader {
	return &coordinatorv1.PushHeader{
		SessionToken: "secret", Epoch: 7, Kind: coordinatorv1.PushHeader_KIND_UPDATE, Round: 3, UpdateId: "lisboa/a/3",
		PayloadBytes: 1 << 30, LayoutDigest: random(1, 32), Weight: 1e6, Loss: proto.Float64(math.NaN()),
		Tensors: []*coordinatorv1.TensorSection{{Name: "w", Dtype: "F32", Shape: []int64{3, 4}, Length: 48}},
		Metrics: map[string]float64{"accuracy": 0.5},
	}
}

func pushMessages() map[string]*coordinatorv1.PushRequest {
	withUnknown := &coordinatorv1.PushRequest{Offset: 9, Payload: random(2, 9000)}
	unknown := protowire.AppendTag(nil, 77, protowire.BytesType)
	withUnknown.ProtoReflect().SetUnknown(protowire.AppendBytes(unknown, []byte("of a newer peer")))
	return map[string]*coordinatorv1.PushRequest{
		"empty":              {},
		"header only":        {Header: pushHeader()},
		"empty header":       {Header: &coordinatorv1.PushHeader{}},
		"small payload":      {Offset: 1, Crc32C: 2, Payload: []byte("abc")},
		"chunk":              {Offset: math.MaxUint64, Crc32C: math.MaxUint32, Payload: random(3, ChunkSize)},
		"header and payload": {Header: pushHeader(), Offset: 5, Payload: random(4, smallPayload)},
		"more than a chunk":  {Payload: random(5, ChunkSize+1)},
		"unknown fields":     withUnknown,
	}
}

func TestCodecWritesWhatGeneratedCodeReads(t *testing.T) {
	for name, m := range pushMessages() {
		t.Run(name, func(t *testing.T) {
			out, err := Codec().Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			defer out.Free()
			if got, want := out.Len(), proto.Size(m); got != want {
				t.Errorf("%d bytes, generated code writes %d", got, want)
			}
			got := new(coordinatorv1.PushRequest)
			if err := proto.Unmarshal(out.Materialize(), got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, m) {
				t.Errorf("generated code reads another message")
			}
		})
	}
}

func TestCodecReadsWhatGeneratedCodeWrites(t *testing.T) {
	for name, m := range pushMessages() {
		t.Run(name, func(t *testing.T) {
			wire, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			for seed := range uint64(8) {
				got := &coordinatorv1.PushRequest{Offset: 99, Payload: []byte("left over")}
				if err := Codec().Unmarshal(frames(wire, seed), got); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(got, m) {
					t.Errorf("cut %d: reads another message", seed)
				}
				Release(got)
			}
		})
	}
}

func pullMessages() []*coordinatorv1.PullResponse {
	return []*coordinatorv1.PullResponse{
		{},
		{Header: &coordinatorv1.PullHeader{Version: 4, PayloadBytes: 1 << 20, UpdateIds: []string{"lisboa/node-0#4"}}},
		{Header: &coordinatorv1.PullHeader{Version: 4}, Offset: 3, Crc32C: 4, Payload: random(1, 100_000)},
	}
}

func TestCodecDoesTheSameForPullResponses(t *testing.T) {
	for _, m := range pullMessages() {
		out, err := Codec().Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b := out.Materialize()
		out.Free()
		generated, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, generated) {
			t.Errorf("writes other bytes than generated code for %d payload bytes", len(m.Payload))
		}
		got := new(coordinatorv1.PullResponse)
		if err := Codec().Unmarshal(frames(b, 2), got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, m) {
			t.Errorf("reads another message")
		}
	}
}

func TestCodecLeavesOtherMessagesToGeneratedCode(t *testing.T) {
	m := &coordinatorv1.StatusRequest{}
	out, err := Codec().Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := Codec().Unmarshal(out, m); err != nil {
		t.Fatal(err)
	}
	if _, err := Codec().Marshal("no message"); err == nil {
		t.Error("a string was encoded")
	}
}

func TestSenderMayReuseItsOwnPayloadAfterMarshal(t *testing.T) {
	payload := bytes.Repeat([]byte{1}, 100_000)
	out, err := Codec().Marshal(&coordinatorv1.PushRequest{Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Free()
	clear(payload)
	got := new(coordinatorv1.PushRequest)
	if err := proto.Unmarshal(out.Materialize(), got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Payload, bytes.Repeat([]byte{1}, 100_000)) {
		t.Error("what was to be sent has changed")
	}
}

func TestSentBlocksGoBackOnceGRPCAndSenderAreDone(t *testing.T) {
	data := random(6, 2*ChunkSize)
	var pending []mem.BufferSlice
	err := SendPayload(func(offset uint64, crc uint32, payload []byte) error {
		out, err := Codec().Marshal(&coordinatorv1.PushRequest{Offset: offset, Crc32C: crc, Payload: payload})
		if &out[1].ReadOnlyData()[0] != &payload[0] {
			t.Error("the payload was copied")
		}
		pending = append(pending, out)
		return err
	}, bytes.NewReader(data), int64(len(data)), 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := blocksInFlight(); n != 2 {
		t.Errorf("%d blocks in flight while gRPC holds 2", n)
	}
	for i, out := range pending {
		if got := out[1].ReadOnlyData(); !bytes.Equal(got, data[i*ChunkSize:][:ChunkSize]) {
			t.Errorf("chunk %d has changed", i)
		}
		out.Free()
	}
	if n := blocksInFlight(); n != 0 {
		t.Errorf("%d blocks in flight after gRPC has freed all", n)
	}
}

func blocksInFlight() int {
	inFlight.Lock()
	defer inFlight.Unlock()
	return len(inFlight.blocks)
}

func TestReleaseLeavesForeignPayloadsAlone(t *testing.T) {
	m := &coordinatorv1.PushRequest{Payload: make([]byte, ChunkSize)}
	Release(m)
	Release(m)
	Release((*coordinatorv1.PullResponse)(nil))
	if m.Payload != nil {
		t.Error("payload is still set")
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, m := range pushMessages() {
		if b, err := proto.Marshal(m); err == nil && len(b) < 20_000 {
			f.Add(b, uint64(len(b)))
		}
	}
	f.Add([]byte{0x7a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1}, uint64(0))
	f.Add([]byte{0x0a, 0x00, 0x0a, 0x00, 0x7a, 1, 2, 0x7a, 0}, uint64(1))
	f.Add([]byte{0x10, 0x80}, uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		want, got := new(coordinatorv1.PushRequest), new(coordinatorv1.PushRequest)
		wantErr := proto.Unmarshal(b, want)
		gotErr := Codec().Unmarshal(frames(b, seed), got)
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("error %v, generated code says %v", gotErr, wantErr)
		}
		if wantErr != nil {
			return
		}
		if !proto.Equal(got, want) {
			t.Fatal("reads another message than generated code")
		}
		out, err := Codec().Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Free()
		again := new(coordinatorv1.PushRequest)
		if err := proto.Unmarshal(out.Materialize(), again); err != nil || !proto.Equal(again, want) {
			t.Fatalf("what it read is written as another message (%v)", err)
		}
	})
}
