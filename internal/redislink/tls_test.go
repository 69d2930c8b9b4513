package redislink

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// authority makes certificates in a folder.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.pem and name-key.pem.
func (a *authority) issue(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + "-key.pem": {Type: "PRIVATE KEY", Bytes: k}} {
		if err := os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return made, key
}

func TestTLSTrustsTheGivenAuthorityAndNameOnly(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	a.issue("server", &x509.Certificate{DNSNames: []string{"redis.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	a.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	stranger.issue("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	addr := "127.0.0.1:" + serve(t, "--port", "0", "--tls-port", "PORT", "--tls-cert-file", a.file("server.pem"),
		"--tls-key-file", a.file("server-key.pem"), "--tls-ca-cert-file", a.file("ca.pem"), "--tls-auth-clients", "yes")
	right := Options{
		URL: "rediss://" + addr, CAFile: a.file("ca.pem"), ServerName: "redis.test",
		CertFile: a.file("client.pem"), KeyFile: a.file("client-key.pem"),
	}
	with := func(change func(*Options)) Options { o := right; change(&o); return o }
	for name, c := range map[string]struct {
		o     Options
		fails string // empty: it works
	}{
		"all right":            {o: right},
		"by a flag":            {o: with(func(o *Options) { o.URL, o.TLS = "redis://"+addr, true })},
		"another authority":    {with(func(o *Options) { o.CAFile = stranger.file("ca.pem") }), "unknown authority"},
		"the system's":         {with(func(o *Options) { o.CAFile = "" }), "unknown authority"},
		"another name":         {with(func(o *Options) { o.ServerName = "other.test" }), "not other.test"},
		"the address for name": {with(func(o *Options) { o.ServerName = "" }), "127.0.0.1"},
		"no certificate":       {with(func(o *Options) { o.CertFile, o.KeyFile = "", "" }), " "},
		"a stranger's":         {with(func(o *Options) { o.CertFile, o.KeyFile = stranger.file("client.pem"), stranger.file("client-key.pem") }), " "},
		"plaintext":            {Options{URL: "redis://" + addr}, " "},
	} {
		client, err := Connect(c.o, discard)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = client.XAdd(ctx, &redis.XAddArgs{Stream: "s", Values: []string{"a", "b"}}).Err()
		if c.fails == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			sub := client.Subscribe(ctx, "s")
			if _, err := sub.Receive(ctx); err != nil {
				t.Errorf("%s: subscription: %v", name, err)
			}
			_ = sub.Close()
		} else if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		}
		cancel()
		_ = client.Close()
	}
}
