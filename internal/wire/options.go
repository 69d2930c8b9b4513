package wire

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
)

// MaxMessage is the most bytes of one received message; a chunk and its header
// stay far below.
const MaxMessage = 4 << 20

// bufferSize of the reads and writes on a connection, in bytes.
const bufferSize = 256 << 10

// Keepalive of both ends. They must agree: a server closes connections that ping
// more often than minPing ("too many pings"), so minPing leaves room for jitter
// below clientPing. None of this is a sign of life of a member, because proxies
// answer pings themselves; it keeps idle connections open and finds dead ones.
const (
	clientPing  = 30 * time.Second
	serverPing  = time.Minute
	pingTimeout = 20 * time.Second
	minPing     = 10 * time.Second
)

// handshakeTimeout bounds how long a connection may stay without a gRPC preface,
// whatever it sends instead.
const handshakeTimeout = 20 * time.Second

// Bounds of Options.Window: HTTP/2's own, and what one connection may hold in memory.
const (
	leastWindow = 64 << 10
	mostWindow  = 256 << 20
)

// WindowUsage is the help text of a flag that sets Options.Window.
const WindowUsage = "`bytes` under way without an answer, per transfer and per connection, held in memory; for long fat links 16777216 to 67108864, at both ends (default 0: measured, up to 16 MiB)"

// Options of a link. The zero value is plaintext on loopback.
type Options struct {
	// CertFile, KeyFile and CAFile turn on mutual TLS; all three or none. PEM. They
	// are read again for each connection, so renewed files need no restart.
	CertFile, KeyFile, CAFile string
	// PEM turns on mutual TLS without files; it is asked for each connection, so
	// what it gives may be renewed. It excludes the files.
	PEM func() (PEM, error)
	// ServerName is the name that the server's certificate must carry; empty takes
	// the host dialled. Servers ignore it.
	ServerName string
	// AllowInsecure permits plaintext to and from addresses off this machine, for
	// networks that encrypt below (WireGuard).
	AllowInsecure bool
	// Tunnel makes a client's connections, in plaintext through a tunnel that encrypts
	// and proves both ends; nil: TCP. Servers take tunnels by ListenTunnel.
	Tunnel func(ctx context.Context, addr string) (net.Conn, error)
	// Counter, if any, counts the bytes of the connections.
	Counter *Counter
	// Vet judges a client's certificate after it was verified; its error ends the
	// handshake and is told to the client word for word. Clients ignore it.
	Vet func(*x509.Certificate) error
	// Refused hears of each client that a server has not let in. It must not block.
	Refused func(client net.Addr, err error)
	// Now is the clock by which certificates are judged; nil is the machine's.
	Now func() time.Time
	// Window is the HTTP/2 flow-control window of streams and connections in bytes.
	// 0 measures it, up to 16 MiB; 16 to 64 MiB suit long fat networks. Memory is
	// bounded by Window times connections.
	Window int32
	// Limits of a listener's connections; clients ignore them.
	Limits Limits
}

// PEM is one end's certificate (leaf first) with its key, and the authorities of
// the other end's certificates.
type PEM struct{ Certificate, Key, CA []byte }

// Secure says whether the link is mutual TLS.
func (o Options) Secure() bool { return o.PEM != nil || o.files() }

func (o Options) files() bool { return o.CertFile != "" || o.KeyFile != "" || o.CAFile != "" }

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

// certificateName and caName are what errors call them.
func (o Options) certificateName() string {
	if o.PEM != nil {
		return "of this end"
	}
	return o.CertFile
}

func (o Options) caName() string {
	if o.PEM != nil {
		return "the CA bundle of this end"
	}
	return o.CAFile
}

// Check reports what is wrong with the options for addr, "host:port", before
// anything is dialled or listened on.
func (o Options) Check(addr string) error {
	if o.Window != 0 && (o.Window < leastWindow || o.Window > mostWindow) {
		return fmt.Errorf("wire: a window of %d bytes: give 0, which measures it, or %d to %d", o.Window, leastWindow, mostWindow)
	}
	if o.Tunnel != nil {
		return o.checkTunnel()
	}
	if o.Secure() {
		_, err := o.loadTLS()
		return err
	}
	if !o.AllowInsecure && !loopback(addr) {
		return fmt.Errorf("wire: no plaintext on %q, which is not a loopback address: give certificate, key and CA files, or allow insecure links if the network below encrypts", addr)
	}
	return nil
}

// Listen opens addr, "host:port", for a server that has ServerOptions(o).
func Listen(addr string, o Options) (net.Listener, error) {
	if err := o.Check(addr); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	if o.Counter != nil {
		l = countedListener{l, o.Counter}
	}
	return limit(l, o.Limits, o.Secure()), nil
}

// Dial returns a client connection to addr, "host:port". It does not wait for
// the connection to come up and never gives it up.
func Dial(addr string, o Options) (*grpc.ClientConn, error) {
	if addr == "" {
		return nil, errors.New("wire: no address to dial")
	}
	if err := o.Check(addr); err != nil {
		return nil, err
	}
	target := addr
	if o.Tunnel != nil {
		target = "passthrough:///" + addr // names mean nothing inside
	}
	conn, err := grpc.NewClient(target, DialOptions(o)...)
	if err != nil {
		return nil, fmt.Errorf("wire: dial %q: %w", addr, err)
	}
	return conn, nil
}

// idleTimeout ends a connection without a stream. An agent has its session; who
// calls now and then connects again by itself.
const idleTimeout = 5 * time.Minute

// maxHeaders of one call in bytes, as HTTP/2 counts them; ours have a few hundred.
const maxHeaders = 16 << 10

// maxStreams of one connection. An agent has a session and a few transfers.
const maxStreams = 64

// ServerOptions for grpc.NewServer. Unreadable TLS files fail each handshake; call
// Listen or Check to have them reported at once.
func ServerOptions(o Options) []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.Creds(tunnelCredentials{newCredentials(o, true)}),
		grpc.ForceServerCodecV2(Codec()),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ReadBufferSize(bufferSize),
		grpc.WriteBufferSize(bufferSize),
		experimental.BufferPool(&arrived),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: pingTimeout, MaxConnectionIdle: idleTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if o.Window > 0 {
		// Both: setting one alone leaves the other at 64 KiB.
		opts = append(opts, grpc.StaticStreamWindowSize(o.Window), grpc.StaticConnWindowSize(o.Window))
	}
	return opts
}

// DialOptions for grpc.NewClient; see ServerOptions on TLS files.
func DialOptions(o Options) []grpc.DialOption {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(newCredentials(o, false)),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec()), grpc.MaxCallRecvMsgSize(MaxMessage)),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
		experimental.WithBufferPool(&arrived),
		// A retry would keep the first 256 KiB of each upload for replay; uploads
		// resume by offset instead.
		grpc.WithDisableRetry(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 250 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 10 * time.Second},
			MinConnectTimeout: handshakeTimeout,
		}),
	}
	if o.Tunnel != nil {
		opts = append(opts, grpc.WithContextDialer(o.Tunnel))
	}
	if o.Secure() && o.ServerName != "" {
		opts = append(opts, grpc.WithAuthority(o.ServerName))
	}
	if o.Window > 0 {
		opts = append(opts, grpc.WithStaticStreamWindowSize(o.Window), grpc.WithStaticConnWindowSize(o.Window))
	}
	return opts
}

// loopback says whether addr names this machine without asking anyone: a
// resolver's answer is no ground to trust a network.
func loopback(addr string) bool {
	for _, scheme := range []string{"passthrough:///", "dns:///"} {
		addr = strings.TrimPrefix(addr, scheme)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
