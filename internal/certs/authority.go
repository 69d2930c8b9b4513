// Package certs makes and judges the certificates of a federation: one authority
// and the leaves of its coordinator, its sites and its operator.
//
// It owns what stands in them and when they are due. It is pure given a time and
// a source of randomness. It must not know where they are kept.
//
// A site's name stands in its certificate, spiffe://<federation>/site/<site>; the
// coordinator takes no other word for it. The others are /coordinator, /operator
// and /admin, a person. Keys are ECDSA P-256, but a given authority's may be of any
// kind; everything is PEM.
package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"
)

// How long certificates are good. Both begin Skew before they are made, for the
// clocks of sites that are late.
const (
	AuthorityValidity = 10 * 365 * 24 * time.Hour
	LeafValidity      = 90 * 24 * time.Hour
	Skew              = 5 * time.Minute
)

// Authority signs the certificates of one federation.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	// CertificatePEM and KeyPEM are what to keep: tls.crt and tls.key.
	CertificatePEM, KeyPEM []byte
}

// NewAuthority makes an authority for a federation.
func NewAuthority(federation string, now time.Time, random io.Reader) (*Authority, error) {
	key, err := newKey(random)
	if err != nil {
		return nil, fmt.Errorf("authority of federation %s: %w", federation, err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: federation, OrganizationalUnit: []string{"girassol"}},
		NotBefore:             now.Add(-Skew),
		NotAfter:              now.Add(AuthorityValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it signs leaves and no other authorities
	}
	certificate, keyPEM, err := sign(template, nil, key, key, random)
	if err != nil {
		return nil, fmt.Errorf("authority of federation %s: %w", federation, err)
	}
	return ParseAuthority(certificate, keyPEM, now)
}

// ParseAuthority reads a kept or given authority and refuses one that could not
// sign: not an authority, another key, expired, not begun.
func ParseAuthority(certificatePEM, keyPEM []byte, now time.Time) (*Authority, error) {
	certificate, err := parseCertificate(certificatePEM)
	if err != nil {
		return nil, fmt.Errorf("tls.crt: %w", err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("tls.key: %w", err)
	}
	name := certificate.Subject.String()
	switch {
	case !certificate.BasicConstraintsValid || !certificate.IsCA:
		return nil, fmt.Errorf("tls.crt: the certificate of %s is no authority (CA:TRUE is missing): give one that may sign others", name)
	case certificate.KeyUsage != 0 && certificate.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, fmt.Errorf("tls.crt: the authority %s may not sign certificates: its key usage lacks keyCertSign", name)
	case !matches(certificate, key):
		return nil, fmt.Errorf("tls.key: it is not the key of the certificate in tls.crt (%s)", name)
	case now.After(certificate.NotAfter):
		return nil, fmt.Errorf("tls.crt: the authority %s ended at %s: renew it", name, certificate.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(certificate.NotBefore):
		return nil, fmt.Errorf("tls.crt: the authority %s begins at %s only: wait, or set the clock", name, certificate.NotBefore.UTC().Format(time.RFC3339))
	}
	return &Authority{certificate, key, certificatePEM, keyPEM}, nil
}

// NotAfter is when the authority ends; no leaf of it lives longer.
func (a *Authority) NotAfter() time.Time { return a.certificate.NotAfter }

// Fingerprint is the SHA-256 of the authority's certificate, base64url.
func (a *Authority) Fingerprint() string { return Fingerprint(a.certificate) }

// Fingerprint is the SHA-256 of a certificate, base64url.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// sign makes a certificate for key's public part, signed by signer under parent;
// without a parent it signs itself.
func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer, random io.Reader) (certificate, keyPEM []byte, err error) {
	if certificate, err = signPublic(template, parent, key.Public(), signer, random); err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return certificate, keyPEM, err
}

func signPublic(template, parent *x509.Certificate, key crypto.PublicKey, signer crypto.Signer, random io.Reader) (certificate []byte, err error) {
	if template.SerialNumber, err = serial(random); err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(public)
	template.SubjectKeyId = id[:20]
	if parent == nil {
		parent = template
	}
	// Without a reader ECDSA signs as RFC 6979 says; no kind of key needs one.
	der, err := x509.CreateCertificate(nil, template, parent, key, signer)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// newKey draws a key by rejection sampling (FIPS 186-5, A.2.2), because
// ecdsa.GenerateKey takes no randomness but its own.
func newKey(random io.Reader) (*ecdsa.PrivateKey, error) {
	const tries = 64 // each fails once in 2^32
	secret := make([]byte, 32)
	for range tries {
		if _, err := io.ReadFull(random, secret); err != nil {
			return nil, fmt.Errorf("draw a key: %w", err)
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), secret); err == nil {
			return key, nil
		}
	}
	return nil, errors.New("draw a key: the source of randomness is broken")
}

// serial of 127 random bits, positive.
func serial(random io.Reader) (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(random, b); err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	b[0] &= 0x7f
	b[15] |= 1 // never 0
	return new(big.Int).SetBytes(b), nil
}

// parseCertificate reads the first certificate; what follows is its chain.
func parseCertificate(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(bytes.TrimSpace(b))
	switch {
	case len(b) == 0:
		return nil, errors.New("is empty or missing")
	case block == nil:
		return nil, errors.New("holds no PEM")
	case block.Type != "CERTIFICATE":
		return nil, fmt.Errorf("holds a %s, want a CERTIFICATE", block.Type)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("holds a damaged certificate: %w", err)
	}
	return c, nil
}

// parseKey reads a key without a password: PKCS #8, SEC 1 or PKCS #1.
func parseKey(b []byte) (crypto.Signer, error) {
	for rest := b; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		var key any
		var err error
		switch block.Type {
		case "EC PARAMETERS": // openssl writes them before the key
			continue
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		default:
			return nil, fmt.Errorf("holds a %s, want a PRIVATE KEY without a password", block.Type)
		}
		if err != nil {
			return nil, fmt.Errorf("holds a damaged key: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("holds a %T, which cannot sign: want ECDSA, Ed25519 or RSA", key)
		}
		return signer, nil
	}
	if len(b) == 0 {
		return nil, errors.New("is empty or missing")
	}
	return nil, errors.New("holds no PEM key")
}

// matches says whether key is the certificate's.
func matches(c *x509.Certificate, key crypto.Signer) bool {
	public, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(key.Public())
}
