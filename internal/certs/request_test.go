package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net/url"
	"testing"
	"time"
)

func request(t testing.TB, key any, template *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func ecKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestARequestHoldsNoPrivateKeyAndGetsACertificateForIt(t *testing.T) {
	a := authority(t, now, 1)
	keyPEM, err := NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := NewRequest(keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := key.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(der, secret) {
		t.Fatal("the private key is in the request")
	}
	r, err := ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	certificate, c, err := a.Grant(r, Site("lm", "quebec"), time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if !Belongs(c, keyPEM) || !a.Issued(c) || c.URIs[0].String() != "spiffe://lm/site/quebec" || !c.NotAfter.Equal(now.Add(time.Hour)) || c.IsCA {
		t.Errorf("it is for %v until %s", c.URIs, c.NotAfter)
	}
	if _, err := ParseLeaf(Leaf{certificate, keyPEM, a.CertificatePEM}); err != nil {
		t.Error(err)
	}
}

// Whatever the request calls itself, what is issued is for whom the caller says.
func TestTheNameInARequestCountsForNothing(t *testing.T) {
	a := authority(t, now, 1)
	admin, err := url.Parse("spiffe://lm/admin")
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRequest(request(t, ecKey(t, elliptic.P256()), &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "admin"}, URIs: []*url.URL{admin}, DNSNames: []string{"coordinator.example"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	_, c, err := a.Grant(r, Site("lm", "quebec"), time.Hour, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.URIs) != 1 || c.URIs[0].String() != "spiffe://lm/site/quebec" || len(c.DNSNames) != 0 || c.Subject.CommonName != "site/quebec" {
		t.Errorf("it is for %v, %v, %s", c.URIs, c.DNSNames, c.Subject)
	}
}

func TestRequestsThatCannotBeUsedAreRefused(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := request(t, ecKey(t, elliptic.P256()), &x509.CertificateRequest{})
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	for name, der := range map[string][]byte{
		"empty": nil, "garbage": []byte("hello"), "PEM": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: good}),
		"RSA": request(t, rsaKey, &x509.CertificateRequest{}), "P-384": request(t, ecKey(t, elliptic.P384()), &x509.CertificateRequest{}),
		"not its key's signature": forged, "large": append(bytes.Clone(good), make([]byte, maxRequest)...),
	} {
		if _, err := ParseRequest(der); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseRequest(good); err != nil {
		t.Error(err)
	}
}

func FuzzParsingARequest(f *testing.F) {
	f.Add(request(f, ecKey(f, elliptic.P256()), &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}}))
	a, err := NewAuthority("lm", now, stream(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		r, err := ParseRequest(der)
		if err != nil {
			return
		}
		if _, c, err := a.Grant(r, Site("lm", "quebec"), time.Hour, now, stream(2)); err != nil || c.IsCA || c.URIs[0].String() != "spiffe://lm/site/quebec" {
			t.Errorf("%v, %v", c, err)
		}
	})
}

func TestShortLivesAreDueWithinThem(t *testing.T) {
	a := authority(t, now, 1)
	for _, life := range []time.Duration{6 * time.Second, time.Minute, 10 * time.Minute, 24 * time.Hour} {
		l, err := a.IssueFor(Site("lm", "quebec"), life, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseLeaf(l)
		if err != nil {
			t.Fatal(err)
		}
		if due := RenewAt(c).Sub(now); due < life/2 || due > life*3/4 {
			t.Errorf("a life of %s is due after %s", life, due)
		}
	}
}
