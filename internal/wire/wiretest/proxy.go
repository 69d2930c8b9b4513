// Package wiretest has what tests of links need: a TCP proxy that cuts
// connections.
//
// It must not know what the bytes mean.
package wiretest

import (
	"net"
	"sync"
	"testing"
)

// Proxy passes TCP connections on and counts their bytes. Close it by the test's
// end, which New sees to.
type Proxy struct {
	listener net.Listener
	to       string
	group    sync.WaitGroup

	mu       sync.Mutex
	up, down int64
	// cutUp and cutDown are the totals at which all connections are cut once; 0
	// never.
	cutUp, cutDown int64
	cuts           int
	conns          map[net.Conn]bool
	closed         bool
}

// New is a proxy to an address, "host:port".
func New(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, to: to, conns: map[net.Conn]bool{}}
	p.group.Go(p.serve)
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		p.closed = true
		p.cut()
		p.mu.Unlock()
		p.group.Wait()
	})
	return p
}

// Addr to dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// CutUp cuts all connections once so many more bytes have gone up, to the address
// behind; connections after that work.
func (p *Proxy) CutUp(after int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutUp = p.up + after
}

// CutDown is CutUp for bytes that come down.
func (p *Proxy) CutDown(after int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutDown = p.down + after
}

// Passed tells the bytes that were passed on up and down, and how often all
// connections were cut.
func (p *Proxy) Passed() (up, down int64, cuts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up, p.down, p.cuts
}

func (p *Proxy) serve() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		if !p.add(near, far) {
			continue
		}
		p.group.Go(func() { p.pass(far, near, &p.up, &p.cutUp) })
		p.group.Go(func() { p.pass(near, far, &p.down, &p.cutDown) })
	}
}

func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
			continue
		}
		p.conns[c] = true
	}
	return !p.closed
}

// cut ends all connections without a word; mu is held.
func (p *Proxy) cut() {
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as from a router that forgot
		}
		_ = c.Close()
	}
	clear(p.conns)
}

func (p *Proxy) pass(to, from net.Conn, count, cutAt *int64) {
	defer func() { _, _ = to.Close(), from.Close() }()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				return
			}
			p.mu.Lock()
			*count += int64(n)
			if *cutAt > 0 && *count >= *cutAt {
				*cutAt = 0
				p.cuts++
				p.cut()
			}
			p.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}
