package wire

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits of a listener's connections; zero fields have the defaults. What is beyond
// them is closed at once, before anything is allocated for it.
type Limits struct {
	// Connections in all: 4096.
	Connections int
	// PerAddress of the other end, or per /64 of IPv6: 1024. Agents behind one gateway
	// share it, and a mesh's proxy may bring all of them under one address.
	PerAddress int
	// Handshakes that are not finished, TLS or the first frame of HTTP/2: 512. One
	// more ends the oldest of the address that has the most of them, so that who
	// never finishes takes no place from others.
	Handshakes int
	// Refused hears of each closed connection; it must not block. May be nil.
	Refused func(remote net.Addr, why string)
}

const (
	defaultConnections = 4096
	defaultPerAddress  = 1024
	defaultHandshakes  = 512
)

// firstFrame is the least that an HTTP/2 client says: the preface and the head of a
// SETTINGS frame, in bytes.
const firstFrame = 24 + 9

// limitedListener bounds the connections that it gives out.
type limitedListener struct {
	net.Listener
	limits Limits
	secure bool

	mu        sync.Mutex
	open      int
	addresses map[netip.Addr]*addressLoad
}

// addressLoad is one address's connections; those at their handshake oldest first.
type addressLoad struct {
	open   int
	shakes []*limitedConn
}

// Bound gives out the connections of any listener within limits; a handshake is then
// the first few bytes, of an HTTP request for example.
func Bound(l net.Listener, limits Limits) net.Listener { return limit(l, limits, false) }

func limit(l net.Listener, limits Limits, secure bool) net.Listener {
	return &limitedListener{Listener: l, limits: limits, secure: secure, addresses: map[netip.Addr]*addressLoad{}}
}

// Accept waits for a connection that is within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, old, why := l.admit(conn)
		if why != "" {
			l.refuse(conn, why)
			continue
		}
		if old != nil {
			l.refuse(old, "it did not finish its handshake while others waited for theirs")
		}
		return c, nil
	}
}

func (l *limitedListener) refuse(conn net.Conn, why string) {
	if l.limits.Refused != nil {
		l.limits.Refused(conn.RemoteAddr(), why)
	}
	_ = conn.Close()
}

func (l *limitedListener) admit(conn net.Conn) (c, old *limitedConn, why string) {
	addr := remoteKey(conn.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= cmp.Or(l.limits.Connections, defaultConnections) {
		return nil, nil, "there are as many connections as may be"
	}
	a := l.addresses[addr]
	if a == nil {
		a = &addressLoad{}
	}
	if a.open >= cmp.Or(l.limits.PerAddress, defaultPerAddress) {
		return nil, nil, "there are as many connections of its address as may be"
	}
	l.addresses[addr] = a
	l.open++
	a.open++
	c = &limitedConn{Conn: conn, listener: l, addr: addr}
	shaking := 0
	for _, o := range l.addresses {
		shaking += len(o.shakes)
	}
	if shaking >= cmp.Or(l.limits.Handshakes, defaultHandshakes) {
		old = l.oldestShake()
		l.shaken(old)
	}
	a.shakes = append(a.shakes, c)
	return c, old, ""
}

// oldestShake is the oldest handshake of the address with the most.
func (l *limitedListener) oldestShake() *limitedConn {
	var most *addressLoad
	for _, o := range l.addresses {
		if most == nil || len(o.shakes) > len(most.shakes) {
			most = o
		}
	}
	return most.shakes[0]
}

// shaken takes a connection off the handshakes.
func (l *limitedListener) shaken(c *limitedConn) {
	if a := l.addresses[c.addr]; a != nil {
		if i := slices.Index(a.shakes, c); i >= 0 {
			a.shakes = slices.Delete(a.shakes, i, i+1)
		}
	}
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	listener *limitedListener
	addr     netip.Addr
	once     sync.Once
	// read by one goroutine at a time, the transport's.
	heard int
	done  bool
}

// established says that the other end has finished its handshake.
func (c *limitedConn) established() {
	c.done = true
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.shaken(c)
}

func (c *limitedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.done && !c.listener.secure {
		if c.heard += n; c.heard >= firstFrame {
			c.established()
		}
	}
	return n, err
}

func (c *limitedConn) Close() error {
	c.once.Do(func() {
		l := c.listener
		l.mu.Lock()
		defer l.mu.Unlock()
		l.shaken(c)
		l.open--
		a := l.addresses[c.addr]
		if a.open--; a.open == 0 {
			delete(l.addresses, c.addr)
		}
	})
	return c.Conn.Close()
}

// remoteKey is what connections are counted by: an IPv4 address, or the /64 of an
// IPv6 address, all of which one household has.
func remoteKey(a net.Addr) netip.Addr {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{} // not of TCP: they share one place
	}
	ip := ap.Addr().Unmap().WithZone("")
	if ip.Is6() && !ip.IsLoopback() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Masked().Addr()
		}
	}
	return ip
}

// Gate lets one in so many events through, for logs that hostile peers could fill.
type Gate struct {
	mu    sync.Mutex
	last  time.Time
	quiet int
}

// Open says whether an event at this time may be told, and how many were not since
// the last one.
func (g *Gate) Open(now time.Time, every time.Duration) (missed int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.last.IsZero() && now.Sub(g.last) < every {
		g.quiet++
		return 0, false
	}
	missed, g.quiet, g.last = g.quiet, 0, now
	return missed, true
}
