package wire

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// blockSize is the capacity of the pooled buffers. It is a little more than
// ChunkSize so that Release can tell them from a caller's own slices.
const blockSize = ChunkSize + 64

type block [blockSize]byte

var blocks = sync.Pool{New: func() any { return new(block) }}

// outgoing is a block that SendPayload has filled. The sender and every frame
// that gRPC has not yet written hold a reference each.
type outgoing struct {
	block *block
	refs  atomic.Int32
}

// inFlight finds the block behind a payload: generated messages have no room
// for more than the bytes.
var inFlight = struct {
	sync.Mutex
	blocks map[*byte]*outgoing
}{blocks: map[*byte]*outgoing{}}

func newOutgoing() *outgoing {
	o := &outgoing{block: blocks.Get().(*block)}
	o.refs.Store(1)
	inFlight.Lock()
	inFlight.blocks[&o.block[0]] = o
	inFlight.Unlock()
	return o
}

func (o *outgoing) release() {
	if o.refs.Add(-1) > 0 {
		return
	}
	inFlight.Lock()
	delete(inFlight.blocks, &o.block[0])
	inFlight.Unlock()
	blocks.Put(o.block)
}

// Get and Put make an outgoing block the pool of the one mem.Buffer that refers
// to it: gRPC puts the data back once it has written it.
func (o *outgoing) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (o *outgoing) Put(*[]byte)       { o.release() }

// payloadBuffer is the payload for gRPC to keep for as long as it likes: by
// reference when it lies at the start of an outgoing block, otherwise a copy,
// because its owner may reuse it as soon as Send returns.
func payloadBuffer(payload []byte) mem.Buffer {
	inFlight.Lock()
	o := inFlight.blocks[unsafe.SliceData(payload)]
	if o != nil {
		o.refs.Add(1)
	}
	inFlight.Unlock()
	if o == nil {
		return mem.Copy(payload, mem.DefaultBufferPool())
	}
	// The full capacity, or mem would take a short payload for one too small to
	// be worth giving back.
	whole := o.block[:len(payload)]
	return mem.NewBuffer(&whole, o)
}

// newPayload is memory for a received payload of n bytes.
func newPayload(n int) []byte {
	if n < smallPayload || n > ChunkSize {
		return make([]byte, n)
	}
	return blocks.Get().(*block)[:n]
}

func releasePayload(payload []byte) {
	if cap(payload) != blockSize {
		return
	}
	b := (*block)(payload[:blockSize])
	inFlight.Lock()
	_, sending := inFlight.blocks[&b[0]]
	inFlight.Unlock()
	if !sending {
		blocks.Put(b)
	}
}
