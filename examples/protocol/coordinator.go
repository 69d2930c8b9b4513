package protocol

import (
	"fmt"
	"slices"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
)

// coordinator is the engine by its rules: one process, whose memory ends with it.
type coordinator struct {
	w        *World
	term     uint64
	machine  *round.Machine
	table    *session.Table
	conns    []*conn
	uploads  map[string]*upload
	counted  map[string]uint64
	model    model
	noted    uint64
	work     *work // the commit at work, nil without one
	dead     bool
	lastTick time.Time
	drainBy  map[string]time.Time // of sites that drain
	leaveBy  map[string]time.Time // of members that leave
	deadline time.Time            // of the newest round granted
}

// startCoordinator opens the store in a new term and recovers from it.
func (w *World) startCoordinator() {
	if w.fault != ForgetsTerm || w.disk.term == 0 {
		w.disk.term++
	}
	c := &coordinator{w: w, term: w.disk.term, uploads: map[string]*upload{}, counted: map[string]uint64{},
		lastTick: w.now, drainBy: map[string]time.Time{}, leaveBy: map[string]time.Time{}}
	tokens := 0
	c.table = session.NewTable(c.term, func() string { tokens++; return fmt.Sprintf("%d-%p-%d", c.term, c, tokens) })
	c.model = w.disk.recover(w)
	c.remember()
	c.noted = w.disk.round
	last := max(c.noted, w.disk.lastRound())
	c.machine = round.New(w.round, last, uint64(len(w.disk.log)), 0, w.now)
	if w.disk.paused {
		c.machine.Pause(w.now)
	}
	for _, site := range w.round.Sites {
		if _, _, err := c.machine.SetMembership(w.now, site, w.disk.wishes[site], time.Time{}, v1alpha1.ReasonReady, "wish"); err != nil {
			panic(err)
		}
	}
	w.coords = append(w.coords, c)
	w.logf("coordinator of term %d recovers version %d, round %d", c.term, c.model.version, last)
	c.act(c.machine.SetModel(w.now))
}

// remember is which updates the newest commits have.
func (c *coordinator) remember() {
	for _, man := range c.w.disk.log {
		for _, m := range man.members {
			c.counted[m.name+" "+m.id] = man.version
		}
	}
}

// die ends the process; what it has in memory is gone.
func (c *coordinator) die() {
	c.w.logf("coordinator of term %d dies", c.term)
	c.w.coords = slices.DeleteFunc(c.w.coords, func(o *coordinator) bool { return o == c })
	c.dead, c.conns = true, nil
}

// owns says that no other coordinator has opened the store since.
func (c *coordinator) owns() bool { return c.term == c.w.disk.term }

// open answers a hello.
func (c *coordinator) open(cn *conn) {
	m := cn.m
	hello := &coordinatorv1.Hello{Site: m.site, Node: m.node}
	s, older := c.table.Open(c.w.now, hello)
	if older != nil {
		c.hangUp(older)
	}
	cn.c, cn.s = c, s
	c.conns = append(c.conns, cn)
	c.w.check.session(c.w, c, s)
	actions, err := c.machine.Join(c.w.now, s.Member, s.Site, s.Epoch)
	if err != nil {
		c.w.check.fail("session %d of %s is not taken: %v", s.Epoch, s.Member, err)
		return
	}
	delete(c.leaveBy, s.Member)
	s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Welcome{Welcome: &coordinatorv1.Welcome{
		Epoch: s.Epoch, SessionToken: s.Token, ServerUnixMs: c.wall(c.w.now).UnixMilli(),
		ModelVersion: &c.model.version, ModelDigest: c.model.digest[:],
	}}})
	c.w.logf("session %d of %s opens", s.Epoch, m)
	c.act(actions)
}

// hangUp closes the connection of a session.
func (c *coordinator) hangUp(s *session.Session) {
	for i, cn := range c.conns {
		if cn.s == s {
			c.conns = slices.Delete(c.conns, i, i+1)
			c.w.send(&message{conn: cn, closed: string(s.Reason())})
			return
		}
	}
}

func (c *coordinator) endSession(s *session.Session, reason v1alpha1.Reason) {
	s.Close(reason)
	if c.table.Remove(s) {
		c.w.logf("session %d of %s ends: %s", s.Epoch, s.Member, reason)
		c.act(c.machine.Lose(c.w.now, s.Member, s.Epoch, reason))
	}
	c.hangUp(s)
}

// wall is the coordinator's wall clock.
func (c *coordinator) wall(t time.Time) time.Time { return t.Add(c.w.skew) }

func (w *World) toCoordinator(m *message) {
	if m.hello {
		c := w.current()
		cn := m.conn
		if cn.s != nil {
			cn = &conn{m: cn.m, life: -1} // a repetition: nobody is at its other end
		}
		if c != nil && !c.owns() && w.fault != IgnoresFencing {
			w.logf("coordinator of term %d is fenced before it takes a session", c.term)
			c.die()
			c = nil
		}
		if c != nil {
			c.open(cn)
		} else {
			w.send(&message{conn: cn, closed: "unavailable"})
		}
		return
	}
	c, s := m.conn.c, m.conn.s
	if c == nil || c.dead {
		return
	}
	// A push has a stream of its own, which the end of its session does not close.
	live := c.table.Member(s.Member) == s
	switch {
	case m.lost:
		c.endSession(s, v1alpha1.ReasonConnectionLost)
	case m.beat != nil && live:
		s.Seen = w.now
		s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_HeartbeatReply{HeartbeatReply: &coordinatorv1.HeartbeatReply{
			ServerUnixMs: c.wall(w.now).UnixMilli(), Sequence: uint64(m.beat.sent.UnixNano()),
		}}})
		c.act(c.machine.Heard(w.now, s.Member, s.Epoch, m.beat.report))
	case m.leave != 0:
		by := w.now.Add(min(m.leave, grace))
		if live {
			c.leaveBy[s.Member] = by
		}
		c.act(c.machine.Leave(w.now, s.Member, s.Epoch, by, "leaves"))
	case m.push != nil:
		if u, a := c.beginUpdate(m.push); u != nil {
			w.send(&message{conn: m.conn, body: u})
		} else {
			w.send(&message{conn: m.conn, answer: a})
		}
	case m.body != nil:
		w.send(&message{conn: m.conn, answer: c.finishUpdate(m.body)})
	}
}

func (c *coordinator) tick() {
	if c.w.fault == MissesDeadlines {
		return
	}
	if late := c.w.now.Sub(c.lastTick); late > lossAfter/4+beatEvery/2 {
		for _, s := range c.table.All() {
			s.Seen = s.Seen.Add(late)
		}
	}
	c.lastTick = c.w.now
	for _, s := range c.table.Silent(c.w.now.Add(-lossAfter)) {
		c.endSession(s, v1alpha1.ReasonHeartbeatMissed)
	}
	c.act(c.machine.Tick(c.w.now))
}

func (c *coordinator) setMembership(site string, want round.Membership, span time.Duration) {
	by := c.w.now.Add(span)
	changed, actions, err := c.machine.SetMembership(c.w.now, site, want, by, v1alpha1.ReasonReady, "wish")
	if err != nil {
		panic(err)
	}
	if changed {
		delete(c.drainBy, site)
		if want == round.Drain {
			c.drainBy[site] = by
		}
		c.w.logf("site %s: %s", site, want)
	}
	c.act(actions)
}

// act carries out what the machine asks for.
func (c *coordinator) act(actions []round.Action) {
	if n := roundOf(actions); n > c.noted {
		c.noted = n
		if !c.owns() && c.w.fault != IgnoresFencing {
			c.w.logf("coordinator of term %d is fenced before it grants round %d", c.term, n)
			c.die()
			return
		}
		if c.w.fault != ForgetsRoundNumber {
			c.w.disk.round = n
		}
	}
	for _, a := range actions {
		switch a := a.(type) {
		case round.Grant:
			c.grant(a)
		case round.Stop:
			if a.Reason == v1alpha1.ReasonExcluded {
				delete(c.uploads, a.Member)
			}
			c.send(a.Member, &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Stop{
				Stop: &coordinatorv1.Stop{Round: a.Round, Reason: string(a.Reason)}}})
		case round.DrainMember:
			c.send(a.Member, &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Drain{
				Drain: &coordinatorv1.Drain{DeadlineInMs: max(0, a.Deadline.Sub(c.w.now).Milliseconds())}}})
		case round.Commit:
			c.w.logf("round %d merges %v", a.Round, a.Members)
			c.work = newWork(c, a)
		case round.Void:
			c.voided(a)
		}
	}
}

// roundOf is the number of the round that the actions grant, 0 without one.
func roundOf(actions []round.Action) (n uint64) {
	for _, a := range actions {
		if g, ok := a.(round.Grant); ok {
			n = max(n, g.Round)
		}
	}
	return n
}

func (c *coordinator) send(member string, m *coordinatorv1.SessionResponse) {
	if s := c.table.Member(member); s != nil {
		s.Send(m)
	}
}

func (c *coordinator) grant(g round.Grant) {
	s := c.table.Member(g.Member)
	epoch := uint64(0)
	if s != nil {
		epoch = s.Epoch
	}
	m := &c.model
	out := &coordinatorv1.Grant{
		Round: g.Round, Epoch: epoch, BaseVersion: m.version, BaseDigest: slices.Clone(m.digest[:]), MaxSteps: g.MaxSteps,
		StopAtUnixMs: c.wall(g.StopAt).UnixMilli(), StopInMs: g.StopAt.Sub(c.w.now).Milliseconds(),
		CollectInMs: g.Deadline.Sub(c.w.now).Milliseconds(), Agreement: m.agreement, Alone: g.Alone,
	}
	c.w.logf("grant of round %d to %s, session %d, stop in %d ms", g.Round, g.Member, epoch, out.GetStopInMs())
	c.deadline = g.Deadline
	c.w.check.grant(c.w, c, g, epoch)
	c.send(g.Member, &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Grant{Grant: out}})
}

func (c *coordinator) voided(a round.Void) {
	c.w.logf("round %d is void: %s", a.Round, a.Message)
	c.w.Voids++
	clear(c.uploads)
	c.tell(&coordinatorv1.Committed{Round: a.Round, Version: c.model.version, Digest: slices.Clone(c.model.digest[:]), Void: true}, nil)
}

// tell the members of admitted sites, and the senders, how a round ended.
func (c *coordinator) tell(committed *coordinatorv1.Committed, senders map[string]bool) {
	for _, s := range c.table.All() {
		if senders[s.Member] || c.w.disk.wishes[s.Site] == round.Admit {
			s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Committed{Committed: committed}})
		}
	}
}
