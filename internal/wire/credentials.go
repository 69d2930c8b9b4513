package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// linkCredentials secures one end of a link: it reads the TLS files for each
// handshake, counts the client's bytes and puts errors into words.
type linkCredentials struct {
	options Options
	server  bool
}

func newCredentials(o Options, server bool) credentials.TransportCredentials {
	return linkCredentials{o, server}
}

func (c linkCredentials) Info() credentials.ProtocolInfo {
	if c.options.Secure() {
		return credentials.ProtocolInfo{SecurityProtocol: "tls"}
	}
	return insecure.NewCredentials().Info()
}

func (c linkCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName is part of the interface and no longer used by gRPC.
func (c linkCredentials) OverrideServerName(string) error {
	return errors.New("wire: set Options.ServerName")
}

// ClientHandshake counts from here and not from a dialer of its own, which
// would switch off gRPC's support for proxies.
func (c linkCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := raw
	if c.options.Counter != nil {
		conn = c.options.Counter.wrap(raw)
	}
	secured, info, err := c.clientHandshake(ctx, authority, conn)
	if err != nil {
		_ = conn.Close() // gRPC knows raw only; this one must leave the counter.
		return nil, nil, err
	}
	return secured, info, nil
}

func (c linkCredentials) clientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !c.options.Secure() {
		return insecure.NewCredentials().ClientHandshake(ctx, authority, c.plainClient(conn))
	}
	files, err := c.options.loadTLS()
	if err != nil {
		return nil, nil, err
	}
	name := c.options.ServerName
	if name == "" {
		name = authority
		if host, _, err := net.SplitHostPort(authority); err == nil {
			name = host
		}
	}
	below := newCorkedConn(conn)
	var chains [][]*x509.Certificate
	secured, info, err := credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{files.certificate},
		RootCAs:            files.authorities,
		ServerName:         c.options.ServerName,
		InsecureSkipVerify: true, // verified below, with tolerance for clocks
		VerifyConnection: func(s tls.ConnectionState) (err error) {
			chains, err = verifyPeer(s.PeerCertificates, files.authorities, x509.ExtKeyUsageServerAuth, name, c.options.now())
			return err
		},
	}).ClientHandshake(ctx, authority, below)
	if err != nil {
		return nil, nil, c.explain(err, name)
	}
	return &explainingConn{Conn: &securedConn{Conn: secured, below: below}, credentials: c}, verified(info, chains), nil
}

// verified puts the chains where gRPC's users look for them.
func verified(info credentials.AuthInfo, chains [][]*x509.Certificate) credentials.AuthInfo {
	t, ok := info.(credentials.TLSInfo)
	if !ok {
		return info
	}
	t.State.VerifiedChains = chains
	return t
}

func (c linkCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !c.options.Secure() {
		return insecure.NewCredentials().ServerHandshake(c.plainServer(conn))
	}
	secured, info, err := c.serverHandshake(conn)
	if err != nil {
		c.refused(conn.RemoteAddr(), err)
	} else if l, ok := conn.(*limitedConn); ok {
		l.established()
	}
	return secured, info, err
}

func (c linkCredentials) serverHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	files, err := c.options.loadTLS()
	if err != nil {
		return nil, nil, err
	}
	below := newCorkedConn(conn)
	var asked string
	secured := tls.Server(below, &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		ClientCAs:  files.authorities,
		// The client's certificate is judged after the handshake: only then can it be
		// told what is wrong.
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			asked = h.ServerName
			return &files.certificate, nil
		},
	})
	peer := conn.RemoteAddr().String()
	if err := secured.Handshake(); err != nil {
		var notTLS tls.RecordHeaderError
		if errors.As(err, &notTLS) && notTLS.Conn != nil {
			refuse(conn, "mutual TLS is needed here, and this is no TLS: give certificate, key and CA files; an agent may enrol with a token instead")
		} else if !isAlert(err) && !errors.Is(err, os.ErrDeadlineExceeded) {
			drain(conn) // it has been sent an alert
		}
		_ = secured.Close()
		if isAlert(err) {
			return nil, nil, fmt.Errorf("wire: client %s refuses the certificate %s of this server: %s: %w", peer, c.options.certificateName(),
				diagnose(files.certificate.Leaf, asked, c.options.now()), err)
		}
		return nil, nil, c.explain(err, peer)
	}
	state := secured.ConnectionState()
	if state.NegotiatedProtocol == "" {
		_ = secured.Close()
		return nil, nil, fmt.Errorf("wire: client %s does not ask for HTTP/2 in its TLS handshake: it is no gRPC client", peer)
	}
	chains, err := verifyPeer(state.PeerCertificates, files.authorities, x509.ExtKeyUsageClientAuth, "", c.options.now())
	if err == nil {
		_, err = identify(state.PeerCertificates[0])
	}
	if err == nil && c.options.Vet != nil {
		err = c.options.Vet(state.PeerCertificates[0])
	}
	if err != nil {
		refuse(secured, c.tell(err))
		return nil, nil, c.explain(err, peer)
	}
	state.VerifiedChains = chains
	return &securedConn{Conn: secured, below: below, expiry: closeAt(Expiry(state.PeerCertificates[0]).Add(expiryGrace), c.options.now, secured)}, credentials.TLSInfo{
		State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// tell words for a client what is wrong with its certificate.
func (c linkCredentials) tell(err error) string {
	var (
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &authority):
		return "it is from an authority that this server does not trust: both ends need the same CA"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && c.options.now().Before(invalid.Cert.NotBefore):
		return fmt.Sprintf("%s: it %s (this machine is the server)", v1alpha1.ReasonClockSkew, validity(invalid.Cert, c.options.now()))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("%s: it %s (this machine is the server; a site enrols again with a new token)", v1alpha1.ReasonCertificateExpired, validity(invalid.Cert, c.options.now()))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return "it is not for clients: the coordinator's own cannot be used to call it"
	}
	return err.Error()
}

// explainingConn words the alert by which a server refuses the client's
// certificate: with TLS 1.3 it comes after the client's handshake, with the first
// read, or is lost to a failing write.
type explainingConn struct {
	net.Conn
	credentials linkCredentials
	// answered: the server has sent something, so it has taken the certificate.
	answered atomic.Bool
}

func (c *explainingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.answered.Swap(true) {
		if reason, ok := parseRefusal(b[:n]); ok {
			return 0, fmt.Errorf("wire: server %s refuses the certificate %s: %s", c.RemoteAddr(), c.credentials.options.certificateName(), reason)
		}
	}
	if isAlert(err) {
		err = c.credentials.explain(err, c.RemoteAddr().String())
	}
	return n, err
}

func (c *explainingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !c.answered.Load() && !errors.Is(err, net.ErrClosed) {
		err = fmt.Errorf("wire: server %s hung up after the handshake, perhaps it refuses the certificate %s: %w", c.RemoteAddr(), c.credentials.options.certificateName(), err)
	}
	return n, err
}

// isAlert says whether err is an alert that the peer has sent; crypto/tls keeps
// the alert's own type to itself.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// explain puts a TLS failure with the named peer into words, with the way out.
func (c linkCredentials) explain(err error, peer string) error {
	whose := "server"
	if c.server {
		whose = "client"
	}
	var (
		wrongName x509.HostnameError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		notTLS    tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &wrongName):
		return fmt.Errorf("wire: the server's certificate is for %s, not for %s: dial one of its names, or set the server name to it: %w", names(wrongName.Certificate), peer, err)
	case errors.As(err, &authority):
		return fmt.Errorf("wire: the certificate of %s %s is from an authority that is not in %s: both ends need the same CA: %w", whose, peer, c.options.caName(), err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("wire: the certificate of %s %s %s", whose, peer, validity(invalid.Cert, c.options.now()))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("wire: the certificate of %s %s is not for %ss: each end needs its own: %w", whose, peer, whose, err)
	case errors.As(err, &invalid):
		return fmt.Errorf("wire: the certificate of %s %s cannot be used: %w", whose, peer, err)
	case errors.As(err, &notTLS):
		return fmt.Errorf("wire: %s %s does not speak TLS: start it with certificate, key and CA files, or leave them out here: %w", whose, peer, err)
	case isAlert(err):
		return fmt.Errorf("wire: %s %s refuses the certificate %s: it must be in date, from the CA that the peer trusts, and name one site at most: %w", whose, peer, c.options.certificateName(), err)
	case strings.Contains(err.Error(), "didn't provide a certificate"):
		return fmt.Errorf("wire: client %s has no certificate: start it with certificate, key and CA files: %w", peer, err)
	case c.server:
		return fmt.Errorf("wire: client %s: %w", peer, err)
	}
	return fmt.Errorf("wire: TLS with %s %s: %w", whose, peer, err)
}

func names(c *x509.Certificate) string {
	all := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return fmt.Sprintf("no host (its subject is %s)", c.Subject)
	}
	return strings.Join(all, ", ")
}

type tlsFiles struct {
	certificate tls.Certificate
	authorities *x509.CertPool
}

func (o Options) loadTLS() (tlsFiles, error) {
	if o.PEM != nil {
		return o.readPEM()
	}
	for _, f := range []struct{ what, path string }{{"certificate", o.CertFile}, {"key", o.KeyFile}, {"CA", o.CAFile}} {
		if f.path == "" {
			return tlsFiles{}, fmt.Errorf("wire: mutual TLS needs certificate, key and CA files; the %s file is not given", f.what)
		}
	}
	cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	for try := 0; err != nil && try < 3; try++ {
		time.Sleep(20 * time.Millisecond) // they may be in the middle of their renewal
		cert, err = tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	}
	if err != nil {
		return tlsFiles{}, fmt.Errorf("wire: certificate %s with key %s: %w", o.CertFile, o.KeyFile, err)
	}
	pem, err := os.ReadFile(o.CAFile)
	if err != nil {
		return tlsFiles{}, fmt.Errorf("wire: CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return tlsFiles{}, fmt.Errorf("wire: CA %s holds no PEM certificate", o.CAFile)
	}
	return tlsFiles{cert, pool}, nil
}

// OwnCertificate is this end's certificate with its key, read anew.
func (o Options) OwnCertificate() (*tls.Certificate, error) {
	files, err := o.loadTLS()
	if err != nil {
		return nil, err
	}
	return &files.certificate, nil
}

func (o Options) readPEM() (tlsFiles, error) {
	if o.files() {
		return tlsFiles{}, errors.New("wire: mutual TLS from files or from memory, not both")
	}
	given, err := o.PEM()
	if err != nil {
		return tlsFiles{}, fmt.Errorf("wire: certificate: %w", err)
	}
	cert, err := tls.X509KeyPair(given.Certificate, given.Key)
	if err != nil {
		return tlsFiles{}, fmt.Errorf("wire: certificate and key: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(given.CA) {
		return tlsFiles{}, errors.New("wire: the CA bundle holds no PEM certificate")
	}
	return tlsFiles{cert, pool}, nil
}

// Secured makes a connection one end of a mutual TLS link, as gRPC's are here: for
// benchmarks of what gRPC costs above it.
func Secured(ctx context.Context, conn net.Conn, o Options, server bool) (net.Conn, error) {
	c := newCredentials(o, server)
	var secured net.Conn
	var err error
	if server {
		secured, _, err = c.ServerHandshake(conn)
	} else {
		secured, _, err = c.ClientHandshake(ctx, conn.RemoteAddr().String(), conn)
	}
	return secured, err
}
