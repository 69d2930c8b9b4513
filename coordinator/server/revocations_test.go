package server

import (
	"context"
	"crypto/x509"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/identity"
	"girassol.dev/internal/wire"
)

// endless is a stream on which messages come and go for ever.
type endless struct {
	grpc.ServerStream
	ctx context.Context
}

func (e *endless) Context() context.Context { return e.ctx }
func (e *endless) RecvMsg(any) error        { return nil }
func (e *endless) SendMsg(any) error        { return nil }

// proven is the context of a call by who has proven to be uri.
func proven(t *testing.T, uri string, serial int64) context.Context {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), URIs: []*url.URL{u}, NotBefore: time.Now().Add(-time.Hour)}
	info := credentials.TLSInfo{}
	info.State.VerifiedChains = [][]*x509.Certificate{{c}}
	return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info})
}

type tunnelled struct {
	credentials.CommonAuthInfo
	id wire.Identity
}

func (tunnelled) AuthType() string                { return "tunnel" }
func (t tunnelled) ProvenIdentity() wire.Identity { return t.id }

func revocations(t *testing.T) (*Revocations, *identity.Store) {
	t.Helper()
	s, err := identity.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return NewRevocations(s, time.Now), s
}

// In the middle of a transfer, too: nothing that comes after the revocation is
// heard, and the call ends with the reason.
func TestARevocationEndsEveryCallThatStandsOnIt(t *testing.T) {
	r, store := revocations(t)
	quebec := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: tunnelled{id: wire.Identity{Federation: "lm", Role: wire.RoleSite, Site: "quebec"}}})
	calls := map[string]struct {
		ctx   context.Context
		ended bool
	}{
		"the site, by certificate":       {proven(t, "spiffe://lm/site/quebec", 1), true},
		"the site, through the tunnel":   {quebec, true},
		"another site":                   {proven(t, "spiffe://lm/site/porto", 2), false},
		"an administrator":               {proven(t, "spiffe://lm/admin", 3), false},
		"in plaintext on this machine":   {t.Context(), false},
		"the site, by an other's serial": {proven(t, "spiffe://lm/site/quebec", 9), true},
	}
	stop := make(chan struct{})
	begun := make(chan struct{}, len(calls))
	results := map[string]chan error{}
	for name, c := range calls {
		result := make(chan error, 1)
		results[name] = result
		go func() {
			result <- r.stream(nil, &endless{ctx: c.ctx}, &grpc.StreamServerInfo{FullMethod: coordinatorv1.Fleet_Push_FullMethodName}, func(_ any, s grpc.ServerStream) error {
				begun <- struct{}{}
				for {
					select {
					case <-stop:
						return nil
					default:
					}
					if err := errors.Join(s.RecvMsg(nil), s.SendMsg(nil)); err != nil {
						return err
					}
				}
			})
		}()
	}
	for range calls {
		<-begun
	}
	if n := r.End(); n != 0 {
		t.Errorf("%d sessions ended before anything was revoked", n)
	}
	if err := store.Do(func(g *identity.Registry) error { g.RevokeSite("quebec", "", time.Now()); return nil }); err != nil {
		t.Fatal(err)
	}
	r.End()
	for name, c := range calls {
		if !c.ended {
			continue
		}
		select {
		case err := <-results[name]:
			if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testPatience):
			t.Errorf("%s goes on", name)
		}
	}
	close(stop)
	for name, c := range calls {
		if c.ended {
			continue
		}
		if err := <-results[name]; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(r.live) != 0 {
		t.Errorf("%d calls are still watched", len(r.live))
	}
	// Nor does a new call begin, of either kind.
	for name, c := range calls {
		_, err := r.unary(c.ctx, nil, &grpc.UnaryServerInfo{FullMethod: coordinatorv1.Fleet_Renew_FullMethodName}, func(context.Context, any) (any, error) { return "in", nil })
		if (status.Code(err) == codes.PermissionDenied) != c.ended {
			t.Errorf("a new call by %s: %v", name, err)
		}
	}
}

// testPatience bounds the waits of a test that holds.
const testPatience = 30 * time.Second

func TestSerialNumbersAreReadAsPeopleWriteThem(t *testing.T) {
	for in, want := range map[string]string{"": "", "0a": "0a", "0A": "0a", "A": "0a", "0A:1b": "0a1b", "000a": "0a"} {
		if got, ok := canonicalSerial(in); !ok || got != want {
			t.Errorf("%q: %q, %v", in, got, ok)
		}
	}
	for _, in := range []string{"0", "-1", "xyz", "0x0a", strings.Repeat("f", 41), strings.Repeat("f", 100)} {
		if got, ok := canonicalSerial(in); ok {
			t.Errorf("%q is read as %q", in, got)
		}
	}
}
