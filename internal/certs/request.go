package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"
)

// maxRequest bounds a request for a certificate, in bytes.
const maxRequest = 4 << 10

// NewKey draws a private key, PEM. It is for the machine that it is made on.
func NewKey(random io.Reader) (keyPEM []byte, err error) {
	key, err := newKey(random)
	if err != nil {
		return nil, err
	}
	return encodeKey(key)
}

// NewRequest asks for a certificate of a key: PKCS #10, DER. It holds the public
// part and a proof that the asker has the private one; no name, because what an
// asker calls itself counts for nothing.
func NewRequest(keyPEM []byte) ([]byte, error) {
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("request for a certificate: %w", err)
	}
	return der, nil
}

// Request is a checked request: whoever made it has the private key.
type Request struct {
	// KeyHash is the SHA-256 of the public key, hexadecimal.
	KeyHash string
	key     crypto.PublicKey
}

// ErrRequest is in each error of ParseRequest.
var ErrRequest = errors.New("the request for a certificate cannot be used")

// ParseRequest reads a request from outside. Whatever name it asks for is passed
// over.
func ParseRequest(der []byte) (Request, error) {
	switch {
	case len(der) == 0:
		return Request{}, fmt.Errorf("%w: it is empty", ErrRequest)
	case len(der) > maxRequest:
		return Request{}, fmt.Errorf("%w: it has %d bytes, at most %d", ErrRequest, len(der), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return Request{}, fmt.Errorf("%w: it is no PKCS #10 in DER", ErrRequest)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return Request{}, fmt.Errorf("%w: it must have an ECDSA P-256 key", ErrRequest)
	}
	if err := r.CheckSignature(); err != nil {
		return Request{}, fmt.Errorf("%w: it is not signed by its key", ErrRequest)
	}
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return Request{}, fmt.Errorf("%w: it has a damaged key", ErrRequest)
	}
	sum := sha256.Sum256(public)
	return Request{KeyHash: hex.EncodeToString(sum[:]), key: key}, nil
}

// Grant issues the certificate that a request asks for, to an identity that the
// caller knows from elsewhere.
func (a *Authority) Grant(r Request, id Identity, life time.Duration, now time.Time, random io.Reader) (certificatePEM []byte, c *x509.Certificate, err error) {
	if certificatePEM, err = a.certify(id, r.key, life, now, random); err != nil {
		return nil, nil, err
	}
	c, err = parseCertificate(certificatePEM)
	return certificatePEM, c, err
}

// Serial writes a serial number as everything here does.
func Serial(n *big.Int) string { return hex.EncodeToString(n.Bytes()) }

// ParseCertificate reads the first certificate of a PEM file.
func ParseCertificate(b []byte) (*x509.Certificate, error) { return parseCertificate(b) }

// IdentityOf gives a coordinator's identity as its kept certificate has it, so that
// it can be issued again.
func IdentityOf(c *x509.Certificate, federation string) (Identity, error) {
	id := Coordinator(federation, hosts(c)...)
	if len(c.URIs) != 1 || c.URIs[0].String() != id.String() {
		return Identity{}, fmt.Errorf("the certificate is for %v, want %s", c.URIs, id)
	}
	return id, nil
}

// Issued says whether a certificate is of this authority.
func (a *Authority) Issued(c *x509.Certificate) bool {
	return c.CheckSignatureFrom(a.certificate) == nil
}

// Belongs says whether a key, PEM, is a certificate's.
func Belongs(c *x509.Certificate, keyPEM []byte) bool {
	key, err := parseKey(keyPEM)
	return err == nil && matches(c, key)
}
