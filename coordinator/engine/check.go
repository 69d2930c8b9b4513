package engine

import (
	"iter"
	"os"
	"sync"

	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

// check parses an update while it arrives: each chunk, values and all, right after
// it was kept, by who has received it and while it is in that processor's cache. No
// second pass follows the last byte, and a spoiled update is known at its first bad
// value. It outlives attempts, as the spool does.
type check struct {
	spool *spool.Spool
	// done is closed with the end of parsing, after which payload and err are valid and
	// ReadAt reads what was kept.
	done    chan struct{}
	payload *codec.Payload
	err     error

	mu       sync.Mutex // held while the parser runs; guards what follows
	resume   func() (struct{}, bool)
	stop     func()
	wait     func(struct{}) bool // the parser's: until there is more, or no more will be
	ended    bool
	received int64
	pieces   [][]byte // that the writer lends, those not yet read
	base     int64    // the first one's place
}

func newCheck(s *spool.Spool, d *codec.Domain, e algorithm.Encoding) *check {
	c := &check{spool: s, done: make(chan struct{})}
	c.resume, c.stop = iter.Pull(func(wait func(struct{}) bool) {
		c.wait = wait
		payload, err := codec.Parse(d, e, c, s.Size(), nil)
		c.end(payload, err)
	})
	return c
}

// end is called with mu held.
func (c *check) end(payload *codec.Payload, err error) {
	if c.ended {
		return
	}
	c.payload, c.err, c.ended = payload, err, true
	close(c.done)
}

// close gives the parsing up. It waits for no more than a piece of it.
func (c *check) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop()
	c.end(nil, os.ErrClosed)
}

// take parses on with pieces that were kept, one behind the other. The error is what is
// wrong with the bytes so far.
func (c *check) take(pieces [][]byte, base int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		end := base
		for _, p := range pieces {
			end += int64(len(p))
		}
		c.received = max(c.received, end)
		c.pieces, c.base = pieces, base
		c.resume()
		c.pieces = nil
	}
	return c.err
}

// ReadAt reads what has arrived; while parsing it waits for what has not.
func (c *check) ReadAt(p []byte, off int64) (n int, err error) {
	select {
	case <-c.done:
		return c.spool.ReadAt(p, off)
	default:
	}
	for n < len(p) {
		at := off + int64(n)
		if lent := c.lent(at); len(lent) > 0 {
			n += copy(p[n:], lent)
			continue
		}
		switch {
		case at < c.received: // of an attempt that was overtaken before it was parsed
			to := c.received
			if len(c.pieces) > 0 {
				to = c.base
			}
			k, err := c.spool.ReadAt(p[n:n+int(min(int64(len(p)-n), to-at))], at)
			if err != nil {
				return n, err
			}
			n += k
		case !c.wait(struct{}{}):
			return n, os.ErrClosed
		}
	}
	return n, nil
}

// lent is what the writer lends from at on, of one piece; those before it are done with.
func (c *check) lent(at int64) []byte {
	for len(c.pieces) > 0 && at >= c.base {
		if d := at - c.base; d < int64(len(c.pieces[0])) {
			return c.pieces[0][d:]
		}
		c.base += int64(len(c.pieces[0]))
		c.pieces = c.pieces[1:]
	}
	return nil
}
