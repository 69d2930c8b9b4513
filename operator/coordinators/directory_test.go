package coordinators

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
	"girassol.dev/operator/membership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var demo = types.NamespacedName{Namespace: "field", Name: "demo"}

func start(t *testing.T, d *Directory) {
	t.Helper()
	d.Log = slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// told waits for the next change.
func told(t *testing.T, changes <-chan event.GenericEvent) types.NamespacedName {
	t.Helper()
	select {
	case e := <-changes:
		return types.NamespacedName{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing was told")
		panic("not reached")
	}
}

// eventually waits for a condition at the edge of another process.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not come about", what)
		}
	}
}

func TestStatusFollowsTheCoordinator(t *testing.T) {
	server := newCoordinator(t, wire.Options{})
	var d Directory
	changes := d.Changed()
	d.Ensure(demo, Target{Address: server.address})
	if st, reachable, why := d.Status(demo); st != nil || reachable != membership.Unknown || !strings.Contains(why, server.address) {
		t.Errorf("before the first answer: %v %v %q", st, reachable, why)
	}
	start(t, &d)
	if key := told(t, changes); key != demo {
		t.Errorf("told %s", key)
	}
	st, reachable, why := d.Status(demo)
	if st.GetPhase() != "WaitingForSites" || reachable != membership.Yes || why != "" {
		t.Errorf("%v %v %q", st, reachable, why)
	}
	server.change(func(s *coordinatorv1.FederationStatus) { s.Phase = "Training" })
	told(t, changes)
	if st, _, _ = d.Status(demo); st.GetPhase() != "Training" {
		t.Errorf("phase %s", st.GetPhase())
	}
}

func TestEveryReaderIsToldAndSlowOnesAreToldOnce(t *testing.T) {
	server := newCoordinator(t, wire.Options{})
	var d Directory
	fast, slow := d.Changed(), d.Changed()
	d.Ensure(demo, Target{Address: server.address})
	start(t, &d)
	told(t, fast)
	for version := range uint64(5) {
		server.change(func(s *coordinatorv1.FederationStatus) { s.Version = &version })
		told(t, fast)
	}
	// What waits for the slow reader is the one it took up first and one for all
	// that came after.
	told(t, slow)
	told(t, slow)
	select {
	case <-slow:
		t.Error("told a third time")
	default:
	}
	late := d.Changed() // a reader that comes while it runs
	server.change(func(s *coordinatorv1.FederationStatus) { s.Phase = "Paused" })
	told(t, late)
}

func TestWishesArriveAndRefusalsAreTold(t *testing.T) {
	server := newCoordinator(t, wire.Options{})
	var d Directory
	changes := d.Changed()
	ask := func(site string) (*coordinatorv1.SetMembershipResponse, error) {
		return d.SetMembership(t.Context(), demo, &coordinatorv1.SetMembershipRequest{Site: site, Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN})
	}
	if _, err := ask("lisboa"); !errors.Is(err, ErrUnreachable) {
		t.Errorf("unknown federation: %v", err)
	}
	d.Ensure(demo, Target{Address: server.address})
	start(t, &d)
	told(t, changes)
	answer, err := ask("lisboa")
	if err != nil || answer.GetMembership() != coordinatorv1.Membership_MEMBERSHIP_DRAIN || len(server.wishes) != 1 {
		t.Errorf("%v %v", answer, err)
	}
	if _, err = ask("nowhere"); status.Code(errors.Unwrap(err)) != codes.NotFound || errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "field/demo") {
		t.Errorf("%v", err)
	}
	for _, paused := range []bool{true, false} {
		if err := d.SetPaused(t.Context(), demo, paused, "test"); err != nil || server.paused != paused {
			t.Errorf("paused %v: %v", paused, err)
		}
	}
}

func TestCoordinatorThatRestartsIsFoundAgain(t *testing.T) {
	server := newCoordinator(t, wire.Options{})
	var d Directory
	changes := d.Changed()
	d.Ensure(demo, Target{Address: server.address})
	start(t, &d)
	told(t, changes)
	server.server.Stop()
	told(t, changes)
	st, reachable, why := d.Status(demo)
	if reachable == membership.Yes || st == nil || why == "" {
		t.Errorf("%v %v %q: the last status stays, in doubt", st, reachable, why)
	}
	if _, err := d.SetMembership(t.Context(), demo, &coordinatorv1.SetMembershipRequest{Site: "lisboa"}); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	server.listen(t, server.address, wire.Options{})
	eventually(t, "contact", func() bool { _, reachable, _ := d.Status(demo); return reachable == membership.Yes })
}

func TestAddressesOutsideTheClusterAreResolvedAndNamesInCertificatesStay(t *testing.T) {
	ca := newAuthority(t)
	own := ca.issue(t, "coordinator", "demo-coordinator.field.svc")
	server := newCoordinator(t, wire.Options{PEM: func() (wire.PEM, error) { return *own, nil }})
	d := Directory{Resolve: map[string]string{"demo-coordinator.field.svc:7465": server.address}}
	changes := d.Changed()
	d.Ensure(demo, Target{Address: "demo-coordinator.field.svc:7465", Certificate: ca.issue(t, "operator")})
	start(t, &d)
	told(t, changes)
}

func TestForgottenAndMovedCoordinatorsAreLeft(t *testing.T) {
	first, second := newCoordinator(t, wire.Options{}), newCoordinator(t, wire.Options{})
	second.change(func(s *coordinatorv1.FederationStatus) { s.Phase = "Training" })
	var d Directory
	changes := d.Changed()
	d.Ensure(demo, Target{Address: first.address})
	start(t, &d)
	told(t, changes)
	d.Ensure(demo, Target{Address: second.address})
	told(t, changes)
	if st, _, _ := d.Status(demo); st.GetPhase() != "Training" {
		t.Errorf("phase %s is not the second one's", st.GetPhase())
	}
	d.Forget(demo)
	if st, reachable, _ := d.Status(demo); st != nil || reachable != membership.Unknown {
		t.Errorf("%v %v", st, reachable)
	}
	d.Forget(demo) // again is harmless
}

func TestRenewedCertificateServesTheNextConnection(t *testing.T) {
	ca := newAuthority(t)
	own := ca.issue(t, "coordinator")
	link := wire.Options{PEM: func() (wire.PEM, error) { return *own, nil }}
	server := newCoordinator(t, link)
	var d Directory
	changes := d.Changed()
	d.Ensure(demo, Target{Address: server.address, Certificate: ca.issue(t, "first")})
	start(t, &d)
	told(t, changes)
	d.Ensure(demo, Target{Address: server.address, Certificate: ca.issue(t, "second")})
	server.server.Stop()
	server.listen(t, server.address, link)
	eventually(t, "the renewed certificate", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return slices.Contains(server.callers, "first") && slices.Contains(server.callers, "second")
	})
}

func TestStrangersAreNotBelieved(t *testing.T) {
	ca := newAuthority(t)
	own := newAuthority(t).issue(t, "stranger")
	server := newCoordinator(t, wire.Options{PEM: func() (wire.PEM, error) { return *own, nil }})
	var d Directory
	d.Ensure(demo, Target{Address: server.address, Certificate: ca.issue(t, "operator")})
	start(t, &d)
	eventually(t, "the explanation", func() bool {
		_, reachable, why := d.Status(demo)
		return reachable != membership.Yes && strings.Contains(why, "from an authority that is not in the CA bundle")
	})
}

func TestCertificateThatCannotWorkIsToldAtOnce(t *testing.T) {
	var d Directory
	changes := d.Changed()
	d.Ensure(demo, Target{Address: "127.0.0.1:1", Certificate: &wire.PEM{}})
	start(t, &d)
	told(t, changes)
	if _, reachable, why := d.Status(demo); reachable != membership.No || !strings.Contains(why, "certificate and key") {
		t.Errorf("%v %q", reachable, why)
	}
}
