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
	"reflect"
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
	// Nor may anyone but the federation's people and its operator say what happens.
	for name, tc := range map[string]struct {
		link wire.Options
		may  bool
	}{
		"a person":                        {ca.link("person1", "spiffe://fed/admin"), true},
		"the operator":                    {ca.link("operator", "spiffe://fed/operator"), true},
		"a site":                          {siteB, false},
		"a certificate that names nobody": {ca.link("person2", ""), false},
		"another federation's person":     {ca.link("person3", "spiffe://other/admin"), false},
		"another federation's operator":   {ca.link("operator2", "spiffe://other/operator"), false},
		"a coordinator":                   {ca.link("coordinator2", "spiffe://fed/coordinator"), false},
		"another role":                    {ca.link("auditor", "spiffe://fed/auditor"), false},
		"a role below admin":              {ca.link("deeper", "spiffe://fed/admin/x"), false},
	} {
		conn, err := wire.Dial(c.addr, tc.link)
		if err != nil {
			t.Fatal(err)
		}
		admin := coordinatorv1.NewAdminClient(conn)
		want := codes.PermissionDenied
		if tc.may {
			want = codes.OK
		}
		if _, err := admin.Status(c.ctx(), &coordinatorv1.StatusRequest{}); status.Code(err) != want {
			t.Errorf("status by %s: %v, want %s", name, err, want)
		}
		watch, err := admin.Watch(c.ctx(), &coordinatorv1.WatchRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		if status.Code(err) != want {
			t.Errorf("watch by %s: %v, want %s", name, err, want)
		}
		if !tc.may {
			for call, err := range everyAdminCall(c, admin) {
				if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unimplemented {
					t.Errorf("%s by %s: %v, want PermissionDenied", call, name, err)
				}
			}
		}
		_ = conn.Close()
	}
}

// everyAdminCall with one message makes each call of the service.
func everyAdminCall(c *coordinator, admin coordinatorv1.AdminClient) map[string]error {
	out := map[string]error{}
	v := reflect.ValueOf(admin)
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		m := v.Method(i)
		if name == "Watch" {
			continue
		}
		got := m.Call([]reflect.Value{reflect.ValueOf(c.ctx()), reflect.New(m.Type().In(1).Elem())})
		err, _ := got[1].Interface().(error)
		out[name] = err
	}
	return out
}
