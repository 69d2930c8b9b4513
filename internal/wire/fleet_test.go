package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// fleet is a coordinator that takes uploads into sink.
type fleet struct {
	coordinatorv1.UnimplementedFleetServer
	session func(context.Context) error
	sink    func(context.Context) io.Writer
}

func (f *fleet) Session(s grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return nil //nolint:nilerr // the client ended the stream
		}
		if err := f.session(s.Context()); err != nil {
			return err
		}
		if err := s.Send(&coordinatorv1.SessionResponse{}); err != nil {
			return err
		}
	}
}

func (f *fleet) Push(s grpc.BidiStreamingServer[coordinatorv1.PushRequest, coordinatorv1.PushResponse]) error {
	m, err := s.Recv()
	if err != nil {
		return err
	}
	r := NewReceiver(f.sink(s.Context()), int64(m.GetHeader().GetPayloadBytes()), 0)
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := r.Take(m); err != nil {
			return err
		}
	}
	if err := r.Finish(); err != nil {
		return err
	}
	return s.Send(&coordinatorv1.PushResponse{})
}

func push(ctx context.Context, conn grpc.ClientConnInterface, r io.ReaderAt, size int64) error {
	s, err := coordinatorv1.NewFleetClient(conn).Push(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&coordinatorv1.PushRequest{Header: &coordinatorv1.PushHeader{PayloadBytes: uint64(size)}}); err != nil {
		return err
	}
	err = SendPayload(func(offset uint64, crc uint32, payload []byte) error {
		return s.Send(&coordinatorv1.PushRequest{Offset: offset, Crc32C: crc, Payload: payload})
	}, r, size, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

// hello opens a session and waits for its first answer.
func hello(ctx context.Context, conn grpc.ClientConnInterface) error {
	s, err := coordinatorv1.NewFleetClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&coordinatorv1.SessionRequest{}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = s.Recv()
	return err
}

// running is a server that a test may stop early.
type running struct {
	server *grpc.Server
	served chan error
}

func (r running) stop() error {
	r.server.Stop()
	if err := <-r.served; !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // stopped before it began to serve
}

func start(f *fleet, l net.Listener, opts ...grpc.ServerOption) running {
	s := grpc.NewServer(opts...)
	coordinatorv1.RegisterFleetServer(s, f)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	return running{s, served}
}

func serve(t testing.TB, f *fleet, l net.Listener, opts ...grpc.ServerOption) {
	t.Helper()
	r := start(f, l, opts...)
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

func listen(t testing.TB, o Options) net.Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dial(t testing.TB, addr string, o Options) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// authority is a CA that writes its files below dir.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{dir: t.TempDir(), key: key}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.caFile(), "CERTIFICATE", der)
	return a
}

func (a *authority) caFile() string { return filepath.Join(a.dir, "ca.pem") }

// issue writes a certificate and returns the options that use it.
func (a *authority) issue(t testing.TB, name string, edit func(*x509.Certificate)) Options {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if edit != nil {
		edit(template)
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{CertFile: filepath.Join(a.dir, name+".pem"), KeyFile: filepath.Join(a.dir, name+"-key.pem"), CAFile: a.caFile()}
	writePEM(t, o.CertFile, "CERTIFICATE", der)
	writePEM(t, o.KeyFile, "PRIVATE KEY", pkcs8)
	return o
}

func forHosts(dns string, ips ...net.IP) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = []string{dns}, ips }
}

func forURIs(uris ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		for _, s := range uris {
			u, err := url.Parse(s)
			if err != nil {
				panic(err)
			}
			c.URIs = append(c.URIs, u)
		}
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
