package coordinators

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

// coordinator is an Admin server that says what a test puts in.
type coordinator struct {
	coordinatorv1.UnimplementedAdminServer
	address string
	server  *grpc.Server

	mu      sync.Mutex
	status  *coordinatorv1.FederationStatus
	changed chan struct{}
	wishes  []*coordinatorv1.SetMembershipRequest
	paused  bool
	callers []string // common names of the clients' certificates
}

func newCoordinator(t *testing.T, o wire.Options) *coordinator {
	t.Helper()
	c := &coordinator{status: &coordinatorv1.FederationStatus{Federation: "demo", Phase: "WaitingForSites"}, changed: make(chan struct{})}
	c.listen(t, "127.0.0.1:0", o)
	return c
}

func (c *coordinator) listen(t *testing.T, address string, o wire.Options) {
	t.Helper()
	l, err := wire.Listen(address, o)
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	c.server = grpc.NewServer(wire.ServerOptions(o)...)
	coordinatorv1.RegisterAdminServer(c.server, c)
	done := make(chan struct{})
	server := c.server
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
}

// change alters the status and sends it.
func (c *coordinator) change(f func(*coordinatorv1.FederationStatus)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = proto.Clone(c.status).(*coordinatorv1.FederationStatus)
	f(c.status)
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *coordinator) Watch(_ *coordinatorv1.WatchRequest, stream grpc.ServerStreamingServer[coordinatorv1.FederationStatus]) error {
	for {
		c.mu.Lock()
		st, changed := c.status, c.changed
		c.callers = append(c.callers, caller(stream.Context()))
		c.mu.Unlock()
		if err := stream.Send(st); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (c *coordinator) SetMembership(ctx context.Context, r *coordinatorv1.SetMembershipRequest) (*coordinatorv1.SetMembershipResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.GetSite() == "nowhere" {
		return nil, status.Error(codes.NotFound, "site nowhere is not declared")
	}
	c.wishes = append(c.wishes, r)
	return &coordinatorv1.SetMembershipResponse{Changed: true, Membership: r.GetMembership()}, nil
}

func (c *coordinator) Pause(context.Context, *coordinatorv1.PauseRequest) (*coordinatorv1.PauseResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = true
	return &coordinatorv1.PauseResponse{}, nil
}

func (c *coordinator) Resume(context.Context, *coordinatorv1.ResumeRequest) (*coordinatorv1.ResumeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = false
	return &coordinatorv1.ResumeResponse{}, nil
}

func caller(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return ""
	}
	return info.State.PeerCertificates[0].Subject.CommonName
}

// authority issues certificates in memory.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name string, hosts ...string) *wire.PEM {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: hosts, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		URIs:      []*url.URL{{Scheme: "spiffe", Host: "demo", Path: "/operator"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &wire.PEM{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
		CA:          a.pem,
	}
}
