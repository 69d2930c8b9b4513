package remote

import (
	"context"
	"net"
	"sync"
	"time"
)

// sockets of one connection to a cluster, so that all of them can be closed at its
// end: a transport closes idle ones only, and a watch that was just cancelled is
// not idle yet.
type sockets struct {
	dialer net.Dialer

	mu     sync.Mutex
	open   map[*socket]bool
	closed bool
}

func newSockets(timeout time.Duration) *sockets {
	return &sockets{dialer: net.Dialer{Timeout: timeout, KeepAlive: 15 * time.Second}, open: map[*socket]bool{}}
}

func (s *sockets) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := s.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	one := &socket{Conn: c, of: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	s.open[one] = true
	return one, nil
}

func (s *sockets) close() {
	s.mu.Lock()
	open := s.open
	s.open, s.closed = map[*socket]bool{}, true
	s.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
}

type socket struct {
	net.Conn
	of *sockets
}

// Close closes the connection and forgets it.
func (c *socket) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
