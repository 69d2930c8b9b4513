package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/identity"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/wire"
)

// Revocations keeps revoked and expired certificates out: at the handshake, at each
// call, and in the middle of a call.
type Revocations struct {
	store *identity.Store
	now   func() time.Time

	mu   sync.Mutex
	live map[*standing]bool
}

// standing is a call that stands on a certificate, or on a tunnel's key.
type standing struct {
	certificate *x509.Certificate // nil through a tunnel
	site        string            // through a tunnel
	session     bool
	end         context.CancelCauseFunc
}

// NewRevocations asks a store.
func NewRevocations(store *identity.Store, now func() time.Time) *Revocations {
	return &Revocations{store: store, now: now, live: map[*standing]bool{}}
}

// Vet refuses a revoked certificate; see wire.Options.
func (r *Revocations) Vet(c *x509.Certificate) error {
	id, err := wire.IdentityOf(c)
	if err != nil {
		return err
	}
	return r.store.Check(certs.Serial(c.SerialNumber), id.Site, c.NotBefore)
}

// ServerOptions has each call watched.
func (r *Revocations) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(r.unary), grpc.ChainStreamInterceptor(r.stream)}
}

// begin watches a call. done returns what the call shall return instead of its own
// error.
func (r *Revocations) begin(ctx context.Context, method string) (_ context.Context, done func(error) error, err error) {
	id, ok := wire.Peer(ctx)
	if !ok {
		return ctx, func(err error) error { return err }, nil
	}
	ctx, end := context.WithCancelCause(ctx)
	s := &standing{certificate: wire.PeerCertificate(ctx), site: id.Site, session: method == coordinatorv1.Fleet_Session_FullMethodName, end: end}
	r.mu.Lock()
	r.live[s] = true
	r.mu.Unlock()
	expiry := func() bool { return false }
	done = func(err error) error {
		expiry()
		r.mu.Lock()
		delete(r.live, s)
		r.mu.Unlock()
		if ended := cutOff(ctx); ended != nil {
			err = ended
		}
		end(nil)
		return err
	}
	// After it is registered: a revocation in between is not missed.
	if err := r.check(s); err != nil {
		end(err)
		return nil, nil, done(status.Error(codes.PermissionDenied, err.Error()))
	}
	if c := s.certificate; c != nil && !c.NotAfter.IsZero() {
		expiry = wire.AlarmAt(wire.Expiry(c), r.now, func() { end(expired(c)) }).Stop
	}
	return ctx, done, nil
}

func (r *Revocations) check(s *standing) error {
	c := s.certificate
	if c == nil {
		return r.store.CheckSite(s.site, r.now())
	}
	if !c.NotAfter.IsZero() && !r.now().Before(wire.Expiry(c)) {
		return expired(c)
	}
	return r.Vet(c)
}

func expired(c *x509.Certificate) error {
	return &identity.Error{Reason: v1alpha1.ReasonCertificateExpired, Message: fmt.Sprintf(
		"the certificate of this connection ended at %s: connect again with a newer one; a site that has none enrols again with a new token", c.NotAfter.UTC().Format(time.RFC3339))}
}

// cutOff is the answer to a call that was ended because of its certificate; nil if
// it was not. Who comes again after an expiry may have a newer one by then.
func cutOff(ctx context.Context) error {
	var e *identity.Error
	switch {
	case !errors.As(context.Cause(ctx), &e):
		return nil
	case e.Reason == v1alpha1.ReasonCertificateExpired:
		return status.Error(codes.Unavailable, e.Error())
	}
	return status.Error(codes.PermissionDenied, e.Error())
}

// End ends the calls that stand on certificates revoked by now, and says how many
// of them were sessions.
func (r *Revocations) End() (sessions int) {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.live {
		if err := r.check(s); err != nil {
			s.end(err)
			delete(r.live, s)
			if s.session {
				sessions++
			}
		}
	}
	return sessions
}

func (r *Revocations) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, done, err := r.begin(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err = done(err); err != nil {
		return nil, err
	}
	return resp, nil
}

func (r *Revocations) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, done, err := r.begin(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return done(handler(srv, &watchedStream{ss, ctx}))
}

// watchedStream carries nothing more after its call was cut off.
type watchedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *watchedStream) Context() context.Context { return s.ctx }

func (s *watchedStream) SendMsg(m any) error {
	if err := cutOff(s.ctx); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

func (s *watchedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if ended := cutOff(s.ctx); ended != nil {
		return ended
	}
	return err
}

// lossReason is why a session's call ended.
func lossReason(ctx context.Context) v1alpha1.Reason {
	switch status.Code(cutOff(ctx)) {
	case codes.OK:
		return v1alpha1.ReasonConnectionLost
	case codes.Unavailable:
		return v1alpha1.ReasonCertificateExpired
	}
	return v1alpha1.ReasonIdentityRevoked
}

var siteName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func validSite(s string) bool { return siteName.MatchString(s) }

// canonicalSerial reads a serial number as openssl and we write it; empty stays.
func canonicalSerial(s string) (string, bool) {
	if s == "" {
		return "", true
	}
	if len(s) > 80 {
		return "", false
	}
	n, ok := new(big.Int).SetString(strings.ReplaceAll(s, ":", ""), 16)
	if !ok || n.Sign() <= 0 || n.BitLen() > 160 {
		return "", false
	}
	return certs.Serial(n), true
}
