package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"girassol.dev/internal/wire"
)

// certificates are those of one run: an authority, a coordinator, its sites.
type certificates struct {
	dir string
	ca  *x509.Certificate
	key *ecdsa.PrivateKey
}

func newCertificates(dir string) (*certificates, error) {
	c := &certificates{dir: dir}
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	t := template("bench authority")
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, c.key.Public(), c.key)
	if err != nil {
		return nil, err
	}
	if c.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return c, writePEM(filepath.Join(dir, "ca.pem"), "CERTIFICATE", der)
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// server is the coordinator's end of a link.
func (c *certificates) server() (wire.Options, error) {
	return c.issue("coordinator", func(t *x509.Certificate) { t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
}

// site is a site's end.
func (c *certificates) site(name string) (wire.Options, error) {
	return c.issue(name, func(t *x509.Certificate) {
		t.URIs = []*url.URL{{Scheme: "spiffe", Host: federationName, Path: "/site/" + name}}
	})
}

func (c *certificates) issue(name string, fill func(*x509.Certificate)) (wire.Options, error) {
	o := wire.Options{CertFile: filepath.Join(c.dir, name+".pem"), KeyFile: filepath.Join(c.dir, name+"-key.pem"), CAFile: filepath.Join(c.dir, "ca.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return o, err
	}
	t := template(name)
	fill(t)
	der, err := x509.CreateCertificate(rand.Reader, t, c.ca, key.Public(), c.key)
	if err != nil {
		return o, err
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return o, err
	}
	return o, errors.Join(writePEM(o.CertFile, "CERTIFICATE", der), writePEM(o.KeyFile, "EC PRIVATE KEY", secret))
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
