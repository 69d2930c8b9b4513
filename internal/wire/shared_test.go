package wire

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// countedReader counts reads and fails where it is told.
type countedReader struct {
	io.ReaderAt
	reads atomic.Int64
	fail  atomic.Bool
}

var errDisk = errors.New("disk")

func (r *countedReader) ReadAt(p []byte, off int64) (int, error) {
	r.reads.Add(1)
	if r.fail.Load() {
		return 0, errDisk
	}
	return r.ReaderAt.ReadAt(p, off)
}

func randomBytes(n int) []byte {
	rng := rand.New(rand.NewPCG(1, 9))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Receivers that keep within the window of chunks are served by one read of each.
func TestManyReceiversShareOneRead(t *testing.T) {
	const receivers, chunks = 8, 40
	data := randomBytes(chunks*ChunkSize - 5)
	r := &countedReader{ReaderAt: bytes.NewReader(data)}
	var s Shared
	var group sync.WaitGroup
	// In step: nobody sends a chunk before all have sent the one before.
	step := make([]chan struct{}, chunks+1)
	var sent [chunks + 1]atomic.Int64
	for i := range step {
		step[i] = make(chan struct{})
	}
	close(step[0])
	for range receivers {
		group.Go(func() {
			i := 0
			got := make([]byte, 0, len(data))
			err := s.SendPayload("state", func(offset uint64, crc uint32, p []byte) error {
				<-step[i]
				if int(offset) != len(got) || crc != CRC32C(p) {
					t.Errorf("chunk at %d with CRC %x", offset, crc)
				}
				got = append(got, p...)
				if i++; sent[i].Add(1) == receivers {
					close(step[i])
				}
				return nil
			}, r, int64(len(data)), 0)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes arrived: %v", len(got), err)
			}
		})
	}
	group.Wait()
	if n := r.reads.Load(); n != chunks {
		t.Errorf("%d reads of %d chunks for %d receivers", n, chunks, receivers)
	}
	inFlight.Lock()
	defer inFlight.Unlock()
	if n := len(inFlight.blocks); n > sharedBlocks {
		t.Errorf("%d blocks are held", n)
	}
}

// Receivers far apart, another payload, an error and a second try.
func TestSharedChunksAreOfTheirPayloadOnly(t *testing.T) {
	var s Shared
	collect := func(key any, r io.ReaderAt, size, from int64) ([]byte, error) {
		var got []byte
		err := s.SendPayload(key, func(_ uint64, _ uint32, p []byte) error { got = append(got, p...); return nil }, r, size, from)
		return got, err
	}
	data := randomBytes(20*ChunkSize + 7)
	r := &countedReader{ReaderAt: bytes.NewReader(data)}
	for i, from := range []int64{0, 0, 3 * ChunkSize, 17} {
		if got, err := collect("a", r, int64(len(data)), from); err != nil || !bytes.Equal(got, data[from:]) {
			t.Errorf("try %d: %v", i, err)
		}
	}
	other := bytes.Clone(data[:100])
	other[0]++
	if got, err := collect("b", bytes.NewReader(other), 100, 0); err != nil || !bytes.Equal(got, other) {
		t.Errorf("another payload: %v", err)
	}
	r.fail.Store(true)
	if _, err := collect("c", r, 100, 0); !errors.Is(err, errDisk) {
		t.Errorf("a broken disk: %v", err)
	}
	r.fail.Store(false)
	if got, err := collect("c", r, 100, 0); err != nil || !bytes.Equal(got, data[:100]) {
		t.Errorf("after it: %v", err)
	}
	if _, err := collect("d", r, 10, 11); err == nil {
		t.Error("sent from behind the end")
	}
}
