package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/coordinator/identity"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/wire"
)

// authorityFiles writes an authority and a coordinator's certificate as girassol
// init does.
func authorityFiles(t *testing.T, life time.Duration) (dir string, a *certs.Authority) {
	t.Helper()
	dir = t.TempDir()
	a, err := certs.NewAuthority("lm", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.IssueFor(certs.Coordinator("lm", "127.0.0.1", "c.example.org"), life, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"ca.pem": a.CertificatePEM, "ca-key.pem": a.KeyPEM, "c.pem": leaf.Certificate, "c-key.pem": leaf.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, a
}

func own(dir string, a *certs.Authority) *ownCertificate {
	return &ownCertificate{federation: "lm", authority: a, certFile: filepath.Join(dir, "c.pem"), keyFile: filepath.Join(dir, "c-key.pem"), now: time.Now, random: rand.Reader, log: slog.New(slog.DiscardHandler)}
}

// pair is the certificate that a link would use now.
func pair(t *testing.T, o *ownCertificate) tls.Certificate {
	t.Helper()
	p, err := tls.LoadX509KeyPair(o.certFile, o.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTheCoordinatorsCertificateStaysInDateForYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, a := authorityFiles(t, certs.LeafValidity)
		o := own(dir, a)
		first := pair(t, o).Leaf
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { o.run(ctx); close(done) }()
		for range 24 {
			time.Sleep(31 * 24 * time.Hour)
			c := pair(t, o).Leaf
			if left := time.Until(c.NotAfter); left < certs.LeafValidity/3-2*time.Hour {
				t.Fatalf("it is good for %s more", left)
			}
			if c.VerifyHostname("c.example.org") != nil || c.VerifyHostname("127.0.0.1") != nil || c.URIs[0].String() != "spiffe://lm/coordinator" {
				t.Errorf("it is for %v, %v, %v", c.DNSNames, c.IPAddresses, c.URIs)
			}
		}
		if last := pair(t, o).Leaf; last.SerialNumber.Cmp(first.SerialNumber) == 0 {
			t.Error("it was never renewed")
		}
		stop()
		<-done
	})
}

// A kill between the two renames leaves a key that is not the certificate's.
func TestAHalfRenewedCertificateIsMadeWhole(t *testing.T) {
	dir, a := authorityFiles(t, certs.LeafValidity)
	o := own(dir, a)
	key, err := certs.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.keyFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	o.renewIfDue()
	pair(t, o)
	// Where others issue, nothing is touched.
	if err := os.WriteFile(o.keyFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	o.authority = nil
	if _, err := o.look(); err == nil || !strings.Contains(err.Error(), "give both anew") {
		t.Error(err)
	}
	if b, err := os.ReadFile(o.keyFile); err != nil || string(b) != string(key) {
		t.Error("a key of somebody else's was replaced")
	}
}

func TestACertificateOfAnotherAuthorityIsLeftAlone(t *testing.T) {
	dir, _ := authorityFiles(t, time.Minute)
	_, other := authorityFiles(t, time.Minute)
	o := own(dir, other)
	o.now = func() time.Time { return time.Now().Add(50 * time.Second) }
	before := pair(t, o).Leaf.SerialNumber
	if _, err := o.look(); err != nil {
		t.Error(err)
	}
	if pair(t, o).Leaf.SerialNumber.Cmp(before) != 0 {
		t.Error("it was replaced")
	}
}

func TestAKeyThatEverybodyMayReadIsToldOf(t *testing.T) {
	dir, a := authorityFiles(t, time.Hour)
	o := own(dir, a)
	var said bytes.Buffer
	o.log = slog.New(slog.NewTextHandler(&said, nil))
	if o.warnOfMode(); said.Len() != 0 {
		t.Errorf("a key for its owner: %s", &said)
	}
	if err := os.Chmod(o.keyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	if o.warnOfMode(); !strings.Contains(said.String(), "chmod 600") {
		t.Errorf("a key for everybody: %s", &said)
	}
}

func TestIdentityFlagsThatDoNotFitAreRefusedWithTheWayOut(t *testing.T) {
	dir, _ := authorityFiles(t, time.Hour)
	in := func(name string) string { return filepath.Join(dir, name) }
	link := wire.Options{CertFile: in("c.pem"), KeyFile: in("c-key.pem"), CAFile: in("ca.pem")}
	key, err := os.ReadFile(in("ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(in("open.pem"), key, 0o600), os.Chmod(in("open.pem"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		link wire.Options
		id   IdentityOptions
		says string
	}{
		"a key for everybody":     {link, IdentityOptions{CACert: in("ca.pem"), CAKey: in("open.pem")}, "chmod 600"},
		"plaintext":               {wire.Options{}, IdentityOptions{EnrolListen: "127.0.0.1:0"}, "need mutual TLS"},
		"a key alone":             {link, IdentityOptions{CAKey: in("ca-key.pem")}, "belong together"},
		"enrolment without a key": {link, IdentityOptions{EnrolListen: "127.0.0.1:0"}, "needs --ca-cert and --ca-key"},
		"another's key":           {link, IdentityOptions{CACert: in("ca.pem"), CAKey: in("c-key.pem")}, "not the key of the certificate"},
		"no authority":            {link, IdentityOptions{CACert: in("c.pem"), CAKey: in("c-key.pem")}, "is no authority"},
		"missing":                 {link, IdentityOptions{CACert: in("nowhere.pem"), CAKey: in("ca-key.pem")}, "nowhere.pem"},
		"no life":                 {link, IdentityOptions{Life: time.Millisecond}, "--certificate-life"},
		"no port":                 {link, IdentityOptions{CACert: in("ca.pem"), CAKey: in("ca-key.pem"), EnrolListen: "x"}, "--enrol-listen"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tc.link
			o := &Options{DataDir: t.TempDir(), Link: tc.link, Identity: tc.id, Log: slog.New(slog.DiscardHandler)}
			if _, err := newIdentities("lm", &l, o, prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
	l := wire.Options{}
	if i, err := newIdentities("lm", &l, &Options{Identity: IdentityOptions{Life: identity.DefaultLife}}, prometheus.NewRegistry()); i != nil || err != nil {
		t.Errorf("plaintext without any of it: %v, %v", i, err)
	}
}
