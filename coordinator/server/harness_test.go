package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/server"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// coordinator is a real engine behind a real gRPC server on loopback.
type coordinator struct {
	t      *testing.T
	engine *engine.Engine
	addr   string
	stop   func()
}

type option func(*engine.Config)

// testWait bounds every wait of a test; it is never reached when all is well.
const testWait = 30 * time.Second

func start(t *testing.T, dir string, opts ...option) *coordinator {
	t.Helper()
	return startLinked(t, dir, wire.Options{}, opts...)
}

// startLinked is start with a link of its own, mutual TLS for example.
func startLinked(t *testing.T, dir string, link wire.Options, opts ...option) *coordinator {
	t.Helper()
	cfg := engine.Config{
		Federation: "fed", Algorithm: algorithm.Plan{Parameters: params(t, algorithm.DiLoCo)}, DataDir: dir, SnapshotEvery: 3, MaxModelBytes: 1 << 20,
		Heartbeat: 200 * time.Millisecond, LossAfter: 60 * time.Second,
		Round: round.Config{Sites: []string{"a", "b", "c"}, MinSites: 1, Train: 20 * time.Second, Collect: 10 * time.Second,
			Join: 20 * time.Second, Settle: 100 * time.Millisecond, Grace: 10 * time.Second},
	}
	for _, o := range opts {
		o(&cfg)
	}
	log := slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store, err := checkpoint.Open(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	eng, err := engine.New(cfg, store, engine.Hooks{}, log)
	if err != nil {
		t.Fatal(err)
	}
	counter := &wire.Counter{}
	link.Counter = counter
	lis, err := wire.Listen("127.0.0.1:0", link)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(wire.ServerOptions(link)...)
	coordinatorv1.RegisterFleetServer(srv, &server.Fleet{Engine: eng, Store: store, Counter: counter, Log: log})
	coordinatorv1.RegisterAdminServer(srv, &server.Admin{Engine: eng, Log: log})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- eng.Run(ctx) }()
	go func() { _ = srv.Serve(lis) }()
	stopped := false
	c := &coordinator{t: t, engine: eng, addr: lis.Addr().String()}
	c.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("engine ended: %v", err)
		}
		graceful := time.AfterFunc(testWait, srv.Stop)
		srv.GracefulStop()
		graceful.Stop()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(c.stop)
	return c
}

type testLog struct{ t *testing.T }

// longestLine of the log, whatever a stranger has sent.
const longestLine = 2 << 10

func (l testLog) Write(p []byte) (int, error) {
	if len(p) > longestLine {
		l.t.Errorf("a line of %d bytes in the log", len(p))
		p = p[:longestLine]
	}
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func params(t *testing.T, name string) algorithm.Parameters {
	t.Helper()
	p, err := algorithm.Defaults(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// admit lets a site take part, as its energy decision would.
func (c *coordinator) admit(sites ...string) {
	c.t.Helper()
	for _, s := range sites {
		_, err := c.engine.SetMembership(c.ctx(), engine.Wish{Site: s, Membership: round.Admit, Energy: true, Reason: v1alpha1.ReasonEnergyFavourable})
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *coordinator) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *coordinator) status() *coordinatorv1.FederationStatus {
	c.t.Helper()
	st, err := c.engine.Status(c.ctx())
	if err != nil {
		c.t.Fatal(err)
	}
	return st
}

// until waits for a status and fails with the last one seen.
func (c *coordinator) until(what string, ok func(*coordinatorv1.FederationStatus) bool) *coordinatorv1.FederationStatus {
	c.t.Helper()
	deadline := time.After(testWait)
	for {
		changed := c.engine.Changed()
		st := c.status()
		if ok(st) {
			return st
		}
		select {
		case <-changed:
		case <-deadline:
			c.t.Fatalf("never %s; status: %v", what, st)
		}
	}
}

// member speaks the Fleet protocol by hand, rightly or wrongly.
type member struct {
	t       *testing.T
	c       *coordinator
	site    string
	conn    *grpc.ClientConn
	fleet   coordinatorv1.FleetClient
	stream  grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]
	welcome *coordinatorv1.Welcome
	end     context.CancelFunc
}

func (c *coordinator) join(site string) *member {
	c.t.Helper()
	// A fixed window: what an unread stream can hold does not depend on time.
	conn, err := wire.Dial(c.addr, wire.Options{Window: 64 << 10})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{t: c.t, c: c, site: site, conn: conn, fleet: coordinatorv1.NewFleetClient(conn), end: cancel}
	c.t.Cleanup(func() { cancel(); conn.Close() })
	if m.stream, err = m.fleet.Session(ctx); err != nil {
		c.t.Fatal(err)
	}
	m.send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{
		Hello: &coordinatorv1.Hello{Federation: "fed", Site: site, Node: "n1"},
	}})
	m.welcome = m.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetWelcome() != nil }).GetWelcome()
	return m
}

func (m *member) send(r *coordinatorv1.SessionRequest) {
	m.t.Helper()
	if err := m.stream.Send(r); err != nil {
		m.t.Fatal(err)
	}
}

// recv reads up to the first message that fits.
func (m *member) recv(want func(*coordinatorv1.SessionResponse) bool) *coordinatorv1.SessionResponse {
	m.t.Helper()
	guard := time.AfterFunc(testWait, m.end)
	defer guard.Stop()
	for {
		r, err := m.stream.Recv()
		if err != nil {
			m.t.Fatalf("%s: %v", m.site, err)
		}
		if want(r) {
			return r
		}
	}
}

func (m *member) heartbeat(state coordinatorv1.MemberState, roundNumber uint64) {
	m.t.Helper()
	m.send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Heartbeat{
		Heartbeat: &coordinatorv1.Heartbeat{State: state, Round: roundNumber},
	}})
}

func (m *member) ready() *member {
	m.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	return m
}

func (m *member) grant() *coordinatorv1.Grant {
	m.t.Helper()
	return m.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetGrant() != nil }).GetGrant()
}

func (m *member) committed() *coordinatorv1.Committed {
	m.t.Helper()
	return m.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetCommitted() != nil }).GetCommitted()
}

// header is a good one; mutate it to make it bad.
func (m *member) header(g *coordinatorv1.Grant, id string, payload []byte) *coordinatorv1.PushHeader {
	digest := model(m.t).Layout.Digest()
	return &coordinatorv1.PushHeader{
		SessionToken: m.welcome.GetSessionToken(), Epoch: m.welcome.GetEpoch(), Kind: coordinatorv1.PushHeader_KIND_UPDATE,
		Round: g.GetRound(), BaseVersion: g.GetBaseVersion(), UpdateId: id, PayloadBytes: uint64(len(payload)),
		LayoutDigest: digest[:], Weight: 10, Samples: 10, Steps: 1,
	}
}

// push uploads a payload; chunk may damage each chunk and end the stream early.
func (m *member) push(h *coordinatorv1.PushHeader, payload []byte, chunk func(*coordinatorv1.PushRequest) bool) (*coordinatorv1.PushResult, error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	s, err := m.fleet.Push(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Send(&coordinatorv1.PushRequest{Header: h}); err != nil {
		return nil, err
	}
	first, err := s.Recv()
	if err != nil {
		return nil, err
	}
	if r := first.GetResult(); r != nil {
		return r, nil
	}
	err = wire.SendPayload(func(off uint64, crc uint32, p []byte) error {
		req := &coordinatorv1.PushRequest{Offset: off, Crc32C: crc, Payload: p}
		if chunk != nil && !chunk(req) {
			return io.EOF
		}
		return s.Send(req)
	}, bytes.NewReader(payload), int64(len(payload)), int64(first.GetResume().GetOffset()))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := s.CloseSend(); err != nil {
		return nil, err
	}
	last, err := s.Recv()
	if err != nil {
		return nil, err
	}
	return last.GetResult(), nil
}

func (m *member) mustPush(h *coordinatorv1.PushHeader, payload []byte) *coordinatorv1.PushResult {
	m.t.Helper()
	r, err := m.push(h, payload, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// seed gives the federation its first weights.
func (m *member) seed() {
	m.t.Helper()
	m.seedWith(model(m.t))
}

func (m *member) seedWith(state *tensor.State) {
	m.t.Helper()
	m.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetSeedRequest() != nil })
	var b bytes.Buffer
	if err := tensor.SaveState(&b, state, false); err != nil {
		m.t.Fatal(err)
	}
	h := &coordinatorv1.PushHeader{SessionToken: m.welcome.GetSessionToken(), Epoch: m.welcome.GetEpoch(),
		Kind: coordinatorv1.PushHeader_KIND_SEED, UpdateId: "seed", PayloadBytes: uint64(b.Len())}
	if r := m.mustPush(h, b.Bytes()); r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		m.t.Fatalf("seed: %v", r)
	}
}

// model has every kind of tensor: two parameters, a buffer and a 0-d counter.
func model(t *testing.T) *tensor.State {
	t.Helper()
	specs := []tensor.Spec{
		{Name: "bn.num_batches_tracked", DType: tensor.I64, Shape: nil},
		{Name: "bn.running_var", DType: tensor.F32, Shape: []int64{4}},
		{Name: "w1", DType: tensor.F32, Shape: []int64{4, 8}},
		{Name: "w2", DType: tensor.F32, Shape: []int64{8, 4}},
	}
	l, err := tensor.NewLayout(tensor.RolesFor(specs, nil))
	if err != nil {
		t.Fatal(err)
	}
	s := tensor.NewState(l)
	for i := range s.Theta {
		s.Theta[i] = float32(i) / 8
	}
	for i := range s.Buffers {
		s.Buffers[i] = 0.01
	}
	return s
}

// update is a valid dense payload whose parameters are all v.
func update(t *testing.T, v float32) []byte {
	t.Helper()
	s := model(t)
	d := codec.NewDomain(s.Layout, algorithm.Identity)
	x := make([]float32, d.Len())
	for i := range x {
		x[i] = v
	}
	var b bytes.Buffer
	if _, err := codec.Encode(&b, d, params(t, algorithm.DiLoCo).Uplink, x, codec.Aux{Buffers: s.Buffers, Integers: s.Integers}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func rawDial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func digest(st *coordinatorv1.FederationStatus) string { return fmt.Sprintf("%x", st.GetDigest()) }

func secondStore(dir string) error {
	s, err := checkpoint.Open(dir, slog.New(slog.DiscardHandler))
	if err == nil {
		s.Close()
	}
	return err
}
