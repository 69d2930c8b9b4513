package wire

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/peer"
)

// Counter counts the bytes that cross the sockets of a listener or a client, TLS
// and HTTP/2 framing included, TCP and IP headers not. In is what this end has
// received, out what it has sent. The zero value is ready.
//
// A connection can be attributed to a label, such as a member's name; a label's
// sums outlive its connections.
type Counter struct {
	mu     sync.Mutex
	live   map[string]*countedConn
	labels map[string]*traffic
	// closed is what the connections that are gone have carried.
	closed traffic
}

type traffic struct{ in, out uint64 }

func (t traffic) plus(o traffic) traffic  { return traffic{t.in + o.in, t.out + o.out} }
func (t traffic) minus(o traffic) traffic { return traffic{t.in - o.in, t.out - o.out} }

// Total sums all connections, live and closed.
func (c *Counter) Total() (in, out uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.closed
	for _, conn := range c.live {
		t = t.plus(conn.traffic())
	}
	return t.in, t.out
}

// Conn is what the connection of an RPC has carried so far; ok is false when ctx
// is of no RPC, or of one on a connection that is not counted here or is closed.
func (c *Counter) Conn(ctx context.Context) (in, out uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.find(ctx)
	if conn == nil {
		return 0, 0, false
	}
	t := conn.traffic()
	return t.in, t.out, true
}

// Attribute credits the connection of an RPC to label. What it had carried
// before counts for label too, unless it was credited to another label: then
// that one keeps it and label gets what follows.
func (c *Counter) Attribute(ctx context.Context, label string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.find(ctx); conn != nil {
		c.attribute(conn, label)
	}
}

func (c *Counter) attribute(conn *countedConn, label string) {
	if conn.attributed && conn.label == label {
		return
	}
	c.settle(conn)
	conn.label, conn.attributed = label, true
	if c.labels == nil {
		c.labels = map[string]*traffic{}
	}
	if c.labels[label] == nil {
		c.labels[label] = &traffic{}
	}
}

// Label sums all connections that were attributed to label, live and closed.
func (c *Counter) Label(label string) (in, out uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var t traffic
	if settled := c.labels[label]; settled != nil {
		t = *settled
	}
	for _, conn := range c.live {
		if conn.attributed && conn.label == label {
			t = t.plus(conn.traffic().minus(conn.settled))
		}
	}
	return t.in, t.out
}

// settle adds what the connection's label has not been credited with yet.
func (c *Counter) settle(conn *countedConn) {
	if !conn.attributed {
		return
	}
	now := conn.traffic()
	label := c.labels[conn.label]
	*label = label.plus(now.minus(conn.settled))
	conn.settled = now
}

func (c *Counter) find(ctx context.Context) *countedConn {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil || p.LocalAddr == nil {
		return nil
	}
	return c.live[connKey(p.LocalAddr, p.Addr)]
}

// connKey names a connection by both its ends: one Counter may serve several
// listeners.
func connKey(local, remote net.Addr) string { return local.String() + " " + remote.String() }

func (c *Counter) wrap(conn net.Conn) net.Conn {
	counted := &countedConn{Conn: conn, counter: c, key: connKey(conn.LocalAddr(), conn.RemoteAddr())}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live == nil {
		c.live = map[string]*countedConn{}
	}
	if old := c.live[counted.key]; old != nil {
		c.retire(old)
	}
	c.live[counted.key] = counted
	return counted
}

func (c *Counter) retire(conn *countedConn) {
	if c.live[conn.key] != conn {
		return
	}
	conn.retired.Store(true) // before the figures are read: what comes later books itself
	delete(c.live, conn.key)
	c.book(conn)
}

// book adds what a retired connection has counted since it was booked last.
func (c *Counter) book(conn *countedConn) {
	c.settle(conn)
	now := conn.traffic()
	c.closed = c.closed.plus(now.minus(conn.booked))
	conn.booked = now
}

type countedConn struct {
	net.Conn
	counter *Counter
	key     string
	in, out atomic.Uint64
	retired atomic.Bool

	// Under counter.mu. booked is what the closed connections' sum has of it.
	label           string
	attributed      bool
	settled, booked traffic
}

func (c *countedConn) traffic() traffic { return traffic{c.in.Load(), c.out.Load()} }

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.add(&c.in, n)
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.add(&c.out, n)
	return n, err
}

// add counts; a call that was at work when the connection was closed may end
// after it.
func (c *countedConn) add(to *atomic.Uint64, n int) {
	to.Add(uint64(n))
	if c.retired.Load() {
		c.counter.mu.Lock()
		c.counter.book(c)
		c.counter.mu.Unlock()
	}
}

func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.counter.mu.Lock()
	c.counter.retire(c)
	c.counter.mu.Unlock()
	return err
}

type countedListener struct {
	net.Listener
	counter *Counter
}

func (l countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.counter.wrap(conn), nil
}
