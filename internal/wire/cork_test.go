package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// meteredConn counts the calls that reach the socket.
type meteredConn struct {
	net.Conn
	reads, writes atomic.Int64
}

func (c *meteredConn) Read(b []byte) (int, error)  { c.reads.Add(1); return c.Conn.Read(b) }
func (c *meteredConn) Write(b []byte) (int, error) { c.writes.Add(1); return c.Conn.Write(b) }

// securePair is both ends of a TLS connection over loopback.
func securePair(t *testing.T) (client, server net.Conn, metered *meteredConn) {
	t.Helper()
	o := newAuthority(t).issue(t, "both", forHosts("x", net.IPv4(127, 0, 0, 1)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	type end struct {
		conn net.Conn
		err  error
	}
	accepted := make(chan end, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			accepted <- end{nil, err}
			return
		}
		conn, _, err := newCredentials(o, true).ServerHandshake(raw)
		accepted <- end{conn, err}
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	metered = &meteredConn{Conn: raw}
	client, _, err = newCredentials(o, false).ClientHandshake(t.Context(), l.Addr().String(), metered)
	if err != nil {
		t.Fatal(err)
	}
	e := <-accepted
	if e.err != nil {
		t.Fatal(e.err)
	}
	return client, e.conn, metered
}

func TestASecuredWriteIsOneCallToTheSystem(t *testing.T) {
	client, server, metered := securePair(t)
	defer func() { _, _ = client.Close(), server.Close() }()
	sent := random(7, 4<<20)
	received := make(chan []byte, 1)
	go func() {
		b := make([]byte, len(sent))
		_, _ = io.ReadFull(server, b)
		received <- b
	}()
	before := metered.writes.Load()
	for at := 0; at < len(sent); at += bufferSize {
		if n, err := client.Write(sent[at : at+bufferSize]); err != nil || n != bufferSize {
			t.Fatal(n, err)
		}
	}
	if !bytes.Equal(<-received, sent) {
		t.Fatal("other bytes arrive")
	}
	if calls := metered.writes.Load() - before; calls != int64(len(sent)/bufferSize) {
		t.Errorf("%d calls for %d writes", calls, len(sent)/bufferSize)
	}
	// More than is gathered at a time, and back the other way.
	go func() {
		b := make([]byte, len(sent))
		_, _ = io.ReadFull(client, b)
		received <- b
	}()
	if n, err := server.Write(sent); err != nil || n != len(sent) {
		t.Fatal(n, err)
	}
	if !bytes.Equal(<-received, sent) {
		t.Fatal("other bytes come back")
	}
	if calls := metered.reads.Load(); calls > int64(2*len(sent)/(16<<10)) {
		t.Errorf("%d reads of %d bytes", calls, len(sent))
	}
}

type brokenConn struct{ net.Conn }

var errBroken = errors.New("the socket is broken")

func (brokenConn) Write([]byte) (int, error) { return 0, errBroken }

func TestAGatheredWriteThatFailsIsToldToItsWriter(t *testing.T) {
	below := newCorkedConn(brokenConn{})
	c := &securedConn{Conn: below, below: below}
	if n, err := c.Write([]byte("lost")); n != 0 || !errors.Is(err, errBroken) {
		t.Errorf("%d %v", n, err)
	}
	if below.buffer != nil {
		t.Error("the buffer is kept")
	}
}

func TestNothingFollowsAWriteThatFailed(t *testing.T) {
	client, server, _ := securePair(t)
	defer func() { _, _ = client.Close(), server.Close() }()
	if err := client.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("late")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if err := client.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("more")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the peer could not read what follows a lost record: %v", err)
	}
}
