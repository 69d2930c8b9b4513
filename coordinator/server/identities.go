package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/identity"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/wire"
)

// authorize lets the federation's people and its operator in, and everybody where
// the link proves nothing: there it is on loopback or was allowed by flag.
func (a *Admin) authorize(ctx context.Context) error {
	id, ok := wire.Peer(ctx)
	federation := a.Engine.Federation()
	if !ok || (id.Federation == federation && (id.Role == wire.RoleAdmin || id.Role == wire.RoleOperator)) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s: the certificate is for %s; the Admin service is for spiffe://%s/admin and spiffe://%s/operator",
		v1alpha1.ReasonIdentityMismatch, id, federation, federation)
}

// errNoLink says that nobody proves who they are here.
const errNoLink = "identities need mutual TLS: start the coordinator with --tls-cert, --tls-key and --tls-ca (girassol init makes them)"

func (a *Admin) identities(ctx context.Context) (*identity.Issuer, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	if a.Identities == nil {
		return nil, status.Error(codes.FailedPrecondition, errNoLink)
	}
	return a.Identities, nil
}

// CreateToken makes a one-time token for a site.
func (a *Admin) CreateToken(ctx context.Context, req *coordinatorv1.CreateTokenRequest) (*coordinatorv1.CreateTokenResponse, error) {
	issuer, err := a.identities(ctx)
	if err != nil {
		return nil, err
	}
	if !a.Engine.Declared(req.GetSite()) {
		return nil, status.Errorf(codes.NotFound, "%s: site %.80q is not declared in federation %s", v1alpha1.ReasonUnknownSite, req.GetSite(), issuer.Federation)
	}
	ms := req.GetTtlMs()
	if ms < 0 || ms > identity.MaxTokenLife.Milliseconds() {
		return nil, status.Errorf(codes.InvalidArgument, "ttl_ms %d is not in 0 to %d", ms, identity.MaxTokenLife.Milliseconds())
	}
	t, kept, err := issuer.CreateToken(req.GetSite(), time.Duration(ms)*time.Millisecond)
	if err != nil {
		return nil, identityRefusal(err)
	}
	a.Log.Info("token created", "site", kept.Site, "token", kept.ID, "expires", kept.Expires, "by", caller(ctx))
	return &coordinatorv1.CreateTokenResponse{Token: t.Text(), Id: kept.ID, ExpiresUnixMs: kept.Expires.UnixMilli()}, nil
}

// ListIdentities tells the open tokens and the certificates.
func (a *Admin) ListIdentities(ctx context.Context, _ *coordinatorv1.ListIdentitiesRequest) (*coordinatorv1.ListIdentitiesResponse, error) {
	issuer, err := a.identities(ctx)
	if err != nil {
		return nil, err
	}
	out := &coordinatorv1.ListIdentitiesResponse{}
	issuer.Store.Look(func(r *identity.Registry) {
		for _, t := range r.OpenTokens(issuer.Now()) {
			out.Tokens = append(out.Tokens, &coordinatorv1.TokenStatus{Id: t.ID, Site: t.Site, ExpiresUnixMs: t.Expires.UnixMilli()})
		}
		for _, c := range r.All() {
			out.Certificates = append(out.Certificates, &coordinatorv1.CertificateStatus{
				Serial: c.Serial, Site: c.Site, NotBeforeUnixMs: unixMs(c.NotBefore), NotAfterUnixMs: unixMs(c.NotAfter),
				RevokedUnixMs: unixMs(c.Revoked), Message: c.Message,
			})
		}
		for _, site := range slices.Sorted(keysOf(r.Sites)) {
			out.Certificates = append(out.Certificates, &coordinatorv1.CertificateStatus{
				Serial: "*", Site: site, RevokedUnixMs: unixMs(r.Sites[site].Time), Message: r.Sites[site].Message,
			})
		}
	})
	return out, nil
}

func keysOf[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func unixMs(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// RevokeIdentity takes out of force and ends what stands on it.
func (a *Admin) RevokeIdentity(ctx context.Context, req *coordinatorv1.RevokeIdentityRequest) (*coordinatorv1.RevokeIdentityResponse, error) {
	issuer, err := a.identities(ctx)
	if err != nil {
		return nil, err
	}
	given := 0
	for _, s := range []string{req.GetSite(), req.GetSerial(), req.GetTokenId()} {
		if s != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, status.Error(codes.InvalidArgument, "give exactly one of site, serial and token_id")
	case len(req.GetMessage()) > maxMessage:
		return nil, status.Errorf(codes.InvalidArgument, "message has %d bytes, at most %d", len(req.GetMessage()), maxMessage)
	case req.GetSite() != "" && !validSite(req.GetSite()):
		return nil, status.Errorf(codes.InvalidArgument, "site %.80q is no site's name", req.GetSite())
	}
	serial, ok := canonicalSerial(req.GetSerial())
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "serial %.80q is not hexadecimal, at most 20 bytes: girassol identities and openssl x509 -serial show it", req.GetSerial())
	}
	var done identity.Revoked
	err = issuer.Store.Do(func(r *identity.Registry) (err error) {
		switch now := issuer.Now(); {
		case req.GetSite() != "":
			done = r.RevokeSite(req.GetSite(), req.GetMessage(), now)
		case serial != "":
			done, err = r.RevokeSerial(serial, req.GetMessage(), now)
		default:
			done, err = r.RevokeToken(req.GetTokenId(), req.GetMessage(), now)
		}
		return err
	})
	if err != nil {
		return nil, identityRefusal(err)
	}
	sessions := a.Revocations.End()
	if peers := issuer.Peers; peers != nil && req.GetSite() != "" {
		if err := peers.Forget(req.GetSite()); err != nil {
			a.Log.Error("the site is revoked, its WireGuard keys are still there", "site", req.GetSite(), "error", err)
		}
	}
	if err := issuer.EndRevokedKeys(); err != nil {
		a.Log.Error("certificates are revoked, their WireGuard keys are still there; a restart of the coordinator ends them", "error", err)
	}
	a.Log.Warn("identity revoked", "site", req.GetSite(), "serial", serial, "token", req.GetTokenId(), "certificates", done.Certificates,
		"tokens", done.Tokens, "sessions", sessions, "message", req.GetMessage(), "by", caller(ctx), "reason", v1alpha1.ReasonIdentityRevoked)
	return &coordinatorv1.RevokeIdentityResponse{Certificates: uint32(done.Certificates), Tokens: uint32(done.Tokens), Sessions: uint32(sessions)}, nil
}

// Renew gives a site's agent its next certificate.
func (f *Fleet) Renew(ctx context.Context, req *coordinatorv1.RenewRequest) (*coordinatorv1.RenewResponse, error) {
	present := wire.PeerCertificate(ctx)
	if f.Identities == nil || f.Identities.Authority == nil || present == nil {
		return nil, status.Error(codes.Unimplemented, identity.ErrNoAuthority.Error())
	}
	federation, site, ok := wire.PeerIdentity(ctx)
	if !ok || federation != f.Engine.Federation() {
		id, _ := wire.Peer(ctx)
		return nil, status.Errorf(codes.PermissionDenied, "%s: the certificate is for %s; sites of federation %s renew here", v1alpha1.ReasonIdentityMismatch, id, f.Engine.Federation())
	}
	if err := f.call(ctx, ""); err != nil {
		return nil, err
	}
	answer, err := f.Identities.Renew(site, present, req.GetCsrDer(), req.GetWireguardPublicKey())
	if err != nil {
		return nil, identityRefusal(err)
	}
	f.Log.Info("certificate renewed", "site", site, "of", certs.Serial(present.SerialNumber))
	out := &coordinatorv1.RenewResponse{Certificate: answer.Certificate, Ca: answer.CA}
	if w := answer.WireGuard; w != nil {
		out.Wireguard = &coordinatorv1.WireGuardPeer{PublicKey: w.PublicKey, Endpoint: w.Endpoint, Port: w.Port}
	}
	return out, nil
}

func identityRefusal(err error) error {
	var known *identity.Error
	switch {
	case errors.As(err, &known) && known.Reason == v1alpha1.ReasonTokenUnknown:
		return status.Error(codes.NotFound, err.Error())
	case errors.As(err, &known):
		return status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, identity.ErrNoAuthority):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, identity.ErrFull):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, certs.ErrRequest):
		return status.Errorf(codes.InvalidArgument, "%s: %v", v1alpha1.ReasonMalformed, err)
	}
	return status.Error(codes.Internal, err.Error())
}

// caller names who asks, for the log.
func caller(ctx context.Context) string {
	if id, ok := wire.Peer(ctx); ok {
		return id.String()
	}
	return "a link without TLS"
}
