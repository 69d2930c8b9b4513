package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/wire"
)

// member speaks the Fleet protocol for one site, on one connection, as the site
// agent does.
type member struct {
	site    string
	counter *wire.Counter
	conn    *grpc.ClientConn
	client  coordinatorv1.FleetClient
	stream  grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]
	welcome *coordinatorv1.Welcome
	params  algorithm.Parameters

	grants  chan *coordinatorv1.Grant
	commits chan *coordinatorv1.Committed
	ended   chan struct{} // closed with the session
	err     error         // valid once ended is closed
	work    sync.WaitGroup
	cancel  context.CancelFunc

	mu        sync.Mutex // guards what follows and sending
	heartbeat coordinatorv1.Heartbeat
}

const (
	node         = "node-0"
	agentVersion = "bench"
)

// join opens a session. Close the member.
func join(ctx context.Context, addr, site string, link wire.Options) (_ *member, err error) {
	m := &member{
		site: site, counter: &wire.Counter{},
		grants: make(chan *coordinatorv1.Grant, 4), commits: make(chan *coordinatorv1.Committed, 4), ended: make(chan struct{}),
	}
	link.Counter = m.counter
	if m.conn, err = wire.Dial(addr, link); err != nil {
		return nil, err
	}
	ctx, m.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			m.cancel()
			err = errors.Join(fmt.Errorf("%s: %w", site, err), m.conn.Close())
		}
	}()
	m.client = coordinatorv1.NewFleetClient(m.conn)
	if m.stream, err = m.client.Session(ctx); err != nil {
		return nil, err
	}
	hello := &coordinatorv1.Hello{
		Federation: federationName, Site: site, Node: node, AgentVersion: agentVersion, SentUnixMs: time.Now().UnixMilli(),
		Hardware: &coordinatorv1.Hardware{Vendor: "cpu", Cpus: 2, MemoryBytes: 8 << 30},
	}
	if err := m.stream.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	first, err := m.stream.Recv()
	if err != nil {
		return nil, err
	}
	if m.welcome = first.GetWelcome(); m.welcome == nil {
		return nil, fmt.Errorf("a session begins with %v", first)
	}
	if m.params, err = algorithm.FromProto(m.welcome.GetAlgorithm()); err != nil {
		return nil, err
	}
	m.work.Go(m.receive)
	m.work.Go(func() { m.beat(ctx) })
	return m, nil
}

// receive sorts what the coordinator says until the session ends.
func (m *member) receive() {
	defer close(m.ended)
	for {
		r, err := m.stream.Recv()
		if err != nil {
			m.err = fmt.Errorf("%s: session: %w", m.site, err)
			return
		}
		switch {
		case r.GetGrant() != nil:
			m.grants <- r.GetGrant()
		case r.GetCommitted() != nil && r.GetCommitted().GetRound() > 0:
			m.commits <- r.GetCommitted()
		case r.GetShutdown() != nil:
			m.err = fmt.Errorf("%s: the coordinator shuts down: %s", m.site, r.GetShutdown().GetMessage())
			return
		}
	}
}

// beat sends a heartbeat at the coordinator's interval.
func (m *member) beat(ctx context.Context) {
	t := time.NewTicker(time.Duration(m.welcome.GetHeartbeatIntervalMs()) * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if m.say(func(*coordinatorv1.Heartbeat) {}) != nil {
				return
			}
		case <-m.ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// say changes what heartbeats tell and sends one at once.
func (m *member) say(change func(*coordinatorv1.Heartbeat)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.heartbeat)
	m.heartbeat.Sequence++
	err := m.stream.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Heartbeat{Heartbeat: &m.heartbeat}})
	if err != nil {
		return fmt.Errorf("%s: heartbeat: %w", m.site, err)
	}
	return nil
}

func (m *member) tell(s coordinatorv1.MemberState, round uint64) error {
	return m.say(func(h *coordinatorv1.Heartbeat) { h.State, h.Round = s, round })
}

// ready says that a grant may come.
func (m *member) ready(version uint64) error {
	return m.say(func(h *coordinatorv1.Heartbeat) {
		h.State, h.Round, h.ModelVersion = coordinatorv1.MemberState_MEMBER_STATE_READY, 0, version
	})
}

func (m *member) grant(ctx context.Context) (*coordinatorv1.Grant, error) {
	return next(ctx, m, m.grants)
}

// committed waits for the end of a round, which must not be void.
func (m *member) committed(ctx context.Context) (*coordinatorv1.Committed, error) {
	c, err := next(ctx, m, m.commits)
	if err == nil && c.GetVoid() {
		err = fmt.Errorf("%s: round %d is void: %s", m.site, c.GetRound(), c.GetMessage())
	}
	return c, err
}

func next[T any](ctx context.Context, m *member, c <-chan T) (T, error) {
	var none T
	select {
	case v := <-c:
		return v, nil
	case <-m.ended:
		return none, m.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// push uploads an update for a grant.
func (m *member) push(ctx context.Context, g *coordinatorv1.Grant, layout [32]byte, payload io.ReaderAt, size int64, agreement *float64) error {
	if err := m.tell(coordinatorv1.MemberState_MEMBER_STATE_UPLOADING, g.GetRound()); err != nil {
		return err
	}
	if err := m.upload(ctx, g, layout, payload, size, agreement); err != nil {
		return fmt.Errorf("%s: push of round %d: %w", m.site, g.GetRound(), err)
	}
	return nil
}

func (m *member) upload(ctx context.Context, g *coordinatorv1.Grant, layout [32]byte, payload io.ReaderAt, size int64, agreement *float64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.client.Push(ctx)
	if err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	loss := 2.5
	err = stream.Send(&coordinatorv1.PushRequest{Header: &coordinatorv1.PushHeader{
		SessionToken: m.welcome.GetSessionToken(), Epoch: m.welcome.GetEpoch(), Kind: coordinatorv1.PushHeader_KIND_UPDATE,
		Round: g.GetRound(), BaseVersion: g.GetBaseVersion(), UpdateId: hex.EncodeToString(id[:]), PayloadBytes: uint64(size),
		LayoutDigest: layout[:], Weight: 12800, Steps: 50, Samples: 12800, Loss: &loss, TrainingSeconds: 10, EnergyJoules: 500,
		EnergySource: "model", Agreement: agreement,
	}})
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetResume() == nil {
		return fmt.Errorf("answered with %v", first)
	}
	err = wire.SendPayload(func(offset uint64, crc uint32, payload []byte) error {
		return stream.Send(&coordinatorv1.PushRequest{Offset: offset, Crc32C: crc, Payload: payload})
	}, payload, size, int64(first.GetResume().GetOffset()))
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	last, err := stream.Recv()
	if err != nil {
		return err
	}
	if r := last.GetResult(); r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		return fmt.Errorf("%s: %s", r.GetReason(), r.GetMessage())
	}
	return nil
}

// pull downloads a snapshot or delta to w; its header says how large it is and, of a
// commit, how a replica steps by it.
func (m *member) pull(ctx context.Context, kind coordinatorv1.PullRequest_Kind, version uint64, w io.Writer) (header *coordinatorv1.PullHeader, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: pull of version %d: %w", m.site, version, err)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.client.Pull(ctx, &coordinatorv1.PullRequest{SessionToken: m.welcome.GetSessionToken(), Kind: kind, Version: version})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if header = first.GetHeader(); header == nil {
		return nil, errors.New("a pull begins without its header")
	}
	rx := wire.NewFrameReceiver(wire.AppendTo(w), int64(header.GetPayloadBytes()), 0)
	var c wire.PullFrames
	for {
		err := stream.RecvMsg(&c)
		if errors.Is(err, io.EOF) {
			return header, rx.Finish()
		}
		if err != nil {
			return nil, err
		}
		if err := rx.TakeFrames(&c.Frames); err != nil {
			return nil, err
		}
	}
}

// close ends the session and the connection.
func (m *member) close() error {
	m.cancel()
	m.work.Wait()
	return m.conn.Close()
}

// together runs f for all members at once and joins their errors.
func together(members []*member, f func(i int, m *member) error) error {
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { errs[i] = f(i, m) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// joinAll opens n sessions.
func joinAll(ctx context.Context, addr string, n int) (members []*member, err error) {
	return joinAllOver(ctx, addr, n, func(int) wire.Options { return wire.Options{} })
}

// joinAllOver opens them over links of their own.
func joinAllOver(ctx context.Context, addr string, n int, link func(i int) wire.Options) (members []*member, err error) {
	for i := range n {
		m, err := join(ctx, addr, siteName(i), link(i))
		if err != nil {
			return nil, errors.Join(err, closeAll(members))
		}
		members = append(members, m)
	}
	return members, nil
}

func closeAll(members []*member) error {
	return together(members, func(_ int, m *member) error { return m.close() })
}
