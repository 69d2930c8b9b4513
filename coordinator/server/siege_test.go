package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/server"
	"girassol.dev/internal/wire"
)

// siege is a coordinator under attack. Its port has little patience, so that what
// takes minutes in production takes seconds here; the limits are the same code.
type siege struct {
	*coordinator
	// quiet is how many goroutines and descriptors there are without an attack.
	goroutines, descriptors int
}

// besiege serves a coordinator on a second port with these limits.
func besiege(t *testing.T, limits wire.Limits) *siege {
	t.Helper()
	dir := t.TempDir()
	c := start(t, dir)
	c.admit("a", "b")
	a := c.join("a")
	a.seed()
	reader, err := checkpoint.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	link := wire.Options{Counter: &wire.Counter{}, Limits: limits}
	lis, err := wire.Listen("127.0.0.1:0", link)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(append(wire.ServerOptions(link),
		grpc.ConnectionTimeout(time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: time.Second, MaxConnectionIdle: 2 * time.Second}))...)
	coordinatorv1.RegisterFleetServer(srv, &server.Fleet{Engine: c.engine, Store: &checkpoint.Store{Reader: reader}, Counter: link.Counter,
		Log: slog.New(slog.DiscardHandler), Patience: time.Second})
	coordinatorv1.RegisterAdminServer(srv, &server.Admin{Engine: c.engine, Log: slog.New(slog.DiscardHandler)})
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	c.addr = lis.Addr().String()
	s := &siege{coordinator: c}
	s.works("before")
	s.goroutines, s.descriptors = settledCount(t)
	return s
}

// works is a session of another site, from Hello to a heartbeat's reply.
func (s *siege) works(when string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	conn, err := wire.Dial(s.addr, wire.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	for {
		err = oneSession(ctx, conn)
		if err == nil {
			return
		}
		if ctx.Err() != nil { // until then the flood may have been in the way
			s.t.Fatalf("%s the attack no session works: %v", when, err)
		}
	}
}

func oneSession(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := coordinatorv1.NewFleetClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{
		Hello: &coordinatorv1.Hello{Federation: "fed", Site: "b", Node: "n2"}}}); err != nil {
		return err
	}
	beat := &coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Heartbeat{Heartbeat: &coordinatorv1.Heartbeat{Sequence: 7}}}
	for {
		m, err := stream.Recv()
		switch {
		case err != nil:
			return err
		case m.GetWelcome() != nil:
			if err := stream.Send(beat); err != nil {
				return err
			}
		case m.GetHeartbeatReply().GetSequence() == 7:
			return nil
		}
	}
}

// over checks that the attack left nothing behind.
func (s *siege) over() {
	s.t.Helper()
	s.works("after")
	deadline := time.Now().Add(testWait)
	for {
		g, d := settledCount(s.t)
		// A closing connection or two of the sessions that work.
		if g <= s.goroutines+4 && d <= s.descriptors+2 {
			return
		}
		if time.Now().After(deadline) {
			var b bytes.Buffer
			b.Grow(1 << 20)
			buf := make([]byte, 1<<20)
			b.Write(buf[:runtime.Stack(buf, true)])
			s.t.Fatalf("%d goroutines and %d descriptors, before the attack %d and %d\n%.8000s", g, d, s.goroutines, s.descriptors, b.String())
		}
		time.Sleep(20 * time.Millisecond) // a look takes time itself
	}
}

func settledCount(t *testing.T) (goroutines, descriptors int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors are counted in /proc: %v", err)
	}
	return runtime.NumGoroutine(), len(fds)
}

// raw is a TCP connection that says what it likes.
type raw struct {
	t *testing.T
	net.Conn
	*http2.Framer
	block bytes.Buffer
	enc   *hpack.Encoder
	ended chan struct{}
}

func (s *siege) dial() *raw {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	r := &raw{t: s.t, Conn: conn, Framer: http2.NewFramer(conn, conn), ended: make(chan struct{})}
	r.enc = hpack.NewEncoder(&r.block)
	s.t.Cleanup(func() { _ = conn.Close() })
	return r
}

// h2 is a connection after its preface and settings.
func (s *siege) h2() *raw {
	s.t.Helper()
	r := s.dial()
	_, _ = io.WriteString(r, http2.ClientPreface)
	_ = r.WriteSettings()
	return r
}

// gone waits until the coordinator has closed the connection.
func (r *raw) gone(what string) {
	r.t.Helper()
	_ = r.SetReadDeadline(time.Now().Add(testWait))
	if _, err := io.Copy(io.Discard, r.Conn); errors.Is(err, os.ErrDeadlineExceeded) {
		r.t.Fatalf("%s: the connection stays open", what)
	}
}

// listen reads what comes, so that the coordinator can go on.
func (r *raw) listen() {
	go func() {
		defer close(r.ended)
		_, _ = io.Copy(io.Discard, r.Conn)
	}()
}

// fields of a call, and more of them.
func (r *raw) fields(method string, more ...string) []byte {
	r.block.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = r.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	for i := 0; i+1 < len(more); i += 2 {
		_ = r.enc.WriteField(hpack.HeaderField{Name: more[i], Value: more[i+1]})
	}
	return bytes.Clone(r.block.Bytes())
}

const (
	sessionMethod = "/girassol.coordinator.v1.Fleet/Session"
	pushMethod    = "/girassol.coordinator.v1.Fleet/Push"
	pullMethod    = "/girassol.coordinator.v1.Fleet/Pull"
)

// call opens a stream.
func (r *raw) call(id uint32, method string, more ...string) error {
	return r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.fields(method, more...), EndHeaders: true})
}

// answer reads the headers of a stream's end: its gRPC status and message.
func (r *raw) answer(id uint32) (code, message string) {
	r.t.Helper()
	_ = r.SetReadDeadline(time.Now().Add(testWait))
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return "", err.Error()
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID != id {
				continue
			}
			for _, h := range f.Fields {
				switch h.Name {
				case "grpc-status":
					code = h.Value
				case "grpc-message":
					message = h.Value
				}
			}
			if f.StreamEnded() {
				return code, message
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return "reset", f.ErrCode.String()
			}
		case *http2.GoAwayFrame:
			return "goaway", f.ErrCode.String()
		}
	}
}

// message is a gRPC frame that claims a length.
func message(compressed byte, claimed uint32, body []byte) []byte {
	b := append([]byte{compressed}, binary.BigEndian.AppendUint32(nil, claimed)...)
	return append(b, body...)
}
