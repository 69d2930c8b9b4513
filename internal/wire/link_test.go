package wire

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func TestPlaintextStaysOnLoopback(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:7465": true, "127.8.0.1:1": true, "[::1]:7465": true, "localhost:7465": true, "dns:///localhost:1": true,
		":7465": false, "0.0.0.0:7465": false, "10.0.0.1:7465": false, "coordinator:7465": false, "localhost.example.org:1": false, "[::]:1": false,
	} {
		err := Options{}.Check(addr)
		if (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "allow insecure") || !strings.Contains(err.Error(), addr)) {
			t.Errorf("%s: no way out in %q", addr, err)
		}
		if err := (Options{AllowInsecure: true}).Check(addr); err != nil {
			t.Errorf("%s with AllowInsecure: %v", addr, err)
		}
	}
	if _, err := Listen("0.0.0.0:0", Options{}); err == nil {
		t.Error("listens in plaintext on all interfaces")
	}
	if _, err := Dial("coordinator.example.org:7465", Options{}); err == nil {
		t.Error("dials in plaintext off this machine")
	}
}

func TestWindowsThatCannotWorkAreReportedAtOnce(t *testing.T) {
	for window, fits := range map[int32]bool{0: true, 1: false, -1: false, 64 << 10: true, 64 << 20: true, 1 << 30: false} {
		if err := (Options{Window: window}).Check("127.0.0.1:1"); (err == nil) != fits {
			t.Errorf("%d: %v", window, err)
		}
	}
}

func TestTLSOptionsThatCannotWorkAreReportedAtOnce(t *testing.T) {
	a := newAuthority(t)
	good := a.issue(t, "good", nil)
	other := a.issue(t, "other", nil)
	garbage := a.dir + "/garbage.pem"
	if err := os.WriteFile(garbage, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no key":       {Options{CertFile: good.CertFile, CAFile: good.CAFile}, "the key file is not given"},
		"only CA":      {Options{CAFile: good.CAFile}, "the certificate file is not given"},
		"missing file": {Options{CertFile: "nowhere.pem", KeyFile: good.KeyFile, CAFile: good.CAFile}, "nowhere.pem"},
		"other's key":  {Options{CertFile: good.CertFile, KeyFile: other.KeyFile, CAFile: good.CAFile}, "does not match"},
		"garbage CA":   {Options{CertFile: good.CertFile, KeyFile: good.KeyFile, CAFile: garbage}, "holds no PEM certificate"},
	} {
		if err := c.o.Check("127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", name, err, c.want)
		}
	}
}

func TestMutualTLSProvesTheSite(t *testing.T) {
	a := newAuthority(t)
	serverOptions := a.issue(t, "coordinator", forHosts("coordinator.example.org", net.IPv4(127, 0, 0, 1)))
	type proof struct {
		federation, site string
		ok, secure       bool
	}
	seen := make(chan proof, 1)
	l := listen(t, serverOptions)
	serve(t, &fleet{session: func(ctx context.Context) error {
		f, s, ok := PeerIdentity(ctx)
		seen <- proof{f, s, ok, Authenticated(ctx)}
		return nil
	}}, l, ServerOptions(serverOptions)...)

	for name, c := range map[string]struct {
		uris []string
		want proof
	}{
		"site":            {[]string{"spiffe://demo/site/lisboa"}, proof{"demo", "lisboa", true, true}},
		"site and others": {[]string{"https://example.org/site/x", "spiffe://demo/site/porto"}, proof{"demo", "porto", true, true}},
		"no site":         {[]string{"spiffe://demo/operator"}, proof{"", "", false, true}},
		"no URI":          {nil, proof{"", "", false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, l.Addr().String(), a.issue(t, "client", forURIs(c.uris...)))
			if err := hello(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
			if got := <-seen; got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestCertificatesThatCouldPassForAnotherAreRefused(t *testing.T) {
	a := newAuthority(t)
	serverOptions := a.issue(t, "coordinator", forHosts("x", net.IPv4(127, 0, 0, 1)))
	l := listen(t, serverOptions)
	serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(serverOptions)...)
	for name, uris := range map[string][]string{
		"two sites":     {"spiffe://demo/site/lisboa", "spiffe://demo/site/porto"},
		"site and role": {"spiffe://demo/operator", "spiffe://demo/site/porto"},
		"deeper path":   {"spiffe://demo/site/lisboa/node"},
		"no name":       {"spiffe://demo/site/"},
		"only site":     {"spiffe://demo/site"},
		"prefix":        {"spiffe://demo/sites"},
		"no federation": {"spiffe:///site/lisboa"},
	} {
		err := hello(t.Context(), dial(t, l.Addr().String(), a.issue(t, "client", forURIs(uris...))))
		if err == nil || !strings.Contains(err.Error(), "client.pem") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlaintextProvesNothing(t *testing.T) {
	l := listen(t, Options{})
	proven := make(chan bool, 1)
	serve(t, &fleet{session: func(ctx context.Context) error {
		_, _, ok := PeerIdentity(ctx)
		proven <- ok || Authenticated(ctx)
		return nil
	}}, l, ServerOptions(Options{})...)
	if err := hello(t.Context(), dial(t, l.Addr().String(), Options{})); err != nil {
		t.Fatal(err)
	}
	if <-proven {
		t.Error("an identity in plaintext")
	}
	if _, _, ok := PeerIdentity(t.Context()); ok || Authenticated(t.Context()) {
		t.Error("an identity without an RPC")
	}
}

func TestHandshakeErrorsSayWhatIsWrong(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	loopback := net.IPv4(127, 0, 0, 1)
	expired := func(c *x509.Certificate) {
		forHosts("a", loopback)(c)
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	}
	goodServer := a.issue(t, "coordinator", forHosts("coordinator.example.org", loopback))
	goodClient := a.issue(t, "client", forURIs("spiffe://demo/site/lisboa"))
	named := func(o Options, name string) Options { o.ServerName = name; return o }
	for name, c := range map[string]struct {
		server, client Options
		want           []string // nil: connects
	}{
		"wrong name":          {a.issue(t, "elsewhere", forHosts("a.example.org")), goodClient, []string{"is for a.example.org, not for 127.0.0.1:", "set the server name"}},
		"server name helps":   {a.issue(t, "elsewhere2", forHosts("a.example.org")), named(goodClient, "a.example.org"), nil},
		"wrong server name":   {goodServer, named(goodClient, "b.example.org"), []string{"is for coordinator.example.org, 127.0.0.1, not for b.example.org"}},
		"server's CA unknown": {stranger.issue(t, "s", forHosts("x", loopback)), goodClient, []string{"authority that is not in", goodClient.CAFile}},
		"server expired":      {a.issue(t, "old", expired), goodClient, []string{"renew it", "clock"}},
		"client's CA unknown": {goodServer, Options{CertFile: stranger.issue(t, "c", nil).CertFile, KeyFile: stranger.dir + "/c-key.pem", CAFile: a.caFile()}, []string{"refuses the certificate", "c.pem"}},
		"client expired":      {goodServer, a.issue(t, "oldclient", expired), []string{"refuses the certificate", "oldclient.pem"}},
		"server in plaintext": {Options{}, goodClient, []string{"does not speak TLS"}},
		"client in plaintext": {goodServer, Options{}, []string{"connection"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, c.server)
			serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(c.server)...)
			err := hello(t.Context(), dial(t, l.Addr().String(), c.client))
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if status.Code(err) != codes.Unavailable {
				t.Errorf("code %v, want Unavailable", status.Code(err))
			}
			for _, w := range c.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in: %v", w, err)
				}
			}
		})
	}
}

func TestRenewedCertificateFilesServeTheNextConnection(t *testing.T) {
	a := newAuthority(t)
	o := a.issue(t, "coordinator", forHosts("old.example.org"))
	l := listen(t, o)
	serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(o)...)
	client := a.issue(t, "client", nil)
	client.ServerName = "new.example.org"
	if err := hello(t.Context(), dial(t, l.Addr().String(), client)); err == nil {
		t.Fatal("connected before the renewal")
	}
	a.issue(t, "coordinator", forHosts("new.example.org"))
	if err := hello(t.Context(), dial(t, l.Addr().String(), client)); err != nil {
		t.Error(err)
	}
}

func TestPushArrivesWholeThroughTLSAndPlaintextAndGeneratedCode(t *testing.T) {
	a := newAuthority(t)
	secure := a.issue(t, "both", forHosts("x", net.IPv4(127, 0, 0, 1)))
	data := random(9, 3*ChunkSize+17)
	generated := grpc.WithDefaultCallOptions(grpc.ForceCodecV2(encoding.GetCodecV2("proto")))
	for name, c := range map[string]struct {
		o    Options
		dial []grpc.DialOption
	}{
		"plaintext":      {Options{}, nil},
		"TLS":            {secure, nil},
		"fixed window":   {Options{Window: 1 << 20}, nil},
		"generated code": {Options{}, []grpc.DialOption{generated}},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			l := listen(t, c.o)
			serve(t, &fleet{sink: func(context.Context) io.Writer { return &got }}, l, ServerOptions(c.o)...)
			conn, err := grpc.NewClient(l.Addr().String(), append(DialOptions(c.o), c.dial...)...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := push(t.Context(), conn, bytes.NewReader(data), int64(len(data))); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), data) {
				t.Error("other bytes arrived")
			}
		})
	}
}

// An hour without traffic in virtual time: were the ends' policies at odds, the
// server would close the connection for too many pings.
func TestIdleConnectionOutlivesAnHourOfKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := grpc.NewServer(ServerOptions(Options{})...)
		coordinatorv1.RegisterFleetServer(s, &fleet{session: func(context.Context) error { return nil }})
		go func() { _ = s.Serve(l) }()
		conn, err := grpc.NewClient("passthrough:///localhost:1", append(DialOptions(Options{}),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.dial(ctx) }))...)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := coordinatorv1.NewFleetClient(conn).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := stream.Send(&coordinatorv1.SessionRequest{}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if got := conn.GetState(); got != connectivity.Ready {
				t.Fatalf("connection is %v after an hour", got)
			}
		}
		if l.dials != 1 {
			t.Errorf("%d connections, want 1", l.dials)
		}
		_ = conn.Close()
		s.Stop()
		synctest.Wait()
	})
}

// pipeListener hands out in-memory connections, which virtual time can see.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	dials int
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case l.conns <- a:
		l.dials++
		return b, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func TestGarbageOnThePortHarmsNoOne(t *testing.T) {
	l := listen(t, Options{})
	serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(Options{})...)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(random(3, 64<<10)); err != nil {
		t.Log("closed while garbage was written:", err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Log("closed with", err)
	}
	if err := hello(t.Context(), dial(t, l.Addr().String(), Options{})); err != nil {
		t.Error("a good client after the garbage:", err)
	}
}
