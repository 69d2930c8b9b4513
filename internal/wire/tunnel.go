package wire

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Tunnelled is a connection that came out of a tunnel, which has encrypted it and
// proven its other end; see girassol.dev/internal/wire/wireguard.
type Tunnelled interface {
	net.Conn
	// Site for which the other end speaks.
	Site() string
}

// TunnelInfo is the AuthInfo of connections that came out of a tunnel. Inside it
// they are plaintext.
type TunnelInfo struct {
	credentials.CommonAuthInfo
	// Identity that the tunnel has proven.
	Identity Identity
	// Conn is the connection as the tunnel gave it.
	Conn Tunnelled
}

// AuthType implements credentials.AuthInfo.
func (TunnelInfo) AuthType() string { return "wireguard" }

// ProvenIdentity implements Prover.
func (i TunnelInfo) ProvenIdentity() Identity { return i.Identity }

// ListenTunnel makes connections of a tunnel's listener ones that a server with
// ServerOptions(o) takes for the tunnel's sites of federation, whatever else it
// takes: it is served beside the listener of Listen.
func ListenTunnel(l net.Listener, federation string, o Options) net.Listener {
	return tunnelListener{l, federation, o.Counter}
}

type tunnelListener struct {
	net.Listener
	federation string
	counter    *Counter
}

func (l tunnelListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tunnelled, ok := c.(Tunnelled)
		if !ok || tunnelled.Site() == "" {
			_ = c.Close() // who it is cannot be told: nothing but a tunnel's listener is allowed here
			continue
		}
		if l.counter != nil {
			c = l.counter.wrap(c)
		}
		return &tunnelConn{c, TunnelInfo{
			CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
			Identity:       Identity{Federation: l.federation, Role: RoleSite, Site: tunnelled.Site()},
			Conn:           tunnelled,
		}}, nil
	}
}

// tunnelConn carries its identity to the handshake, which is only the name of the
// place where gRPC asks.
type tunnelConn struct {
	net.Conn
	info TunnelInfo
}

// tunnelCredentials take connections of tunnels as they are and leave all others to
// those below.
type tunnelCredentials struct {
	credentials.TransportCredentials
}

func (c tunnelCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if t, ok := conn.(*tunnelConn); ok {
		return t.Conn, t.info, nil
	}
	return c.TransportCredentials.ServerHandshake(conn)
}

func (c tunnelCredentials) Clone() credentials.TransportCredentials {
	return tunnelCredentials{c.TransportCredentials.Clone()}
}

// FromTunnel is the tunnel's connection by which an RPC has come.
func FromTunnel(ctx context.Context) (Tunnelled, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	info, ok := p.AuthInfo.(TunnelInfo)
	return info.Conn, ok
}

// LinkMode by which an RPC has come: a mode of v1alpha1, or Plaintext.
func LinkMode(ctx context.Context) string {
	if _, ok := FromTunnel(ctx); ok {
		return string(v1alpha1.LinkWireGuard)
	}
	if Authenticated(ctx) {
		return string(v1alpha1.LinkMTLS)
	}
	return Plaintext
}

// Plaintext is the LinkMode of a connection that nobody has secured here.
const Plaintext = string(v1alpha1.ReasonPlaintext)

func (o Options) checkTunnel() error {
	if o.Secure() {
		return errors.New("wire: mutual TLS inside the tunnel would encrypt everything twice: leave the TLS files out of this link")
	}
	return nil
}
