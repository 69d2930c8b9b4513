package wire

import (
	"bufio"
	"net"
	"sync"
)

// corkBytes is what a write may gather before it goes to the socket: a write of
// gRPC's buffer with its records' headers and tags.
const corkBytes = bufferSize + 8<<10

// readAhead of a secured connection, in bytes: four records with one call.
const readAhead = 64 << 10

var corkBuffers = sync.Pool{New: func() any { return new([corkBytes]byte) }}

// corkedConn lies below TLS, which makes a call to the system for each record of
// 16 KiB. While it is corked what is written gathers in memory, and goes out with
// one call; what is read comes ahead.
type corkedConn struct {
	net.Conn
	ahead *bufio.Reader

	mu     sync.Mutex
	corked bool
	buffer *[corkBytes]byte // nil when nothing was gathered
	n      int
	// broken is how a write of gathered records failed, after a deadline too: TLS
	// took them for sent, so that what it wrote next would not be understood.
	broken error
}

func newCorkedConn(c net.Conn) *corkedConn {
	return &corkedConn{Conn: c, ahead: bufio.NewReaderSize(c, readAhead)}
}

func (c *corkedConn) Read(b []byte) (int, error) { return c.ahead.Read(b) }

func (c *corkedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return 0, c.broken
	}
	if !c.corked || c.n+len(b) > corkBytes {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if !c.corked || len(b) > corkBytes {
		return c.Conn.Write(b)
	}
	if c.buffer == nil {
		c.buffer = corkBuffers.Get().(*[corkBytes]byte)
	}
	c.n += copy(c.buffer[c.n:], b)
	return len(b), nil
}

// flush writes what was gathered; mu is held.
func (c *corkedConn) flush() error {
	if c.buffer == nil {
		return nil
	}
	_, c.broken = c.Conn.Write(c.buffer[:c.n])
	corkBuffers.Put(c.buffer)
	c.buffer, c.n = nil, 0
	return c.broken
}

func (c *corkedConn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = true
}

func (c *corkedConn) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	return c.flush()
}

// securedConn is a TLS connection whose writes of several records are one call to
// the system each.
type securedConn struct {
	net.Conn // TLS
	below    *corkedConn
	mu       sync.Mutex // one corked write at a time
	// expiry closes the connection of a client whose certificate has ended; nil
	// without.
	expiry *Alarm
}

// Close closes the connection.
func (c *securedConn) Close() error {
	if c.expiry != nil {
		c.expiry.Stop()
	}
	return c.Conn.Close()
}

func (c *securedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.below.cork()
	n, err := c.Conn.Write(b)
	// What was gathered before a failure is for the peer to see, too.
	if sent := c.below.uncork(); err == nil && sent != nil {
		return 0, sent
	}
	return n, err
}
