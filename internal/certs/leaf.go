package certs

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Identity is who a certificate speaks for.
type Identity struct {
	federation string
	path       string // of the SPIFFE URI
	names      []string
	usage      x509.ExtKeyUsage
}

// Site of a federation.
func Site(federation, site string) Identity {
	return Identity{federation: federation, path: "/site/" + site, usage: x509.ExtKeyUsageClientAuth}
}

// Operator of a federation.
func Operator(federation string) Identity {
	return Identity{federation: federation, path: "/operator", usage: x509.ExtKeyUsageClientAuth}
}

// Admin of a federation: a person with the girassol command.
func Admin(federation string) Identity {
	return Identity{federation: federation, path: "/admin", usage: x509.ExtKeyUsageClientAuth}
}

// Coordinator of a federation, reached under hosts: DNS names and IP addresses.
func Coordinator(federation string, hosts ...string) Identity {
	return Identity{federation: federation, path: "/coordinator", names: canonical(hosts), usage: x509.ExtKeyUsageServerAuth}
}

// String is the identity's URI.
func (i Identity) String() string { return "spiffe://" + i.federation + i.path }

// Leaf is a certificate with its key and the authority that the other end needs.
type Leaf struct {
	// Certificate, Key and CA are PEM: tls.crt, tls.key and ca.crt.
	Certificate, Key, CA []byte
}

// Issue makes a leaf for an identity. A client's cannot serve and a server's
// cannot call, so neither passes for the other.
func (a *Authority) Issue(id Identity, now time.Time, random io.Reader) (Leaf, error) {
	return a.IssueFor(id, LeafValidity, now, random)
}

// IssueFor is Issue with a life of its own.
func (a *Authority) IssueFor(id Identity, life time.Duration, now time.Time, random io.Reader) (Leaf, error) {
	key, err := newKey(random)
	if err != nil {
		return Leaf{}, fmt.Errorf("certificate of %s: %w", id, err)
	}
	certificate, err := a.certify(id, key.Public(), life, now, random)
	if err != nil {
		return Leaf{}, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Leaf{}, fmt.Errorf("certificate of %s: %w", id, err)
	}
	return Leaf{Certificate: certificate, Key: keyPEM, CA: a.CertificatePEM}, nil
}

// certify signs that a key is an identity's.
func (a *Authority) certify(id Identity, key crypto.PublicKey, life time.Duration, now time.Time, random io.Reader) ([]byte, error) {
	uri, err := url.Parse(id.String())
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", id, err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: strings.TrimPrefix(id.path, "/"), OrganizationalUnit: []string{"girassol"}},
		URIs:                  []*url.URL{uri},
		NotBefore:             later(now.Add(-Skew), a.certificate.NotBefore),
		NotAfter:              sooner(now.Add(life), a.certificate.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{id.usage},
		BasicConstraintsValid: true,
	}
	for _, host := range id.names {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	// An X.509 common name has at most 64 characters; a longer one is not needed.
	template.Subject.CommonName = template.Subject.CommonName[:min(len(template.Subject.CommonName), 64)]
	certificate, err := signPublic(template, a.certificate, key, a.key, random)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", id, err)
	}
	return certificate, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func sooner(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// RenewAt is when a certificate becomes due: two thirds of its time are over. What
// it was backdated by is no time of its.
func RenewAt(c *x509.Certificate) time.Time {
	from := c.NotBefore
	if life := c.NotAfter.Sub(from); life > 2*Skew {
		return from.Add(life / 3 * 2)
	}
	if issued := from.Add(Skew); issued.Before(c.NotAfter) {
		from = issued
	}
	return from.Add(c.NotAfter.Sub(from) / 3 * 2)
}

// Check reads a kept leaf and says by an error why it must be issued anew:
// damaged, of another authority, for someone else, or due. Otherwise it gives the
// time at which it becomes due.
func (a *Authority) Check(leaf Leaf, id Identity, now time.Time) (renewAt time.Time, err error) {
	c, err := ParseLeaf(leaf)
	if err != nil {
		return time.Time{}, err
	}
	if string(leaf.CA) != string(a.CertificatePEM) {
		return time.Time{}, errors.New("ca.crt: is not the federation's present authority")
	}
	if err := c.CheckSignatureFrom(a.certificate); err != nil {
		return time.Time{}, fmt.Errorf("tls.crt: is not of the federation's present authority: %w", err)
	}
	if len(c.URIs) != 1 || c.URIs[0].String() != id.String() {
		return time.Time{}, fmt.Errorf("tls.crt: is for %v, want %s", c.URIs, id)
	}
	if names := canonical(hosts(c)); !slices.Equal(names, id.names) {
		return time.Time{}, fmt.Errorf("tls.crt: is for the hosts %v, want %v", names, id.names)
	}
	renewAt = RenewAt(c)
	if !c.NotAfter.Before(a.certificate.NotAfter) {
		renewAt = c.NotAfter // another would not live longer than its authority either
	}
	if !now.Before(renewAt) {
		return time.Time{}, fmt.Errorf("tls.crt: is due since %s", renewAt.UTC().Format(time.RFC3339))
	}
	return renewAt, nil
}

// hosts are a certificate's DNS names and IP addresses.
func hosts(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// canonical sorts names, each once, with IP addresses as certificates give them
// back.
func canonical(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			n = ip.String()
		}
		out[i] = n
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ParseLeaf reads a leaf's certificate and refuses one that is not its key's.
func ParseLeaf(leaf Leaf) (*x509.Certificate, error) {
	c, err := parseCertificate(leaf.Certificate)
	if err != nil {
		return nil, fmt.Errorf("tls.crt: %w", err)
	}
	key, err := parseKey(leaf.Key)
	if err != nil {
		return nil, fmt.Errorf("tls.key: %w", err)
	}
	if !matches(c, key) {
		return nil, errors.New("tls.key: is not the key of the certificate in tls.crt")
	}
	if _, err := parseCertificate(leaf.CA); err != nil {
		return nil, fmt.Errorf("ca.crt: %w", err)
	}
	return c, nil
}
