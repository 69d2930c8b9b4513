package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/server"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
)

// impatient serves the coordinator on a second port, with little patience. It
// returns how the server's streams ended.
func (c *coordinator) impatient(dir string, patience time.Duration) <-chan error {
	c.t.Helper()
	reader, err := checkpoint.Read(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	link := wire.Options{Counter: &wire.Counter{}}
	lis, err := wire.Listen("127.0.0.1:0", link)
	if err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan error, 16)
	srv := grpc.NewServer(append(wire.ServerOptions(link), grpc.StreamInterceptor(
		func(s any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			err := handle(s, stream)
			ended <- err
			return err
		}))...)
	coordinatorv1.RegisterFleetServer(srv, &server.Fleet{Engine: c.engine, Store: &checkpoint.Store{Reader: reader}, Counter: link.Counter,
		Log: slog.New(slog.DiscardHandler), Patience: patience})
	go func() { _ = srv.Serve(lis) }()
	c.t.Cleanup(srv.Stop)
	c.addr = lis.Addr().String()
	return ended
}

func TestMemberThatReadsNothingLosesItsSessionAndHarmsNobody(t *testing.T) {
	c, a, b, g := training(t)
	// Replies to heartbeats that nobody reads fill every buffer on the way. The
	// member itself may not learn of the end: that, too, would have to be read.
	beat := &coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Heartbeat{
		Heartbeat: &coordinatorv1.Heartbeat{State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Round: g.GetRound()},
	}}
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		for a.stream.Send(beat) == nil {
		}
	}()
	c.until("a has no session", func(s *coordinatorv1.FederationStatus) bool { return len(s.GetSites()[0].GetMembers()) == 0 })
	a.end()
	<-sending
	p := update(t, 0.5)
	if r := b.mustPush(b.header(b.grant(), "u", p), p); r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatal(r)
	}
}

func TestHalfOpenStreamsEndByThemselves(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir)
	c.admit("a", "b")
	a := c.join("a")
	a.seed()
	a.ready()
	b := c.join("b").ready()
	_ = b
	g := a.grant()
	c.impatient(dir, time.Second) // what is sent in time arrives in time, also on a slow machine
	conn, err := wire.Dial(c.addr, wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fleet := coordinatorv1.NewFleetClient(conn)
	push := func(t *testing.T, h *coordinatorv1.PushHeader) grpc.BidiStreamingClient[coordinatorv1.PushRequest, coordinatorv1.PushResponse] {
		s, err := fleet.Push(c.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if h != nil {
			if err := s.Send(&coordinatorv1.PushRequest{Header: h}); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	p := update(t, 0.5)
	for name, recv := range map[string]func(t *testing.T) error{
		"a session without a Hello": func(t *testing.T) error {
			s, err := fleet.Session(c.ctx())
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Recv()
			return err
		},
		"a push without a header": func(t *testing.T) error {
			_, err := push(t, nil).Recv()
			return err
		},
		"a push without chunks": func(t *testing.T) error {
			s := push(t, a.header(g, "u", p))
			if first, err := s.Recv(); err != nil || first.GetResume() == nil {
				t.Fatal(first, err)
			}
			_, err := s.Recv()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := recv(t); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "1s") {
				t.Fatalf("ended with %v", err)
			}
		})
	}
}

func TestPullThatNobodyReadsEndsByItself(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir, func(cfg *engine.Config) { cfg.MaxModelBytes = 64 << 20 })
	c.admit("a")
	a := c.join("a")
	// Larger than all buffers between the two.
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{2048, 2048}, Role: tensor.Parameter}})
	if err != nil {
		t.Fatal(err)
	}
	big := tensor.NewState(l)
	defer big.Close()
	a.seedWith(big)
	ended := c.impatient(dir, time.Second)
	conn, err := wire.Dial(c.addr, wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s, err := coordinatorv1.NewFleetClient(conn).Pull(c.ctx(), &coordinatorv1.PullRequest{
		SessionToken: a.welcome.GetSessionToken(), Kind: coordinatorv1.PullRequest_KIND_SNAPSHOT})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended: // although nothing was read
		if status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("ended with %v", err)
		}
	case <-time.After(testWait):
		t.Fatal("the pull never ended")
	}
	for err == nil { // what was on its way, then why there is no more
		_, err = s.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("the receiver learns %v", err)
	}
}

func TestWatchersAndUploadsEndWithTheEngine(t *testing.T) {
	c, a, _, g := training(t)
	conn, err := wire.Dial(c.addr, wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	watch, err := coordinatorv1.NewAdminClient(conn).Watch(c.ctx(), &coordinatorv1.WatchRequest{IntervalMs: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	push, err := a.fleet.Push(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	p := update(t, 0.5)
	if err := push.Send(&coordinatorv1.PushRequest{Header: a.header(g, "u", p)}); err != nil {
		t.Fatal(err)
	}
	if _, err := push.Recv(); err != nil {
		t.Fatal(err)
	}
	go c.stop()
	_, watchErr := watch.Recv()
	_, pushErr := push.Recv()
	for what, err := range map[string]error{"watch": watchErr, "push": pushErr} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s ended with %v", what, err)
		}
	}
	if shutdown := a.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetShutdown() != nil }).GetShutdown(); shutdown.GetReason() != string(v1alpha1.ReasonCoordinatorStopped) {
		t.Errorf("the member was told %v", shutdown)
	}
	if _, err := a.stream.Recv(); errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		t.Errorf("the session ended with %v", err)
	}
}

func TestAdminRefusesWhatWouldFloodLabelsOrWrapAround(t *testing.T) {
	c := start(t, t.TempDir())
	admin := &server.Admin{Engine: c.engine, Log: slog.New(slog.DiscardHandler)}
	for name, req := range map[string]*coordinatorv1.SetMembershipRequest{
		"a sentence as a reason": {Site: "a", Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN, Reason: "because I say so"},
		"an endless deadline":    {Site: "a", Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN, DeadlineMs: 1 << 62},
		"a negative deadline":    {Site: "a", Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN, DeadlineMs: -1},
	} {
		if _, err := admin.SetMembership(c.ctx(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSessionMessageThatIsTooLargeEndsTheSession(t *testing.T) {
	c := start(t, t.TempDir())
	a := c.join("a")
	a.send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Heartbeat{
		Heartbeat: &coordinatorv1.Heartbeat{Detail: strings.Repeat("x", 1<<20)},
	}})
	for {
		if _, err := a.stream.Recv(); err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatalf("ended with %v", err)
			}
			return
		}
	}
}
