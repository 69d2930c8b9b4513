package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// refusals collects what a listener refused.
type refusals struct {
	mu  sync.Mutex
	why []string
}

func (r *refusals) refused(_ net.Addr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = append(r.why, why)
}

func (r *refusals) count(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, w := range r.why {
		if strings.Contains(w, text) {
			n++
		}
	}
	return n
}

func rawDial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// closed waits until the other end has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection stays open")
	}
}

func answering(t *testing.T, o Options) net.Listener {
	t.Helper()
	l := listen(t, o)
	serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(o)...)
	return l
}

func TestConnectionsBeyondTheLimitAreClosedAndThePlacesComeBack(t *testing.T) {
	for name, limits := range map[string]Limits{"in all": {Connections: 8}, "of an address": {PerAddress: 8}} {
		t.Run(name, func(t *testing.T) {
			var r refusals
			limits.Refused = r.refused
			l := answering(t, Options{Limits: limits})
			var held []net.Conn
			for range 8 {
				c := rawDial(t, l.Addr().String())
				if _, err := io.WriteString(c, "P"); err != nil {
					t.Fatal(err)
				}
				held = append(held, c)
			}
			one := rawDial(t, l.Addr().String())
			closed(t, one)
			if r.count("as many connections") != 1 {
				t.Errorf("refused %v", r.why)
			}
			for _, c := range held {
				_ = c.Close()
			}
			// The server notices an end when it reads; a client tries until then.
			conn := dial(t, l.Addr().String(), Options{})
			for end := time.Now().Add(30 * time.Second); ; {
				err := hello(t.Context(), conn)
				if err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
		})
	}
}

// Who never finishes a handshake takes no place from who does, under TLS as
// without.
func TestUnfinishedHandshakesMakePlaceForOthers(t *testing.T) {
	a := newAuthority(t)
	secure := a.issue(t, "coordinator", forHosts("x", net.IPv4(127, 0, 0, 1)))
	client := a.issue(t, "agent", forURIs("spiffe://demo/site/lisboa"))
	for name, o := range map[string]Options{"TLS": secure, "plain": {}} {
		t.Run(name, func(t *testing.T) {
			var r refusals
			o.Limits = Limits{Handshakes: 4, Refused: r.refused}
			l := answering(t, o)
			var held []net.Conn
			for range 12 {
				held = append(held, rawDial(t, l.Addr().String()))
			}
			for _, c := range held[:8] {
				closed(t, c)
			}
			mine := Options{}
			if o.Secure() {
				mine = client
			}
			if err := hello(t.Context(), dial(t, l.Addr().String(), mine)); err != nil {
				t.Fatal(err)
			}
			if n := r.count("did not finish"); n < 8 {
				t.Errorf("%d handshakes ended", n)
			}
		})
	}
}

func TestAnAddressIsOneOfIPv4OrAHouseholdOfIPv6(t *testing.T) {
	key := func(s string) string {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return remoteKey(a).String()
	}
	for _, same := range [][2]string{{"192.0.2.1:5", "192.0.2.1:6"}, {"[::ffff:192.0.2.1]:5", "192.0.2.1:6"}, {"[2001:db8:1:2::3]:5", "[2001:db8:1:2:ffff::4]:6"}, {"[fe80::1%lo]:4", "[fe80::2]:4"}} {
		if key(same[0]) != key(same[1]) {
			t.Errorf("%s and %s: %s and %s", same[0], same[1], key(same[0]), key(same[1]))
		}
	}
	if key("192.0.2.1:5") == key("192.0.2.2:5") || key("[2001:db8:1:2::3]:5") == key("[2001:db8:1:3::3]:5") {
		t.Error("two households are one")
	}
	if remoteKey(&net.UnixAddr{Name: "x"}).IsValid() {
		t.Error("a socket in a folder has an address")
	}
}

// Each place comes back exactly once, however a connection ends.
func TestPlacesAreCountedExactly(t *testing.T) {
	base, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(base, Limits{Handshakes: 3}, true).(*limitedListener)
	defer l.Close()
	for range 20 {
		out := rawDial(t, l.Addr().String())
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if l.open%2 == 0 {
			c.(*limitedConn).established()
		}
		_ = out
		if l.open > 10 {
			_ = c.Close()
			_ = c.Close()
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	shakes := 0
	for _, a := range l.addresses {
		shakes += len(a.shakes)
	}
	if l.open > 20 || l.open < 0 || shakes > 3 {
		t.Errorf("%d open, %d at their handshake", l.open, shakes)
	}
}

func TestGateTellsHowMuchItKept(t *testing.T) {
	var g Gate
	now := time.Unix(1, 0)
	if _, ok := g.Open(now, time.Minute); !ok {
		t.Error("the first is kept")
	}
	for range 5 {
		if _, ok := g.Open(now.Add(time.Second), time.Minute); ok {
			t.Error("told too soon")
		}
	}
	if n, ok := g.Open(now.Add(time.Minute), time.Minute); !ok || n != 5 {
		t.Errorf("%d, %v", n, ok)
	}
}

// What an idle connection costs, which bounds what all of them can.
func TestIdleConnectionsAreCheap(t *testing.T) {
	if testing.Short() {
		t.Skip("opens many connections; not with -short")
	}
	const many = 400
	l := answering(t, Options{})
	before := heap()
	var held []net.Conn
	for range many {
		c := rawDial(t, l.Addr().String())
		// A client's first words: the preface and an empty SETTINGS frame.
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		var b [9]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	each := (heap() - before) / many
	t.Logf("an idle connection holds %d KiB", each>>10)
	if each > idleCost {
		t.Errorf("an idle connection holds %d bytes, at most %d", each, idleCost)
	}
	runtime.KeepAlive(held)
}

// idleCost of a connection in bytes: the buffers of both directions and a few
// goroutines.
const idleCost = 2*bufferSize + 128<<10

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}
