package protocol

import (
	"strings"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/replica"
)

// member is an agent by its rules, with its trainer: a process that may end at any
// time, and a disk that stays.
type member struct {
	w                *World
	name, site, node string
	index            int
	kept             kept

	up      bool
	fenced  bool // ended because another process runs under its name
	life    int  // of the process, so that what an older one asked for is not its
	conn    *conn
	welcom  bool // the session on conn is established
	token   string
	epoch   uint64
	heard   time.Time // last message of the coordinator
	dialled time.Time

	// Its orders.
	grant              *grant
	seenEpoch, seenRnd uint64
	target             *target
	void               uint64
	leaving, drained   bool
	leaveSent          bool
	leaveBy            time.Time // when it ends in any case
	givenUp            string

	run *running
	// status that heartbeats tell.
	state  round.MemberState
	round  uint64
	steps  uint64
	pace   time.Duration
	skew   time.Duration // of its wall clock
	clocks []clockSample
	push   *delivery
	trials int
}

// kept is what the member's disk has. Each change of it is one rename in the product.
type kept struct {
	held     bool
	version  uint64
	digest   [32]byte
	state    *state
	residual *replica.Residual
	lastNorm float64
	pending  *update
	measured *float64 // agreement
}

// update lies ready to be sent.
type update struct {
	id                 string
	round, base, steps uint64
	weight             float64
	payload            []byte
	agreement          *float64
	accepted           bool
}

type target struct {
	version uint64
	digest  [32]byte
}

type grant struct {
	*coordinatorv1.Grant
	received, stop, collect time.Time
	// slack is how wrong the estimate of the clocks' offset may have been; negative
	// without one.
	slack time.Duration
}

// running is the round at work.
type running struct {
	g          *grant
	training   bool // else it syncs or uploads
	uploading  bool
	start, end []float32
	steps      uint64
	finishAt   time.Time // zero: not asked to finish
	abortAt    time.Time
	abort      bool
}

// delivery is a push at work.
type delivery struct {
	id      string
	attempt int
	epoch   uint64
	by      time.Time
	sent    bool
	again   time.Time // when a stream that brought no answer has broken
}

type clockSample struct{ offset, rtt time.Duration }

func newMember(w *World, name string, index int) *member {
	site, node, _ := strings.Cut(name, "/")
	return &member{w: w, name: name, site: site, node: node, index: index, up: true, state: round.MemberBusy, pace: time.Duration(1+index) * 200 * time.Millisecond,
		kept: kept{residual: replica.NewResidual(w.domain)}}
}

func (m *member) String() string {
	if m.index == 4 {
		return m.name + " (second process)"
	}
	return m.name
}

// crash is kill -9.
func (m *member) crash() {
	if !m.up {
		return
	}
	m.w.logf("%s dies", m)
	k := m.kept
	if m.w.fault == ForgetsPendingWork {
		k.pending = nil
	}
	*m = member{w: m.w, name: m.name, site: m.site, node: m.node, index: m.index, life: m.life + 1, kept: k, state: round.MemberBusy, pace: m.pace, skew: m.skew}
}

func (m *member) start() {
	if !m.up {
		m.w.logf("%s starts", m)
		m.up, m.fenced = true, false
	}
}

// dial gives an older connection up and opens another.
func (m *member) dial() {
	if !m.up {
		return
	}
	m.hangUp()
	m.conn = &conn{m: m, life: m.life}
	m.heard, m.dialled = m.w.now, m.w.now
	m.w.send(&message{conn: m.conn, hello: true})
}

// hangUp closes the connection; that the coordinator hears of it is not sure.
func (m *member) hangUp() {
	if m.conn != nil {
		m.w.send(&message{conn: m.conn, lost: true})
	}
	m.conn, m.welcom = nil, false
	if m.push != nil {
		m.push.sent = false
	}
}

// wall is the member's wall clock.
func (m *member) wall(t time.Time) time.Time { return t.Add(m.skew) }

// observe takes an exchange of times, as the agent's estimate of the clocks' offset.
func (m *member) observe(sent time.Time, serverMs int64) {
	rtt := m.w.now.Sub(sent)
	s := clockSample{time.UnixMilli(serverMs).Sub(m.wall(sent.Add(rtt / 2))), rtt}
	if m.clocks = append(m.clocks, s); len(m.clocks) > 8 {
		m.clocks = m.clocks[1:]
	}
}

func (m *member) best() (clockSample, bool) {
	if len(m.clocks) == 0 {
		return clockSample{}, false
	}
	best := m.clocks[0]
	for _, s := range m.clocks[1:] {
		if s.rtt < best.rtt {
			best = s
		}
	}
	return best, true
}

// beat sends a heartbeat, and the wish to leave before it.
func (m *member) beat() {
	if !m.up || m.conn == nil || !m.welcom {
		return
	}
	if m.leaving && !m.leaveSent {
		m.leaveSent = true
		m.w.send(&message{conn: m.conn, leave: grace})
	}
	r := round.Report{State: m.state, Round: m.round, Steps: m.steps}
	if m.steps > 0 {
		r.Step = m.pace
	}
	m.w.send(&message{conn: m.conn, beat: &beat{r, m.w.now}})
}

// tick is what the member's timers do.
func (m *member) tick() {
	if !m.up {
		return
	}
	if m.conn != nil && m.w.now.Sub(m.heard) > lossAfter {
		m.w.logf("%s gives its silent session up", m)
		m.hangUp()
	}
	if m.leaving && !m.w.now.Before(m.leaveBy) {
		m.hangUp()
		m.crash()
		return
	}
	if p := m.push; p != nil && !m.w.now.Before(p.by) {
		m.pushLate()
	}
	if r := m.run; r != nil && !r.abortAt.IsZero() && !m.w.now.Before(r.abortAt) {
		r.abort = true
	}
}

// tend does what a member without trouble does.
func (m *member) tend() {
	if !m.up {
		if m.index < 4 && (!m.fenced || m.w.healing) {
			m.start()
		}
		return
	}
	if m.conn == nil {
		m.dial()
	}
	m.worker()
	m.train()
	m.worker()
	m.beat()
}

// worker does the most urgent thing, as the agent's.
func (m *member) worker() {
	if !m.up {
		return
	}
	if m.push != nil {
		m.pushOn()
		return
	}
	if m.run != nil {
		m.roundOn()
		return
	}
	pending := m.kept.pending
	void := m.void != 0 && pending != nil && pending.round == m.void
	m.void = 0
	waiting := pending != nil && !pending.accepted && m.givenUp != pending.id
	switch {
	case void:
		m.drop("its round was void")
	case m.grant != nil:
		m.run = &running{g: m.grant}
		m.grant = nil
		m.state, m.round, m.steps = round.MemberBusy, m.run.g.GetRound(), 0
		m.roundOn()
	case waiting && m.welcom:
		m.state, m.round, m.steps = round.MemberWorking, pending.round, pending.steps
		m.deliver(m.w.now.Add(2 * time.Minute))
	case waiting && m.leaving:
	case m.leaving && (!m.welcom || m.drained):
		m.w.logf("%s has left", m)
		m.hangUp()
		m.crash()
	case !m.welcom, m.leaving:
	case m.target != nil && !m.holds(*m.target):
		m.state = round.MemberBusy
		m.sync(*m.target)
	case m.target != nil && m.state != round.MemberReady:
		m.state, m.round = round.MemberReady, 0
	}
}

func (m *member) holds(t target) bool {
	return m.kept.held && m.kept.version == t.version && m.kept.digest == t.digest
}
