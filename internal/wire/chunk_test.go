package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
)

func chunk(offset uint64, p []byte) *coordinatorv1.PushRequest {
	return &coordinatorv1.PushRequest{Offset: offset, Crc32C: CRC32C(p), Payload: p}
}

func wantReason(t *testing.T, err error, want v1alpha1.Reason) {
	t.Helper()
	var p *PayloadError
	if !errors.As(err, &p) || p.Reason != want {
		t.Errorf("got %v, want reason %s", err, want)
	}
}

func TestPayloadArrivesWholeFromAnyOffset(t *testing.T) {
	data := random(1, 2*ChunkSize+123)
	for _, from := range []int64{0, 1, ChunkSize, int64(len(data)) - 1, int64(len(data))} {
		var got bytes.Buffer
		r := NewReceiver(&got, int64(len(data)), from)
		err := SendPayload(func(offset uint64, crc uint32, p []byte) error {
			return r.Take(&coordinatorv1.PullResponse{Offset: offset, Crc32C: crc, Payload: p})
		}, bytes.NewReader(data), int64(len(data)), from)
		if err := errors.Join(err, r.Finish()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), data[from:]) {
			t.Errorf("from byte %d: other bytes arrived", from)
		}
	}
}

func TestReceiverRefusesBadChunksAndStaysWhereItWas(t *testing.T) {
	good := []byte("petals")
	corrupt := chunk(3, good)
	corrupt.Payload = []byte("petalz")
	for name, c := range map[string]struct {
		chunk *coordinatorv1.PushRequest
		want  v1alpha1.Reason
	}{
		"flipped bit":   {corrupt, v1alpha1.ReasonChecksumMismatch},
		"repeated":      {chunk(0, good), v1alpha1.ReasonUnexpectedOffset},
		"gap":           {chunk(4, good), v1alpha1.ReasonUnexpectedOffset},
		"huge offset":   {chunk(1<<63+3, good), v1alpha1.ReasonUnexpectedOffset},
		"past the end":  {chunk(3, []byte("petals and leaves")), v1alpha1.ReasonTooLarge},
		"over the size": {chunk(3, make([]byte, ChunkSize+1)), v1alpha1.ReasonTooLarge},
		"empty":         {chunk(3, nil), v1alpha1.ReasonMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			r := NewReceiver(&got, 12, 3)
			wantReason(t, r.Take(c.chunk), c.want)
			if got.Len() != 0 || r.Offset() != 3 {
				t.Errorf("wrote %d bytes, offset %d", got.Len(), r.Offset())
			}
			wantReason(t, r.Finish(), v1alpha1.ReasonTruncated)
			if err := r.Take(chunk(3, good)); err != nil {
				t.Errorf("the good chunk afterwards: %v", err)
			}
		})
	}
}

func TestSendPayloadReportsASourceThatEndsEarly(t *testing.T) {
	send := func(uint64, uint32, []byte) error { return nil }
	wantReason(t, SendPayload(send, strings.NewReader("short"), 6, 0), v1alpha1.ReasonTruncated)
	wantReason(t, SendPayload(send, strings.NewReader("short"), 5, 6), v1alpha1.ReasonUnexpectedOffset)
	wantReason(t, SendPayload(send, strings.NewReader("short"), 5, -1), v1alpha1.ReasonUnexpectedOffset)
}

func TestErrorsOfReaderWriterAndStreamPassThrough(t *testing.T) {
	boom := errors.New("disk on fire")
	send := func(uint64, uint32, []byte) error { return io.EOF }
	if err := SendPayload(send, strings.NewReader("x"), 1, 0); !errors.Is(err, io.EOF) {
		t.Errorf("stream error became %v", err)
	}
	if err := SendPayload(send, failingReaderAt{boom}, 1, 0); !errors.Is(err, boom) {
		t.Errorf("read error became %v", err)
	}
	r := NewReceiver(failingWriter{boom}, 1, 0)
	if err := r.Take(chunk(0, []byte("x"))); !errors.Is(err, boom) {
		t.Errorf("write error became %v", err)
	}
}

type failingReaderAt struct{ err error }

func (f failingReaderAt) ReadAt([]byte, int64) (int, error) { return 0, f.err }

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }
