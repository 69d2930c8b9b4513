package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"time"

	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
)

// DefaultLife of a site's certificate. It is short because revocation is known to
// this coordinator only, and long enough for a site that sleeps over a weekend.
const DefaultLife = 7 * 24 * time.Hour

// ErrNoAuthority says that certificates are not made here.
var ErrNoAuthority = errors.New("this coordinator holds no authority's key, so that it can make no tokens and certificates: start it with --ca-cert and --ca-key, or let who holds the key issue them (on Kubernetes the operator does)")

// Peers learns the WireGuard key of a site that enrols or renews, and says how to
// reach the tunnel.
type Peers interface {
	Admit(publicKey []byte, site string) (*enrol.WireGuard, error)
	// Forget ends what a revoked site's keys may do.
	Forget(site string) error
	// End ends what these keys may do.
	End(keys [][]byte) error
}

// Issuer makes a federation's tokens and certificates.
type Issuer struct {
	Federation string
	Store      *Store
	// Authority signs; nil: no tokens, no certificates.
	Authority *certs.Authority
	// Life of a certificate.
	Life time.Duration
	// Peers may be nil.
	Peers  Peers
	Now    func() time.Time
	Random io.Reader
}

// CreateToken makes a token for a site; the secret is in its text only.
func (i *Issuer) CreateToken(site string, life time.Duration) (enrol.Token, Token, error) {
	if i.Authority == nil {
		return enrol.Token{}, Token{}, ErrNoAuthority
	}
	if life == 0 {
		life = DefaultTokenLife
	}
	t, err := enrol.NewToken(i.Authority.Fingerprint(), i.Random)
	if err != nil {
		return enrol.Token{}, Token{}, err
	}
	var kept Token
	err = i.Store.Do(func(r *Registry) (err error) {
		kept, err = r.AddToken(t, site, life, i.Now())
		return err
	})
	return t, kept, err
}

// Enrol exchanges a token for a certificate of the token's site. The use of the
// token and the certificate's number are on disk before anyone has the certificate.
func (i *Issuer) Enrol(token enrol.Token, csr, wireguard []byte) (enrol.Answer, error) {
	if i.Authority == nil {
		return enrol.Answer{}, ErrNoAuthority
	}
	request, err := certs.ParseRequest(csr)
	if err != nil {
		return enrol.Answer{}, err
	}
	answer := enrol.Answer{Federation: i.Federation, CA: i.Authority.CertificatePEM}
	err = i.Store.Do(func(r *Registry) (err error) {
		if answer.Site, err = r.Redeem(token, request.KeyHash, i.Now()); err != nil {
			return err
		}
		answer.Certificate, err = i.grant(r, request, answer.Site, token.ID, wireguard)
		return err
	})
	if err != nil {
		return enrol.Answer{}, err
	}
	answer.WireGuard, err = i.admit(wireguard, answer.Site)
	return answer, err
}

// Renew exchanges a certificate that the caller has proven for a newer one.
func (i *Issuer) Renew(site string, present *x509.Certificate, csr, wireguard []byte) (enrol.Answer, error) {
	if i.Authority == nil {
		return enrol.Answer{}, ErrNoAuthority
	}
	request, err := certs.ParseRequest(csr)
	if err != nil {
		return enrol.Answer{}, err
	}
	answer := enrol.Answer{Federation: i.Federation, Site: site, CA: i.Authority.CertificatePEM}
	err = i.Store.Do(func(r *Registry) (err error) {
		serial := certs.Serial(present.SerialNumber)
		if err := r.Check(serial, site, present.NotBefore); err != nil {
			return err
		}
		answer.Certificate, err = i.grant(r, request, site, r.Certificates[serial].Token, wireguard)
		return err
	})
	if err != nil {
		return enrol.Answer{}, err
	}
	answer.WireGuard, err = i.admit(wireguard, site)
	return answer, err
}

func (i *Issuer) grant(r *Registry, request certs.Request, site, token string, wireguard []byte) ([]byte, error) {
	now := i.Now()
	pem, c, err := i.Authority.Grant(request, certs.Site(i.Federation, site), i.Life, now, i.Random)
	if err != nil {
		return nil, err
	}
	return pem, r.AddCertificate(Certificate{
		Serial: certs.Serial(c.SerialNumber), Site: site, NotBefore: c.NotBefore, NotAfter: c.NotAfter, Token: token, WireGuard: wireguard,
	}, now)
}

func (i *Issuer) admit(key []byte, site string) (*enrol.WireGuard, error) {
	if i.Peers == nil || len(key) == 0 {
		return nil, nil
	}
	peer, err := i.Peers.Admit(key, site)
	if err != nil {
		return nil, fmt.Errorf("WireGuard key: %w", err)
	}
	// The certificate may have been revoked since it was granted.
	return peer, i.EndRevokedKeys()
}

// EndRevokedKeys ends what the WireGuard keys of revoked certificates may do. After a
// revocation that is at once; at a start it makes up for one that a kill cut short.
func (i *Issuer) EndRevokedKeys() error {
	if i.Peers == nil {
		return nil
	}
	var keys [][]byte
	i.Store.Look(func(r *Registry) { keys = r.RevokedKeys(i.Now()) })
	if len(keys) == 0 {
		return nil
	}
	return i.Peers.End(keys)
}
