package wire

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// PeerIdentity is the site that the client of an RPC has proven to be: the URI
// spiffe://<federation>/site/<site> in its verified certificate. ok is false in
// plaintext and for certificates that name no site; those that name several are
// refused when they connect.
func PeerIdentity(ctx context.Context) (federation, site string, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", "", false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return "", "", false
	}
	federation, site, err := identity(info.State.VerifiedChains[0][0])
	return federation, site, err == nil && site != ""
}

// identity reads the one SPIFFE URI of a certificate; site is empty when there is
// none or it names something else. One that is no site's and looks like it, or
// more than one, is an error: who counts as no site has more rights.
func identity(c *x509.Certificate) (federation, site string, err error) {
	seen := false
	for _, u := range c.URIs {
		if u.Scheme != "spiffe" {
			continue
		}
		if seen {
			return "", "", errors.New("the certificate has several SPIFFE identities")
		}
		seen = true
		name, isSite := strings.CutPrefix(u.Path, "/site")
		if !isSite {
			continue
		}
		name, ok := strings.CutPrefix(name, "/")
		if !ok || name == "" || u.Host == "" || strings.Contains(name, "/") {
			return "", "", fmt.Errorf("the certificate's identity %s is not of the form spiffe://<federation>/site/<site>", u)
		}
		federation, site = u.Host, name
	}
	return federation, site, nil
}

// Authenticated says whether the client of an RPC has proven any identity, that
// is whether the link is mutual TLS.
func Authenticated(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return ok && len(info.State.VerifiedChains) > 0
}
