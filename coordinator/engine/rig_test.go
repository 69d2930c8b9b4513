package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rigWait bounds every wait of a test; it is never reached when all is well.
const rigWait = 30 * time.Second

// rig is a running engine on a commit log, and what it announced.
type rig struct {
	t      *testing.T
	engine *Engine
	store  *checkpoint.Store
	events *recorder
	cancel context.CancelFunc
	done   chan error
	over   bool
}

type recorder struct {
	mu   sync.Mutex
	all  []events.Event
	hook func(events.Event) // called on the engine's goroutine
}

func (r *recorder) Publish(e events.Event) {
	r.mu.Lock()
	r.all = append(r.all, e)
	hook := r.hook
	r.mu.Unlock()
	if hook != nil {
		hook(e)
	}
}

// types of the events so far, with round or version.
func (r *recorder) types() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, e := range r.all {
		s := string(e.Type)
		if e.Version != nil {
			s += fmt.Sprint(" v", *e.Version)
		}
		out = append(out, s)
	}
	return out
}

func testConfig(dir string, p algorithm.Parameters, sites ...string) Config {
	return Config{
		Federation: "fed", Algorithm: algorithm.Plan{Parameters: p}, DataDir: dir, SnapshotEvery: 3, MaxModelBytes: 64 << 20,
		Heartbeat: time.Second, LossAfter: time.Hour,
		Round: round.Config{Sites: sites, MinSites: 1, Train: time.Hour, Collect: time.Hour, Join: time.Hour, Settle: time.Millisecond, Grace: time.Hour},
	}
}

// newRig runs an engine in dir; all sites are admitted. prepare may change the
// engine before it runs.
func newRig(t *testing.T, cfg Config, prepare ...func(*Engine)) *rig {
	t.Helper()
	store, err := checkpoint.Open(cfg.DataDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return newRigOn(t, cfg, store, prepare...)
}

// newRigOn runs an engine on this store and closes it.
func newRigOn(t *testing.T, cfg Config, store *checkpoint.Store, prepare ...func(*Engine)) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r := &rig{t: t, store: store, events: &recorder{}, done: make(chan error, 1)}
	var err error
	if r.engine, err = New(cfg, store, Hooks{Announce: r.events}, log); err != nil {
		t.Fatal(err)
	}
	for _, s := range cfg.Round.Sites {
		r.engine.SetDefault(s, Wish{Membership: round.Admit, Reason: v1alpha1.ReasonAdmittedByPolicy})
	}
	for _, f := range prepare {
		f(r.engine)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- r.engine.Run(ctx) }()
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("engine ended: %v", err)
		}
	})
	return r
}

// stop ends the engine in order; only the first call tells how it ended.
func (r *rig) stop() error {
	if r.over {
		return nil
	}
	r.cancel()
	return r.wait()
}

// wait until the engine has ended, by itself or because it was stopped.
func (r *rig) wait() error {
	r.t.Helper()
	r.over = true
	defer r.cancel()
	defer func() { _ = r.store.Close() }()
	select {
	case err := <-r.done:
		return err
	case <-time.After(rigWait):
		r.t.Fatal("the engine does not end")
		return nil
	}
}

// ctx is the test's; what the engine does with a call is never long.
func (r *rig) ctx() context.Context { return r.t.Context() }

func (r *rig) status() *coordinatorv1.FederationStatus {
	r.t.Helper()
	st, err := r.engine.Status(r.ctx())
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

func (r *rig) until(what string, ok func(*coordinatorv1.FederationStatus) bool) *coordinatorv1.FederationStatus {
	r.t.Helper()
	deadline := time.After(rigWait)
	for {
		changed := r.engine.Changed()
		st := r.status()
		if ok(st) {
			return st
		}
		select {
		case <-changed:
		case <-deadline:
			r.t.Fatalf("never %s; status: %v", what, st)
		}
	}
}

// agent speaks to an engine as the server does for one member.
type agent struct {
	r    *rig
	s    *session.Session
	site string
}

func (r *rig) join(site string) *agent {
	r.t.Helper()
	s, err := r.engine.OpenSession(r.ctx(), &coordinatorv1.Hello{Federation: "fed", Site: site, Node: "n"})
	if err != nil {
		r.t.Fatal(err)
	}
	return &agent{r, s, site}
}

func (r *rig) joinAll(sites ...string) []*agent {
	r.t.Helper()
	var out []*agent
	for _, s := range sites {
		out = append(out, r.join(s))
	}
	return out
}

// next is the first message that fits.
func (a *agent) next(fits func(*coordinatorv1.SessionResponse) bool) *coordinatorv1.SessionResponse {
	a.r.t.Helper()
	deadline := time.After(rigWait)
	for {
		select {
		case m := <-a.s.Outbox():
			if fits(m) {
				return m
			}
		case <-deadline:
			a.r.t.Fatalf("%s: the message never came; status %v", a.site, a.r.status())
		}
	}
}

func (a *agent) heartbeat(state coordinatorv1.MemberState, n uint64) {
	a.r.t.Helper()
	if err := a.r.engine.Heartbeat(a.r.ctx(), a.s, &coordinatorv1.Heartbeat{State: state, Round: n}); err != nil {
		a.r.t.Fatal(err)
	}
}

func (a *agent) grant() *coordinatorv1.Grant {
	a.r.t.Helper()
	return a.next(func(m *coordinatorv1.SessionResponse) bool { return m.GetGrant() != nil }).GetGrant()
}

func (a *agent) committed() *coordinatorv1.Committed {
	a.r.t.Helper()
	return a.next(func(m *coordinatorv1.SessionResponse) bool { return m.GetCommitted() != nil }).GetCommitted()
}

// header of a good update; change it to make it bad.
func (a *agent) header(g *coordinatorv1.Grant, id string, payload []byte) *coordinatorv1.PushHeader {
	digest := a.r.layout()
	return &coordinatorv1.PushHeader{
		SessionToken: a.s.Token, Epoch: a.s.Epoch, Kind: coordinatorv1.PushHeader_KIND_UPDATE, Round: g.GetRound(),
		BaseVersion: g.GetBaseVersion(), UpdateId: id, PayloadBytes: uint64(len(payload)), LayoutDigest: digest, Weight: 1, Samples: 1, Steps: 1,
	}
}

// layout is the layout digest of the model at work.
func (r *rig) layout() []byte {
	r.t.Helper()
	var layout [32]byte
	if err := r.engine.do(r.ctx(), func() { layout = r.engine.model.layout }); err != nil {
		r.t.Fatal(err)
	}
	return layout[:]
}

func (a *agent) push(h *coordinatorv1.PushHeader, payload []byte) *coordinatorv1.PushResult {
	a.r.t.Helper()
	res, err := a.tryPush(h, payload)
	if err != nil {
		a.r.t.Fatal(err)
	}
	return res
}

func (a *agent) tryPush(h *coordinatorv1.PushHeader, payload []byte) (*coordinatorv1.PushResult, error) {
	u, res, err := a.r.engine.BeginPush(a.r.ctx(), h)
	if err != nil || res != nil {
		return res, err
	}
	if _, err := u.Write(payload[u.Offset():]); err != nil {
		return nil, err
	}
	return a.r.engine.FinishPush(a.r.ctx(), u)
}

func (a *agent) mustAccept(h *coordinatorv1.PushHeader, payload []byte) {
	a.r.t.Helper()
	if res := a.push(h, payload); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		a.r.t.Fatalf("%s: %v", a.site, res)
	}
}

// seed gives the first weights.
func (a *agent) seed(model *tensor.State) *coordinatorv1.PushResult {
	a.r.t.Helper()
	var b bytes.Buffer
	if err := tensor.SaveState(&b, model, false); err != nil {
		a.r.t.Fatal(err)
	}
	return a.push(&coordinatorv1.PushHeader{SessionToken: a.s.Token, Epoch: a.s.Epoch, Kind: coordinatorv1.PushHeader_KIND_SEED,
		UpdateId: "seed", PayloadBytes: uint64(b.Len())}, b.Bytes())
}

// round runs one round in which every agent sends what work makes of its grant,
// in the order of the agents.
func (r *rig) round(agents []*agent, work func(a *agent, g *coordinatorv1.Grant) (payload []byte, weight float64)) *coordinatorv1.Committed {
	r.t.Helper()
	for _, a := range agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	grants := map[*agent]*coordinatorv1.Grant{}
	for _, a := range agents {
		grants[a] = a.grant()
	}
	for _, a := range agents {
		payload, weight := work(a, grants[a])
		h := a.header(grants[a], fmt.Sprint("u", grants[a].GetRound()), payload)
		h.Weight = weight
		a.mustAccept(h, payload)
	}
	var c *coordinatorv1.Committed
	for _, a := range agents {
		c = a.committed()
	}
	return c
}

// encode makes a payload of a domain vector.
func encode(t *testing.T, d *codec.Domain, enc algorithm.Encoding, x []float32, aux codec.Aux) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := codec.Encode(&b, d, enc, x, aux); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// smallModel has every kind of tensor: parameters, of which w is big enough to
// be cut, buffers and a 0-d counter.
func smallModel(t *testing.T) *tensor.State {
	t.Helper()
	l, err := tensor.NewLayout(tensor.RolesFor([]tensor.Spec{
		{Name: "bias", DType: tensor.F32, Shape: []int64{5}},
		{Name: "bn.num_batches_tracked", DType: tensor.I64, Shape: []int64{}},
		{Name: "bn.running_mean", DType: tensor.F32, Shape: []int64{4}},
		{Name: "bn.running_var", DType: tensor.F32, Shape: []int64{4}},
		{Name: "w", DType: tensor.F32, Shape: []int64{32, 48}},
	}, nil))
	if err != nil {
		t.Fatal(err)
	}
	s := tensor.NewState(l)
	t.Cleanup(s.Close)
	for i := range s.Theta {
		s.Theta[i] = float32(i%17) / 16
	}
	for i := range s.Buffers {
		s.Buffers[i] = 0.01
	}
	return s
}

// killed is what a kill -9 at this moment would leave. The copy takes a moment
// itself, for which nothing may be pruned.
func (r *rig) killed() string {
	r.t.Helper()
	to := r.t.TempDir()
	for {
		var (
			failed  error
			writing chan struct{} // a snapshot at work, whose end the engine must hear of
		)
		err := r.engine.do(r.ctx(), func() {
			select {
			case <-r.engine.snapshot:
				failed = os.CopyFS(to, os.DirFS(r.engine.cfg.DataDir))
			default:
				writing = r.engine.snapshot
			}
		})
		if err := errors.Join(err, failed); err != nil {
			r.t.Fatal(err)
		}
		if writing == nil {
			return to
		}
		select {
		case <-writing:
		case <-r.ctx().Done():
			r.t.Fatal("a snapshot does not end")
		}
	}
}
