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

// Role is what an identity may be.
type Role string

// Roles by the path of their URI, spiffe://<federation>/<role>; a site's goes on
// with its name. Anything else has no role and no rights.
const (
	RoleSite        Role = "site"
	RoleAdmin       Role = "admin"
	RoleOperator    Role = "operator"
	RoleCoordinator Role = "coordinator"
)

// Identity is who a client has proven to be.
type Identity struct {
	Federation string
	Role       Role   // empty: an authenticated nobody
	Site       string // with RoleSite only
}

// String is the identity's URI.
func (i Identity) String() string {
	switch i.Role {
	case "":
		return "nobody"
	case RoleSite:
		return "spiffe://" + i.Federation + "/site/" + i.Site
	}
	return "spiffe://" + i.Federation + "/" + string(i.Role)
}

// Prover is the AuthInfo of a link that proves identities by other means than TLS.
type Prover interface{ ProvenIdentity() Identity }

// Peer is the identity that the client of an RPC has proven; ok is false in
// plaintext.
func Peer(ctx context.Context) (id Identity, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, false
	}
	if prover, ok := p.AuthInfo.(Prover); ok {
		return prover.ProvenIdentity(), true
	}
	c := certificateOf(p)
	if c == nil {
		return Identity{}, false
	}
	id, err := identify(c)
	if err != nil {
		return Identity{}, true // a handshake refuses these
	}
	return id, true
}

// PeerIdentity is the site that the client of an RPC has proven to be: the URI
// spiffe://<federation>/site/<site> in its verified certificate. ok is false in
// plaintext and for those who are no site.
func PeerIdentity(ctx context.Context) (federation, site string, ok bool) {
	id, ok := Peer(ctx)
	if !ok || id.Role != RoleSite {
		return "", "", false
	}
	return id.Federation, id.Site, true
}

// Authenticated says whether the client of an RPC has proven any identity.
func Authenticated(ctx context.Context) bool {
	_, ok := Peer(ctx)
	return ok
}

// PeerCertificate is the verified certificate of an RPC's client, nil without TLS.
func PeerCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	return certificateOf(p)
}

func certificateOf(p *peer.Peer) *x509.Certificate {
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// IdentityOf reads the identity of a verified certificate.
func IdentityOf(c *x509.Certificate) (Identity, error) { return identify(c) }

// identify reads the one SPIFFE URI of a certificate; there is no role when there is
// none or it names something else. One that looks like a role's and is not, or more
// than one, is an error: nobody may pass for another by how something is read.
func identify(c *x509.Certificate) (Identity, error) {
	var id Identity
	seen := false
	for _, u := range c.URIs {
		if u.Scheme != "spiffe" {
			continue
		}
		if seen {
			return Identity{}, errors.New("the certificate has several SPIFFE identities")
		}
		seen = true
		if u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			return Identity{}, fmt.Errorf("the certificate's identity %s is not of the form spiffe://<federation>/<role>", u)
		}
		switch role := Role(strings.TrimPrefix(u.Path, "/")); role {
		case RoleAdmin, RoleOperator, RoleCoordinator:
			id = Identity{Federation: u.Host, Role: role}
			continue
		}
		name, isSite := strings.CutPrefix(u.Path, "/site")
		if !isSite {
			continue
		}
		name, ok := strings.CutPrefix(name, "/")
		if !ok || name == "" || strings.Contains(name, "/") {
			return Identity{}, fmt.Errorf("the certificate's identity %s is not of the form spiffe://<federation>/site/<site>", u)
		}
		id = Identity{Federation: u.Host, Role: RoleSite, Site: name}
	}
	return id, nil
}
