package wire

import (
	"io"
	"sync"
)

// sharedBlocks is how many chunks a Shared keeps: 16 MiB, by which receivers of the
// same payload may be apart and still be served from one read.
const sharedBlocks = 16

// Shared sends the same payloads to several receivers, who ask at about the same
// time: each chunk is read and summed once, and its one copy in memory goes to all
// their sockets by reference. The zero value is ready; it is safe for concurrent use.
type Shared struct {
	mu     sync.Mutex
	chunks map[place]*sharedChunk
	order  []place // oldest first
}

// place of a chunk: payloads of equal keys must be of equal bytes.
type place struct {
	key  any
	from int64
	n    int
}

type sharedChunk struct {
	*outgoing
	ready chan struct{}
	// Valid once ready is closed.
	crc uint32
	err error
}

// SendPayload is the function of this name; what key stands for never changes.
func (s *Shared) SendPayload(key any, send func(offset uint64, crc uint32, payload []byte) error, r io.ReaderAt, size, from int64) error {
	return sendPayload(size, from, func(n int) error {
		c, mine := s.chunk(place{key, from, n})
		defer c.release()
		if mine {
			c.crc, c.err = readChunk(r, c.block[:n], from, size)
			close(c.ready)
		}
		<-c.ready
		if c.err != nil {
			s.forget(place{key, from, n}, c)
			return c.err
		}
		err := send(uint64(from), c.crc, c.block[:n])
		from += int64(n)
		return err
	})
}

// chunk finds or adds a chunk; mine says that the caller must fill it. The caller
// holds a reference.
func (s *Shared) chunk(p place) (c *sharedChunk, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c = s.chunks[p]; c != nil {
		c.refs.Add(1)
		return c, false
	}
	if s.chunks == nil {
		s.chunks = map[place]*sharedChunk{}
	}
	if len(s.order) == sharedBlocks {
		s.drop(s.order[0])
	}
	c = &sharedChunk{outgoing: newOutgoing(), ready: make(chan struct{})}
	c.refs.Add(1) // the table's
	s.chunks[p] = c
	s.order = append(s.order, p)
	return c, true
}

// forget takes a chunk that could not be read out of the table.
func (s *Shared) forget(p place, c *sharedChunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chunks[p] == c {
		s.drop(p)
	}
}

// drop is called with mu held.
func (s *Shared) drop(p place) {
	s.chunks[p].release()
	delete(s.chunks, p)
	for i, q := range s.order {
		if q == p {
			s.order = append(s.order[:i], s.order[i+1:]...)
			break
		}
	}
}
