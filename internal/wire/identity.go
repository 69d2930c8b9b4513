package wire

import (
	"context"
	"net/url"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// PeerIdentity is the site that the client of an RPC has proven to be: the URI
// spiffe://<federation>/site/<site> in its verified certificate. ok is false in
// plaintext and for certificates without exactly one such URI.
func PeerIdentity(ctx context.Context) (federation, site string, ok bool) {
	for _, u := range peerURIs(ctx) {
		name, found := strings.CutPrefix(u.Path, "/site/")
		if u.Scheme != "spiffe" || u.Host == "" || !found || name == "" || strings.Contains(name, "/") {
			continue
		}
		if ok {
			return "", "", false
		}
		federation, site, ok = u.Host, name, true
	}
	return federation, site, ok
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

func peerURIs(ctx context.Context) []*url.URL {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0].URIs
}
