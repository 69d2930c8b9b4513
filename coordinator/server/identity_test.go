package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

// authority issues certificates for one test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key = a.newKey()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return k
}

func (a *authority) write(name, kind string, der []byte) string {
	p := filepath.Join(a.dir, name)
	if err := os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return p
}

// link makes a certificate; uri is its SPIFFE-style name, empty for none.
func (a *authority) link(name, uri string) wire.Options {
	a.t.Helper()
	key := a.newKey()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			a.t.Fatal(err)
		}
		tmpl.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return wire.Options{
		CertFile: a.write(name+".pem", "CERTIFICATE", der), KeyFile: a.write(name+"-key.pem", "EC PRIVATE KEY", keyDER), CAFile: filepath.Join(a.dir, "ca.pem"),
	}
}

// A site's name is in its certificate, and nothing else says who it is.
func TestASiteCannotSpeakForAnother(t *testing.T) {
	ca := newAuthority(t)
	c := startLinked(t, t.TempDir(), ca.link("coordinator", ""))
	c.admit("a", "b")
	hello := func(o wire.Options, federation, site string) (*coordinatorv1.Welcome, error) {
		conn, err := wire.Dial(c.addr, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		s, err := coordinatorv1.NewFleetClient(conn).Session(c.ctx())
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{
			Hello: &coordinatorv1.Hello{Federation: federation, Site: site, Node: "n1"},
		}})
		r, err := s.Recv()
		return r.GetWelcome(), err
	}
	siteA, siteB := ca.link("a", "spiffe://fed/site/a"), ca.link("b", "spiffe://fed/site/b")
	welcome, err := hello(siteA, "fed", "a")
	if err != nil || welcome.GetSessionToken() == "" {
		t.Fatalf("a site with its own certificate: %v", err)
	}
	for name, tc := range map[string]struct {
		link             wire.Options
		federation, site string
	}{
		"another site's name":               {siteB, "fed", "a"},
		"another federation's certificate":  {ca.link("x", "spiffe://other/site/a"), "fed", "a"},
		"a certificate that names no site":  {ca.link("person", ""), "fed", "a"},
		"own name, other federation wanted": {siteA, "other", "a"},
	} {
		if _, err := hello(tc.link, tc.federation, tc.site); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, want PermissionDenied", name, err)
		}
	}
	// Nor with a stolen session token.
	thief, err := wire.Dial(c.addr, siteB)
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	fleet := coordinatorv1.NewFleetClient(thief)
	pull, err := fleet.Pull(c.ctx(), &coordinatorv1.PullRequest{SessionToken: welcome.GetSessionToken(), Kind: coordinatorv1.PullRequest_KIND_SNAPSHOT})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pull.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("pull with a stolen token: %v", err)
	}
	push, err := fleet.Push(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	_ = push.Send(&coordinatorv1.PushRequest{Header: &coordinatorv1.PushHeader{SessionToken: welcome.GetSessionToken(), Epoch: welcome.GetEpoch(), UpdateId: "u"}})
	if _, err := push.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("push with a stolen token: %v", err)
	}
	// A site is no administrator; a person with a certificate is.
	if _, err := coordinatorv1.NewAdminClient(thief).Status(c.ctx(), &coordinatorv1.StatusRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Admin with a site's certificate: %v", err)
	}
	if _, err := coordinatorv1.NewAdminClient(thief).Rollback(c.ctx(), &coordinatorv1.RollbackRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("rollback with a site's certificate: %v", err)
	}
	person, err := wire.Dial(c.addr, ca.link("person2", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	if _, err := coordinatorv1.NewAdminClient(person).Status(c.ctx(), &coordinatorv1.StatusRequest{}); err != nil {
		t.Errorf("Admin with a person's certificate: %v", err)
	}
}
