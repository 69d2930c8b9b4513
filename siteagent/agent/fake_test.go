package agent

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
)

// coordinator is a Fleet service on TCP that does what a test tells it.
type coordinator struct {
	eventsKey []byte // that Welcomes tell
	coordinatorv1.UnimplementedFleetServer
	t       *testing.T
	address string
	params  algorithm.Parameters
	rng     *rand.Rand

	mu       sync.Mutex
	changed  chan struct{}
	state    *tensor.State
	domain   *codec.Domain
	version  uint64
	digest   [32]byte
	deltas   map[uint64]blob
	snapshot blob
	hasModel bool

	epoch    uint64
	members  []*member
	pulls    []*coordinatorv1.PullRequest
	pushes   []push
	partial  map[string][]byte
	accepted map[string]bool

	// What goes wrong.
	skew      time.Duration
	refuse    error // new sessions
	mute      bool  // no heartbeat replies
	breakPush int   // so many pushes break after one chunk
	breakPull int   // so many pulls break after one chunk
	pushDown  bool  // pushes fail at once
	shorter   bool  // the snapshot has fewer bytes than what was missed
	answer    func(h *coordinatorv1.PushHeader) *coordinatorv1.PushResult

	// loss is when a silent session is given up; long, for a slow machine.
	loss  time.Duration
	tests measured
}

type blob struct {
	manifest *coordinatorv1.PullHeader
	data     []byte
}

// push is one finished upload.
type push struct {
	header  *coordinatorv1.PushHeader
	payload []byte
	// from is the offset at which its last stream began.
	from uint64
}

// member is one session.
type member struct {
	hello *coordinatorv1.Hello
	epoch uint64
	out   chan *coordinatorv1.SessionResponse
	end   chan error

	// Guarded by coordinator.mu.
	beats  []*coordinatorv1.Heartbeat
	leaves []*coordinatorv1.Leave
	tests  []*coordinatorv1.LinkTestResult
}

func newCoordinator(t *testing.T, strategy string, specs []tensor.Spec) *coordinator {
	t.Helper()
	l, err := tensor.NewLayout(specs)
	must(t, err)
	params, err := algorithm.Defaults(strategy)
	must(t, err)
	c := &coordinator{
		t: t, params: params, rng: rand.New(rand.NewPCG(3, 4)), changed: make(chan struct{}),
		state: tensor.NewState(l), domain: codec.NewDomain(l, params.Downlink.Transform),
		deltas: map[uint64]blob{}, partial: map[string][]byte{}, accepted: map[string]bool{}, hasModel: true, loss: time.Minute,
		eventsKey: publicOf(keyOf("c")),
	}
	t.Cleanup(c.state.Close)
	for i := range c.state.Theta {
		c.state.Theta[i] = float32(c.rng.NormFloat64())
	}
	c.takeSnapshot()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c.address = listener.Addr().String()
	server := grpc.NewServer(wire.ServerOptions(wire.Options{})...)
	coordinatorv1.RegisterFleetServer(server, c)
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); group.Wait() })
	return c
}

// do changes the coordinator and wakes who waits for it.
func (c *coordinator) do(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// wait returns once cond holds; it is called with the lock held.
func (c *coordinator) wait(what string, cond func() bool) {
	c.t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	for {
		c.mu.Lock()
		ok, changed := cond(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			c.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (c *coordinator) manifest(updates ...string) *coordinatorv1.PullHeader {
	return &coordinatorv1.PullHeader{Version: c.version, Round: c.version, Digest: append([]byte(nil), c.digest[:]...),
		Algorithm: c.params.ToProto(), UpdateIds: updates}
}

func (c *coordinator) takeSnapshot(updates ...string) {
	c.digest = c.state.Digest()
	var b bytes.Buffer
	must(c.t, tensor.SaveState(&b, c.state, true))
	c.snapshot = blob{c.manifest(updates...), b.Bytes()}
}

// commit makes the next version from a random delta that counts these updates.
func (c *coordinator) commit(updates ...string) {
	c.t.Helper()
	c.do(func() {
		var b bytes.Buffer
		x := make([]float32, c.domain.Len())
		for i := range x {
			x[i] = float32(c.rng.NormFloat64())
		}
		l := c.state.Layout
		aux := codec.Aux{Buffers: make([]float32, l.Buffers()), Integers: make([]byte, l.IntegerBytes())}
		_, err := codec.Encode(&b, c.domain, c.params.Downlink, x, aux)
		must(c.t, err)
		p, err := codec.Parse(c.domain, c.params.Downlink, bytes.NewReader(b.Bytes()), int64(b.Len()), nil)
		must(c.t, err)
		must(c.t, replica.Step(c.state, c.domain, c.params, p))
		c.version++
		c.takeSnapshot(updates...)
		c.deltas[c.version] = blob{c.manifest(updates...), b.Bytes()}
	})
}

// tell sends to the newest session.
func (c *coordinator) tell(m any) {
	c.t.Helper()
	r := &coordinatorv1.SessionResponse{}
	switch m := m.(type) {
	case *coordinatorv1.Grant:
		r.Message = &coordinatorv1.SessionResponse_Grant{Grant: m}
	case *coordinatorv1.Stop:
		r.Message = &coordinatorv1.SessionResponse_Stop{Stop: m}
	case *coordinatorv1.Drain:
		r.Message = &coordinatorv1.SessionResponse_Drain{Drain: m}
	case *coordinatorv1.Committed:
		r.Message = &coordinatorv1.SessionResponse_Committed{Committed: m}
	case *coordinatorv1.Shutdown:
		r.Message = &coordinatorv1.SessionResponse_Shutdown{Shutdown: m}
	case *coordinatorv1.SeedRequest:
		r.Message = &coordinatorv1.SessionResponse_SeedRequest{SeedRequest: m}
	default:
		c.t.Fatalf("cannot tell %T", m)
	}
	c.newest().out <- r
}

func (c *coordinator) newest() *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[len(c.members)-1]
}

// grant for a round on the present version.
func (c *coordinator) grant(round, steps uint64, span time.Duration) *coordinatorv1.Grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &coordinatorv1.Grant{
		Round: round, Epoch: c.members[len(c.members)-1].epoch, BaseVersion: c.version, BaseDigest: bytes.Clone(c.digest[:]), MaxSteps: steps,
		StopAtUnixMs: time.Now().Add(c.skew + span).UnixMilli(), StopInMs: span.Milliseconds(),
		CollectInMs: (span + 20*time.Second).Milliseconds(), Algorithm: c.params.ToProto(),
	}
}

// committed announces the present version for a round.
func (c *coordinator) committed(round uint64) *coordinatorv1.Committed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &coordinatorv1.Committed{Round: round, Version: c.version, Digest: bytes.Clone(c.digest[:])}
}

// waitBeat waits for a heartbeat of the newest session.
func (c *coordinator) waitBeat(what string, fits func(*coordinatorv1.Heartbeat) bool) *coordinatorv1.Heartbeat {
	c.t.Helper()
	var found *coordinatorv1.Heartbeat
	c.wait("a heartbeat: "+what, func() bool {
		if len(c.members) == 0 {
			return false
		}
		for _, b := range c.members[len(c.members)-1].beats {
			if fits(b) {
				found = b
				return true
			}
		}
		return false
	})
	return found
}

func (c *coordinator) waitReady(version uint64) {
	c.t.Helper()
	c.waitBeat(fmt.Sprintf("ready at version %d", version), func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetModelVersion() == version
	})
}

func (c *coordinator) waitPushes(n int) []push {
	c.t.Helper()
	c.wait(fmt.Sprintf("%d pushes", n), func() bool { return len(c.pushes) >= n })
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]push(nil), c.pushes...)
}
