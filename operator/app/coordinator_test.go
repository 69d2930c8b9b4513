package app

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// coordinator plays one: its sites are heard as soon as they are admitted. It
// proves itself with what the operator issued.
type coordinator struct {
	coordinatorv1.UnimplementedAdminServer
	address string

	mu      sync.Mutex
	status  *coordinatorv1.FederationStatus
	changed chan struct{}
}

func playCoordinator(t *testing.T, namespace, federation string, sites []string) *coordinator {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &coordinator{address: l.Addr().String(), changed: make(chan struct{}), status: &coordinatorv1.FederationStatus{
		Federation: federation, Phase: "Training", RoundsCommitted: 1, Version: new(uint64(1)), Round: &coordinatorv1.RoundStatus{Number: 2, State: "Collecting"},
	}}
	for _, name := range sites {
		c.status.Sites = append(c.status.Sites, &coordinatorv1.SiteStatus{Name: name, Phase: "Idle", Reason: "SignalMissing", Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN})
	}
	server := grpc.NewServer(wire.ServerOptions(wire.Options{PEM: func() (wire.PEM, error) {
		s := &corev1.Secret{}
		err := testenv.Shared(t).Client.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: resources.CoordinatorSecretName(federation)}, s)
		return wire.PEM{Certificate: s.Data["tls.crt"], Key: s.Data["tls.key"], CA: s.Data["ca.crt"]}, err
	}})...)
	coordinatorv1.RegisterAdminServer(server, c)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return c
}

// Watch sends the status now, after changes, and like a real one every ten intervals
// even if nothing changes: a coordinator that is silent for longer counts as lost.
func (c *coordinator) Watch(r *coordinatorv1.WatchRequest, stream grpc.ServerStreamingServer[coordinatorv1.FederationStatus]) error {
	again := time.NewTicker(10 * time.Duration(r.GetIntervalMs()) * time.Millisecond)
	defer again.Stop()
	for {
		c.mu.Lock()
		st, changed := c.status, c.changed
		c.mu.Unlock()
		if err := stream.Send(st); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-again.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (c *coordinator) SetMembership(_ context.Context, r *coordinatorv1.SetMembershipRequest) (*coordinatorv1.SetMembershipResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := &coordinatorv1.FederationStatus{
		Federation: c.status.Federation, Phase: c.status.Phase, RoundsCommitted: c.status.RoundsCommitted, Version: c.status.Version, Round: c.status.Round,
		NowUnixMs: c.status.NowUnixMs + 1,
	}
	for _, s := range c.status.Sites {
		if s.GetName() == r.GetSite() {
			s = &coordinatorv1.SiteStatus{Name: s.Name, Phase: "Idle", Reason: r.Reason, Message: r.Message, Membership: r.Membership, Signal: r.Signal}
			if r.GetMembership() == coordinatorv1.Membership_MEMBERSHIP_ADMIT {
				s.Phase, s.Reason = "Active", "Training"
				s.Members = []*coordinatorv1.MemberStatus{{Node: "n", Connected: true, State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING}}
			}
		}
		next.Sites = append(next.Sites, s)
	}
	c.status = next
	close(c.changed)
	c.changed = make(chan struct{})
	return &coordinatorv1.SetMembershipResponse{Changed: true, Membership: r.GetMembership(), Reason: r.GetReason(), Message: r.GetMessage()}, nil
}

func (c *coordinator) Pause(context.Context, *coordinatorv1.PauseRequest) (*coordinatorv1.PauseResponse, error) {
	return &coordinatorv1.PauseResponse{}, nil
}

// resolve is where the coordinator's Service is.
func (c *coordinator) resolve(namespace, federation string) (from, to string) {
	f := resources.CoordinatorName(federation) + "." + namespace + ".svc:7465"
	return f, c.address
}
