package engine

import (
	"os"
	"sync"

	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

// check parses an update while it arrives: each piece, values and all, right after
// it was kept and while it is still in the processor's cache, so that no second pass
// follows the last byte, and a spoiled update is known at its first bad value. It
// outlives attempts, as the spool does.
type check struct {
	spool  *spool.Spool
	stop   <-chan struct{} // with the engine
	closed chan struct{}
	once   sync.Once

	// Valid once done is closed.
	done    chan struct{}
	payload *codec.Payload
	err     error

	writing sync.Mutex    // one piece at a time
	more    chan struct{} // holds a word for the parser: there is more to read
	taken   chan struct{} // and one for the writer: the piece was read

	mu       sync.Mutex
	received int64
	piece    []byte // that the writer lends, nil without one
	base     int64  // its place
	readTo   int64
}

func newCheck(s *spool.Spool, stop <-chan struct{}) *check {
	return &check{spool: s, stop: stop, closed: make(chan struct{}), done: make(chan struct{}), more: make(chan struct{}, 1), taken: make(chan struct{}, 1)}
}

// run parses to the end, or until it is closed.
func (c *check) run(d *codec.Domain, e algorithm.Encoding) {
	defer close(c.done)
	c.payload, c.err = codec.Parse(d, e, c, c.spool.Size(), nil)
}

func (c *check) close() { c.once.Do(func() { close(c.closed) }) }

// take has the parser read a piece that was kept, and returns when it has, or reads
// no more. The error is what is wrong with the bytes so far.
func (c *check) take(p []byte, base int64) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	end := base + int64(len(p))
	c.mu.Lock()
	c.received = max(c.received, end)
	lend := c.readTo < end // or it was read where it is kept, after a newer attempt's
	if lend {
		c.piece, c.base = p, base
	}
	c.mu.Unlock()
	if lend {
		tell(c.more)
		select {
		case <-c.taken:
		case <-c.done:
		case <-c.closed:
		case <-c.stop:
		}
		c.mu.Lock()
		c.piece = nil
		c.mu.Unlock()
		select { // nobody has asked for it
		case <-c.taken:
		default:
		}
	}
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ReadAt reads what has arrived and waits for what has not.
func (c *check) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		k, err := c.read(p[n:], off+int64(n))
		if err != nil {
			return n, err
		}
		if n += k; k > 0 {
			continue
		}
		select {
		case <-c.more:
		case <-c.closed:
			return n, os.ErrClosed
		case <-c.stop:
			return n, ErrStopped
		}
	}
	return n, nil
}

// read copies what is there, of the piece at hand or of what was kept.
func (c *check) read(p []byte, at int64) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.readTo = max(c.readTo, at+int64(n)) }()
	end := c.base + int64(len(c.piece))
	switch {
	case c.piece != nil && c.base <= at && at < end:
		n = copy(p, c.piece[at-c.base:])
		if at+int64(n) == end {
			tell(c.taken)
		}
		return n, nil
	case at < c.received:
		to := c.received
		if c.piece != nil && at < c.base {
			to = c.base
		}
		return c.spool.ReadAt(p[:min(int64(len(p)), to-at)], at)
	}
	return 0, nil
}
