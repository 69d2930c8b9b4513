package certs

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// stream is randomness that repeats.
func stream(seed byte) io.Reader { return mathrand.NewChaCha8([32]byte{seed}) }

func authority(t *testing.T, at time.Time, seed byte) *Authority {
	t.Helper()
	a, err := NewAuthority("lm", at, stream(seed))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, a *Authority, id Identity, at time.Time) (Leaf, *x509.Certificate) {
	t.Helper()
	l, err := a.Issue(id, at, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseLeaf(l)
	if err != nil {
		t.Fatal(err)
	}
	return l, c
}

func TestTheSameTimeAndRandomnessGiveTheSameCertificates(t *testing.T) {
	a, b := authority(t, now, 1), authority(t, now, 1)
	la, errA := a.Issue(Site("lm", "quebec"), now, stream(2))
	lb, errB := b.Issue(Site("lm", "quebec"), now, stream(2))
	if errA != nil || errB != nil || string(a.CertificatePEM) != string(b.CertificatePEM) ||
		string(la.Certificate) != string(lb.Certificate) || string(la.Key) != string(lb.Key) {
		t.Errorf("they differ: %v, %v", errA, errB)
	}
	if c := authority(t, now, 3); string(c.KeyPEM) == string(a.KeyPEM) {
		t.Error("other randomness gives the same key")
	}
}

func TestBrokenRandomnessGivesNoKey(t *testing.T) {
	if _, err := NewAuthority("lm", now, strings.NewReader("short")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a short source: %v", err)
	}
	if _, err := NewAuthority("lm", now, zeros{}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a source of zeros: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestLeavesSayWhoTheySpeakFor(t *testing.T) {
	a := authority(t, now, 1)
	for name, tc := range map[string]struct {
		id    Identity
		uri   string
		dns   []string
		ips   int
		usage x509.ExtKeyUsage
	}{
		"site":     {Site("lm", "quebec"), "spiffe://lm/site/quebec", nil, 0, x509.ExtKeyUsageClientAuth},
		"operator": {Operator("lm"), "spiffe://lm/operator", nil, 0, x509.ExtKeyUsageClientAuth},
		"coordinator": {Coordinator("lm", "lm-coordinator", "10.0.0.1", "a.example", "lm-coordinator"), "spiffe://lm/coordinator",
			[]string{"a.example", "lm-coordinator"}, 1, x509.ExtKeyUsageServerAuth},
		"long name": {Site("lm", strings.Repeat("q", 63)), "spiffe://lm/site/" + strings.Repeat("q", 63), nil, 0, x509.ExtKeyUsageClientAuth},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := issue(t, a, tc.id, now)
			if len(c.URIs) != 1 || c.URIs[0].String() != tc.uri || !slices.Equal(c.DNSNames, tc.dns) || len(c.IPAddresses) != tc.ips {
				t.Errorf("it is for %v, %v, %v", c.URIs, c.DNSNames, c.IPAddresses)
			}
			if !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{tc.usage}) || c.IsCA {
				t.Errorf("its use is %v, CA %v", c.ExtKeyUsage, c.IsCA)
			}
			if !c.NotBefore.Equal(now.Add(-Skew)) || !c.NotAfter.Equal(now.Add(LeafValidity)) {
				t.Errorf("it is good from %s to %s", c.NotBefore, c.NotAfter)
			}
		})
	}
}

func TestLeavesAreDueAfterTwoThirdsOfTheirTime(t *testing.T) {
	_, c := issue(t, authority(t, now, 1), Operator("lm"), now)
	at := c.NotBefore.Add((LeafValidity + Skew) * 2 / 3)
	if !RenewAt(c).Equal(at.Truncate(time.Second)) && RenewAt(c).Sub(at).Abs() > time.Second {
		t.Errorf("renewal at %s, want %s", RenewAt(c), at)
	}
}

func TestKeptLeavesAreJudged(t *testing.T) {
	a, other := authority(t, now, 1), authority(t, now, 2)
	id := Coordinator("lm", "lm-coordinator", "10.0.0.1")
	good, c := issue(t, a, id, now)
	foreign, _ := issue(t, other, id, now)
	swapped := good
	swapped.Key = foreign.Key
	disguised := foreign
	disguised.CA = a.CertificatePEM
	for name, tc := range map[string]struct {
		leaf Leaf
		id   Identity
		at   time.Time
		says string // empty: it is good
	}{
		"good":            {good, id, now, ""},
		"names in order":  {good, Coordinator("lm", "10.0.0.1", "lm-coordinator"), now, ""},
		"just before due": {good, id, RenewAt(c).Add(-time.Second), ""},
		"due":             {good, id, RenewAt(c), "is due since"},
		"expired":         {good, id, now.Add(LeafValidity + time.Hour), "is due since"},
		"another name":    {good, Coordinator("lm", "lm-coordinator", "fed.example"), now, "is for the hosts [10.0.0.1 lm-coordinator]"},
		"another role":    {good, Operator("lm"), now, "want spiffe://lm/operator"},
		"other authority": {foreign, id, now, "ca.crt"},
		"only its ca.crt": {disguised, id, now, "not of the federation's present authority"},
		"another's key":   {swapped, id, now, "not the key of the certificate"},
		"nothing":         {Leaf{}, id, now, "tls.crt: is empty or missing"},
		"garbage":         {Leaf{Certificate: []byte("x"), Key: good.Key, CA: good.CA}, id, now, "holds no PEM"},
		"no authority":    {Leaf{Certificate: good.Certificate, Key: good.Key}, id, now, "ca.crt: is empty or missing"},
	} {
		t.Run(name, func(t *testing.T) {
			at, err := a.Check(tc.leaf, tc.id, tc.at)
			if tc.says == "" {
				if err != nil || !at.Equal(RenewAt(c)) {
					t.Errorf("%s, %v", at, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

func TestALeafOfAnEndingAuthorityIsNotIssuedAgainAndAgain(t *testing.T) {
	a := authority(t, now, 1)
	late := a.NotAfter().Add(-time.Hour)
	l, c := issue(t, a, Operator("lm"), late)
	if !c.NotAfter.Equal(a.NotAfter()) {
		t.Errorf("it ends at %s, its authority at %s", c.NotAfter, a.NotAfter())
	}
	if at, err := a.Check(l, Operator("lm"), late.Add(59*time.Minute)); err != nil || !at.Equal(c.NotAfter) {
		t.Errorf("look again at %s, %v", at, err)
	}
}

// given is an authority as a person might make it.
func given(t *testing.T, edit func(*x509.Certificate), key any, public any) (certificate, keyPEM []byte) {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "corp"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(1000 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	if edit != nil {
		edit(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})
}

func TestAGivenAuthorityThatCannotSignIsRefusedWithTheWayOut(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, goodKey := given(t, nil, key, key.Public())
	other := authority(t, now, 9)
	sec1, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(edit func(*x509.Certificate)) []byte {
		c, _ := given(t, edit, key, key.Public())
		return c
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	for name, tc := range map[string]struct {
		certificate, key []byte
		says             string
	}{
		"good":              {good, goodKey, ""},
		"as openssl writes": {good, append(block("EC PARAMETERS", []byte{6}), block("EC PRIVATE KEY", sec1)...), ""},
		"with its chain":    {append(slices.Clone(good), other.CertificatePEM...), goodKey, ""},
		"no authority":      {edited(func(c *x509.Certificate) { c.IsCA = false }), goodKey, "CA:TRUE is missing"},
		"may not sign":      {edited(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }), goodKey, "keyCertSign"},
		"another key":       {good, other.KeyPEM, "not the key of the certificate"},
		"expired":           {edited(func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }), goodKey, "renew it"},
		"not begun":         {edited(func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }), goodKey, "set the clock"},
		"nothing":           {nil, nil, "tls.crt: is empty or missing"},
		"no key":            {good, nil, "tls.key: is empty or missing"},
		"key for both":      {goodKey, goodKey, "holds a PRIVATE KEY, want a CERTIFICATE"},
		"damaged":           {block("CERTIFICATE", []byte("x")), goodKey, "damaged certificate"},
		"damaged key":       {good, block("PRIVATE KEY", []byte("x")), "damaged key"},
		"key with password": {good, block("ENCRYPTED PRIVATE KEY", []byte("x")), "without a password"},
		"no key in PEM":     {good, []byte("x"), "holds no PEM key"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := ParseAuthority(tc.certificate, tc.key, now)
			if tc.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := a.Issue(Operator("lm"), now, rand.Reader); err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

func TestAGivenAuthorityMayHaveAnyKindOfKey(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	edPublic, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]struct{ key, public any }{"RSA": {rsaKey, rsaKey.Public()}, "Ed25519": {edKey, edPublic}} {
		t.Run(name, func(t *testing.T) {
			c, keyPEM := given(t, nil, k.key, k.public)
			a, err := ParseAuthority(c, keyPEM, now)
			if err != nil {
				t.Fatal(err)
			}
			l, _ := issue(t, a, Site("lm", "quebec"), now)
			if _, err := a.Check(l, Site("lm", "quebec"), now); err != nil {
				t.Error(err)
			}
		})
	}
}

func FuzzParsingRefusesWithoutPanic(f *testing.F) {
	a, err := NewAuthority("lm", now, stream(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(a.CertificatePEM, a.KeyPEM)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n"), []byte("-----BEGIN EC PARAMETERS-----\n-----END EC PARAMETERS-----\n"))
	f.Fuzz(func(t *testing.T, certificate, key []byte) {
		if parsed, err := ParseAuthority(certificate, key, now); err == nil {
			if _, err := parsed.Issue(Operator("lm"), now, stream(2)); err != nil {
				t.Errorf("it was taken and cannot sign: %v", err)
			}
		}
	})
}
