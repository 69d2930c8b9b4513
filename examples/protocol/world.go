package protocol

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// The spans of a run. A member's silence ends its session after lossAfter.
const (
	beatEvery = time.Second
	lossAfter = 3 * beatEvery
	trainFor  = 6 * time.Second
	grace     = 5 * time.Second
)

// plan is what a seed decides before the first step.
type plan struct {
	params   algorithm.Parameters
	layout   *tensor.Layout
	domain   *codec.Domain
	round    round.Config
	snapshot uint64 // commits between two snapshots
	// keep so many deltas; 0 keeps all. A member that was away for longer pulls the
	// whole state, which does not tell what became of its update.
	keep uint64
}

var layouts = [2]*tensor.Layout{tiny(4, 5), tiny(32, 32)}

// tiny is a model of one matrix with what else a model has. Only the larger one's
// matrix travels sparse.
func tiny(rows, columns int64) *tensor.Layout {
	l, err := tensor.NewLayout([]tensor.Spec{
		{Name: "w", DType: tensor.F32, Shape: []int64{rows, columns}, Role: tensor.Parameter},
		{Name: "b", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Parameter},
		{Name: "seen", DType: tensor.F32, Shape: []int64{2}, Role: tensor.Buffer},
		{Name: "count", DType: tensor.I64, Role: tensor.Integer},
	})
	if err != nil {
		panic(err)
	}
	return l
}

func newPlan(rng *rand.Rand) plan {
	strategy := []string{algorithm.DecoupledMomentum, algorithm.DecoupledMomentum, algorithm.DiLoCo}[rng.IntN(3)]
	params, err := algorithm.Defaults(strategy)
	if err != nil {
		panic(err)
	}
	size := 0
	if rng.IntN(8) == 0 {
		size = 1
	}
	p := plan{params: params, layout: layouts[size], snapshot: uint64(1 + rng.IntN(4))}
	p.domain = codec.NewDomain(p.layout, params.Uplink.Transform)
	p.round = round.Config{
		Sites: []string{"a", "b", "c"}, MinSites: 1 + rng.IntN(2), LocalSteps: uint64(rng.IntN(2) * 8),
		Train: trainFor, Collect: 4 * time.Second, Join: 2 * time.Second, Settle: time.Second, Grace: grace,
	}
	if rng.IntN(4) == 0 {
		p.keep = uint64(1 + rng.IntN(3))
	}
	return p
}

// conn is one stream between a member's process and a coordinator. Either end may
// have given it up without the other's knowledge.
type conn struct {
	m *member
	c *coordinator // that serves it; nil until the hello arrives
	s *session.Session
	// life of the member's process that dialled.
	life int
}

// message is something on its way.
type message struct {
	conn *conn
	sent time.Time
	// To the coordinator, one of:
	hello bool
	beat  *beat
	leave time.Duration
	push  *push
	body  *upload // the payload that follows a header
	lost  bool    // the member's end is closed
	// To the member, one of:
	down   *coordinatorv1.SessionResponse
	answer *answer
	closed string // why the coordinator's end is closed
}

// up says that the message goes to the coordinator.
func (m *message) up() bool {
	return m.hello || m.beat != nil || m.leave != 0 || m.push != nil || m.body != nil || m.lost
}

// beat is a heartbeat.
type beat struct {
	report round.Report
	sent   time.Time
}

// World is one run.
type World struct {
	plan
	fault Fault
	now   time.Time
	disk  disk
	// coords are the live coordinators; the last one takes new sessions. An older
	// one does not know yet that the store is not its own any more.
	coords  []*coordinator
	members []*member
	net     []*message
	cut     map[string]bool // sites without a network
	// skew is how far the coordinator's wall clock is ahead of time; skewed, when
	// a wall clock jumped last.
	skew   time.Duration
	skewed time.Time
	ids    int
	// healing: whoever ends is started again.
	healing bool
	check   checker
	// Stats of the run.
	Commits, Voids, Crashes, Stale int
	trace                          []string
	tracing                        bool
}

var epochStart = time.Unix(1_700_000_000, 0)

// NewWorld makes a federation whose coordinator and members run. The fault is what
// it does wrong on purpose.
func NewWorld(seed uint64, fault Fault, trace bool) *World {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &World{plan: newPlan(rng), fault: fault, now: epochStart, cut: map[string]bool{}, tracing: trace}
	w.check.init(w)
	w.disk.init(w, rng)
	for i, name := range []string{"a/n1", "a/n2", "b/n1", "c/n1", "c/n1"} {
		w.members = append(w.members, newMember(w, name, i))
	}
	w.members[4].up = false // a second process under the name of the fourth
	for _, site := range w.round.Sites {
		w.disk.wishes[site] = round.Admit
	}
	w.startCoordinator()
	return w
}

func (w *World) logf(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%8.3fs  ", w.now.Sub(epochStart).Seconds())+fmt.Sprintf(format, args...))
	}
}

// Trace is what happened, if the world was made to keep it.
func (w *World) Trace() string { return strings.Join(w.trace, "\n") }

// Broken is the first invariant that did not hold, nil if all did.
func (w *World) Broken() error { return w.check.broken() }

func (w *World) send(m *message) {
	m.sent = w.now
	w.net = append(w.net, m)
}

// current is the coordinator that takes new sessions, nil while none runs.
func (w *World) current() *coordinator {
	if len(w.coords) == 0 {
		return nil
	}
	return w.coords[len(w.coords)-1]
}

// deliver takes the i-th message off the network, or leaves it there to come again.
func (w *World) deliver(i int, again bool) {
	m := w.net[i]
	if w.cut[m.conn.m.site] {
		return
	}
	if !again {
		w.net = slices.Delete(w.net, i, i+1)
	}
	switch {
	case m.up():
		w.toCoordinator(m)
	case m.conn == m.conn.m.conn && m.conn.life == m.conn.m.life:
		m.conn.m.take(m)
	}
	w.flush()
}

// flush puts what the sessions have to say on the network.
func (w *World) flush() {
	for _, c := range w.coords {
		for _, conn := range c.conns {
			for more := true; more; {
				select {
				case r := <-conn.s.Outbox():
					w.send(&message{conn: conn, down: r})
				default:
					more = false
				}
			}
		}
	}
}

// advance lets time pass for everybody, with each timer in its time.
func (w *World) advance(d time.Duration) {
	end := w.now.Add(d)
	for w.now.Before(end) {
		next := end
		for _, c := range w.coords {
			if t := c.machine.Next(); !t.IsZero() && t.Before(next) {
				next = t
			}
		}
		if by := w.now.Add(beatEvery / 2); by.Before(next) {
			next = by
		}
		if !next.After(w.now) {
			next = w.now.Add(time.Millisecond)
		}
		w.now = next
		w.tick()
	}
}

// tick is what timers do at this time.
func (w *World) tick() {
	for _, c := range slices.Clone(w.coords) {
		c.tick()
	}
	for _, m := range w.members {
		m.tick()
	}
	w.flush()
	w.check.timely(w)
}

// service is a while without faults: everything arrives in order, everybody does
// what is next.
func (w *World) service(d time.Duration) {
	end := w.now.Add(d)
	for w.now.Before(end) {
		for _, m := range w.members {
			m.tend()
		}
		for n := len(w.net); n > 0 && len(w.net) > 0; n-- {
			at := slices.IndexFunc(w.net, func(m *message) bool { return !w.cut[m.conn.m.site] })
			if at < 0 {
				break
			}
			w.deliver(at, false)
		}
		for _, c := range slices.Clone(w.coords) {
			c.commitOn(false)
		}
		w.flush()
		w.advance(beatEvery / 2)
		if w.check.err != nil {
			return
		}
	}
}

func (w *World) newID(m *member) string {
	w.ids++
	return fmt.Sprintf("%s-%d-u%d", m.name, m.index, w.ids)
}
