package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc/peer"
)

func TestCounterSeesEveryByteOnTheSocketFromBothEnds(t *testing.T) {
	a := newAuthority(t)
	secure := a.issue(t, "both", forHosts("x", net.IPv4(127, 0, 0, 1)))
	for name, o := range map[string]Options{"plaintext": {}, "TLS": secure} {
		t.Run(name, func(t *testing.T) {
			var server, client Counter
			serverOptions, clientOptions := o, o
			serverOptions.Counter, clientOptions.Counter = &server, &client
			data := random(1, 2*ChunkSize)
			l := listen(t, serverOptions)
			s := start(&fleet{sink: func(ctx context.Context) io.Writer {
				server.Attribute(ctx, "lisboa/a")
				server.Attribute(ctx, "lisboa/a")
				if in, _, ok := server.Conn(ctx); !ok || in == 0 {
					t.Errorf("connection has received %d, known %v", in, ok)
				}
				return io.Discard
			}}, l, ServerOptions(serverOptions)...)
			for range 2 {
				conn := dial(t, l.Addr().String(), clientOptions)
				if err := push(t.Context(), conn, bytes.NewReader(data), int64(len(data))); err != nil {
					t.Fatal(err)
				}
				_ = conn.Close()
			}
			if err := s.stop(); err != nil {
				t.Error(err)
			}
			in, out := server.Total()
			clientIn, clientOut := client.Total()
			if in > clientOut || out < clientIn {
				t.Errorf("server in %d out %d, client in %d out %d", in, out, clientIn, clientOut)
			}
			if payload := uint64(2 * len(data)); in < payload || in > payload+payload/100 {
				t.Errorf("%d bytes for %d of payload", in, payload)
			}
			if labelIn, labelOut := server.Label("lisboa/a"); labelIn != in || labelOut != out {
				t.Errorf("label has %d, %d of %d, %d after its connections closed", labelIn, labelOut, in, out)
			}
			if len(server.live)+len(client.live) != 0 {
				t.Errorf("%d and %d closed connections are kept", len(server.live), len(client.live))
			}
		})
	}
}

func TestFailedHandshakesLeaveTheCounter(t *testing.T) {
	a := newAuthority(t)
	var server, client Counter
	so := a.issue(t, "s", forHosts("a.example.org"))
	so.Counter = &server
	co := a.issue(t, "c", nil)
	co.Counter = &client
	l := listen(t, so)
	s := start(&fleet{}, l, ServerOptions(so)...)
	conn := dial(t, l.Addr().String(), co)
	if err := hello(t.Context(), conn); err == nil {
		t.Fatal("connected under a wrong name")
	}
	_ = conn.Close()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if in, _ := server.Total(); in == 0 {
		t.Error("the handshake was not counted")
	}
	if len(server.live)+len(client.live) != 0 {
		t.Errorf("%d and %d closed connections are kept", len(server.live), len(client.live))
	}
}

func TestAttributionMovesFromLabelToLabel(t *testing.T) {
	var c Counter
	near, far := net.Pipe()
	conn := c.wrap(near).(*countedConn)
	conn.in.Add(100)
	c.attribute(conn, "a")
	conn.in.Add(10)
	conn.out.Add(1)
	c.attribute(conn, "b")
	conn.in.Add(5)
	check := func(label string, wantIn, wantOut uint64) {
		t.Helper()
		if in, out := c.Label(label); in != wantIn || out != wantOut {
			t.Errorf("%s has %d, %d, want %d, %d", label, in, out, wantIn, wantOut)
		}
	}
	for _, state := range []string{"live", "closed", "closed twice"} {
		t.Log(state)
		check("a", 110, 1)
		check("b", 5, 0)
		check("never seen", 0, 0)
		if in, out := c.Total(); in != 115 || out != 1 {
			t.Errorf("total %d, %d", in, out)
		}
		_ = conn.Close()
	}
	_ = far.Close()
}

func TestCounterKnowsNothingOfOtherContexts(t *testing.T) {
	var c Counter
	c.Attribute(t.Context(), "nobody")
	if _, _, ok := c.Conn(t.Context()); ok {
		t.Error("a connection without an RPC")
	}
	if in, out := c.Label("nobody"); in != 0 || out != 0 {
		t.Error("bytes without a connection")
	}
}

// slowConn ends a Write only once it is closed.
type slowConn struct {
	net.Conn
	writing, closed chan struct{}
}

func (c slowConn) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (c slowConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }
func (c slowConn) Close() error         { close(c.closed); return nil }

func (c slowConn) Write(b []byte) (int, error) {
	close(c.writing)
	<-c.closed
	return len(b), nil
}

func TestAWriteThatEndsAfterTheCloseCountsToo(t *testing.T) {
	var c Counter
	slow := slowConn{writing: make(chan struct{}), closed: make(chan struct{})}
	conn := c.wrap(slow)
	c.Attribute(peer.NewContext(t.Context(), &peer.Peer{Addr: slow.RemoteAddr(), LocalAddr: slow.LocalAddr()}), "lisboa/a")
	done := make(chan struct{})
	go func() { defer close(done); _, _ = conn.Write(make([]byte, 58)) }()
	<-slow.writing
	_ = conn.Close()
	<-done
	_, out := c.Total()
	_, label := c.Label("lisboa/a")
	if out != 58 || label != 58 {
		t.Errorf("%d bytes in all and %d of the label, want 58", out, label)
	}
}
