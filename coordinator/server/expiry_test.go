package server

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/identity"
	"girassol.dev/internal/wire"
)

// What stands on a certificate ends when that has ended for as long as clocks may
// differ, with the reason; what stands on a longer one, or on none, goes on.
func TestACallEndsWithTheCertificateThatItStandsOn(t *testing.T) {
	store, err := identity.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := NewRevocations(store, time.Now)
		began := time.Now()
		by := func(life time.Duration) context.Context {
			c := &x509.Certificate{SerialNumber: big.NewInt(int64(life)), Subject: pkix.Name{}, NotBefore: began, NotAfter: began.Add(life),
				URIs: []*url.URL{{Scheme: "spiffe", Host: "lm", Path: "/site/quebec"}}}
			info := credentials.TLSInfo{}
			info.State.VerifiedChains = [][]*x509.Certificate{{c}}
			return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info})
		}
		type end struct {
			err    error
			reason v1alpha1.Reason
		}
		stop := make(chan struct{})
		session := func(ctx context.Context) <-chan end {
			out := make(chan end, 1)
			go func() {
				var reason v1alpha1.Reason
				err := r.stream(nil, &endless{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: coordinatorv1.Fleet_Session_FullMethodName}, func(_ any, s grpc.ServerStream) error {
					select {
					case <-s.Context().Done():
					case <-stop:
					}
					reason = lossReason(s.Context())
					return s.SendMsg(nil)
				})
				out <- end{err, reason}
			}()
			return out
		}
		short, long, plain := session(by(time.Hour)), session(by(7*24*time.Hour)), session(t.Context())
		time.Sleep(time.Hour + wire.ClockTolerance - time.Second)
		synctest.Wait()
		if len(short) != 0 {
			t.Fatalf("it ended early: %+v", <-short)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(short) != 1 {
			t.Fatal("it goes on")
		}
		if got := <-short; status.Code(got.err) != codes.Unavailable || !strings.Contains(got.err.Error(), string(v1alpha1.ReasonCertificateExpired)) || got.reason != v1alpha1.ReasonCertificateExpired {
			t.Errorf("it ended with %+v", got)
		}
		// Nor does a new call begin on the same connection.
		if err := r.stream(nil, &endless{ctx: by(time.Hour)}, &grpc.StreamServerInfo{}, func(any, grpc.ServerStream) error { return nil }); status.Code(err) != codes.Unavailable {
			t.Errorf("a new call: %v", err)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if len(long) != 0 || len(plain) != 0 {
			t.Error("what stands on no expired certificate ended")
		}
		close(stop)
		for _, c := range []<-chan end{long, plain} {
			if got := <-c; got.err != nil {
				t.Error(got)
			}
		}
		if len(r.live) != 0 {
			t.Errorf("%d calls are still watched", len(r.live))
		}
	})
}
