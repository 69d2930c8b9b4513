package wire

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// frameSize is the most payload of an HTTP/2 frame that gRPC sends, in bytes.
const frameSize = 16 << 10

// hotFrames is how many frames' memory is used again at once, last in first out.
const hotFrames = 64

// framePool is where gRPC takes the memory of frames that arrive. Unlike gRPC's own
// pool it does not clear what a read then fills to its length.
type framePool struct {
	mu   sync.Mutex
	hot  [hotFrames]*[]byte
	n    int
	rest sync.Pool // more than that; the garbage collector empties it
}

var arrived framePool

// pooled says whether memory of so many bytes comes from here.
func (*framePool) pooled(n int) bool { return n > frameSize/4 && n <= frameSize }

func (p *framePool) Get(n int) *[]byte {
	if !p.pooled(n) {
		return mem.DefaultBufferPool().Get(n)
	}
	b := p.take()
	if b == nil {
		fresh := make([]byte, frameSize)
		b = &fresh
	}
	*b = (*b)[:n]
	return b
}

func (p *framePool) take() *[]byte {
	p.mu.Lock()
	if p.n > 0 {
		p.n--
		b := p.hot[p.n]
		p.hot[p.n] = nil
		p.mu.Unlock()
		return b
	}
	p.mu.Unlock()
	b, _ := p.rest.Get().(*[]byte)
	return b
}

func (p *framePool) Put(b *[]byte) {
	if cap(*b) != frameSize {
		mem.DefaultBufferPool().Put(b)
		return
	}
	p.mu.Lock()
	if p.n < hotFrames {
		p.hot[p.n] = b
		p.n++
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.rest.Put(b)
}
