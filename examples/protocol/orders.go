package protocol

import (
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
)

// take a message of the coordinator.
func (m *member) take(msg *message) {
	if !m.up {
		return
	}
	m.heard = m.w.now
	switch {
	case msg.closed != "":
		m.w.logf("%s hears that its session ended: %s", m, msg.closed)
		m.conn = nil
		m.welcom = false
		if m.push != nil {
			m.push.sent = false
		}
		if msg.closed == string(v1alpha1.ReasonSuperseded) {
			m.crash()
			m.fenced = true
		}
	case msg.answer != nil:
		m.answered(msg.answer)
	default:
		m.receive(msg)
	}
}

func (m *member) receive(msg *message) {
	switch x := msg.down.GetMessage().(type) {
	case *coordinatorv1.SessionResponse_Welcome:
		if m.welcom {
			return
		}
		m.welcom, m.token, m.epoch = true, x.Welcome.GetSessionToken(), x.Welcome.GetEpoch()
		m.observe(m.dialled, x.Welcome.GetServerUnixMs())
		m.drained, m.leaveSent = false, false
		m.target = &target{x.Welcome.GetModelVersion(), [32]byte(x.Welcome.GetModelDigest())}
		if m.run == nil && m.state == round.MemberReady {
			m.round = 0
		}
	case *coordinatorv1.SessionResponse_HeartbeatReply:
		sent := time.Unix(0, int64(x.HeartbeatReply.GetSequence()))
		m.observe(sent, x.HeartbeatReply.GetServerUnixMs())
	case *coordinatorv1.SessionResponse_Grant:
		m.granted(x.Grant)
	case *coordinatorv1.SessionResponse_Stop:
		m.stopped(x.Stop)
	case *coordinatorv1.SessionResponse_Drain:
		m.drain(time.Duration(x.Drain.GetDeadlineInMs()) * time.Millisecond)
	case *coordinatorv1.SessionResponse_Committed:
		m.committed(x.Committed)
	}
}

func (m *member) granted(g *coordinatorv1.Grant) {
	now := m.w.now
	span := time.Duration(g.GetStopInMs()) * time.Millisecond
	slack := time.Duration(-1)
	if c, ok := m.best(); ok {
		slack = c.rtt / 2
		span = min(span, time.UnixMilli(g.GetStopAtUnixMs()).Sub(m.wall(now).Add(c.offset)))
	}
	next := &grant{Grant: g, slack: slack, received: now, stop: now.Add(span), collect: now.Add(time.Duration(g.GetCollectInMs()) * time.Millisecond)}
	if next.collect.Before(next.stop) {
		next.collect = next.stop
	}
	switch {
	case m.leaving, !m.welcom, g.GetEpoch() != m.epoch:
		return
	case g.GetEpoch() < m.seenEpoch || g.GetEpoch() == m.seenEpoch && g.GetRound() <= m.seenRnd:
		return
	}
	m.seenEpoch, m.seenRnd = g.GetEpoch(), g.GetRound()
	if r := m.run; r != nil {
		if r.g.GetRound() == g.GetRound() && r.g.GetBaseVersion() == g.GetBaseVersion() {
			return
		}
		r.abort = true
	}
	m.grant, m.drained = next, false
	m.target = &target{g.GetBaseVersion(), [32]byte(g.GetBaseDigest())}
}

func (m *member) stopped(s *coordinatorv1.Stop) {
	if m.grant != nil && m.grant.GetRound() == s.GetRound() {
		m.grant.stop = m.w.now
	}
	r := m.run
	if r == nil || r.g.GetRound() != s.GetRound() {
		return
	}
	if s.GetReason() == string(v1alpha1.ReasonExcluded) {
		r.abort = true
		return
	}
	r.finish(m.w.now)
}

func (r *running) finish(at time.Time) {
	if r.finishAt.IsZero() || at.Before(r.finishAt) {
		r.finishAt = at
	}
}

func (m *member) drain(left time.Duration) {
	m.drained = true
	if g := m.grant; g != nil {
		m.grant = nil
		m.nothing(g.GetRound(), 0)
	}
	if r := m.run; r != nil {
		r.abortAt = m.w.now.Add(left)
		r.finish(m.w.now.Add(left / 5 * 4))
	}
}

func (m *member) committed(c *coordinatorv1.Committed) {
	if c.GetVoid() {
		m.void = c.GetRound()
	} else {
		m.target = &target{c.GetVersion(), [32]byte(c.GetDigest())}
		m.w.check.promised(c.GetVersion(), m.target.digest)
		if m.w.fault == StepsTwice && m.kept.held && m.kept.version == c.GetVersion() && m.run == nil {
			m.applyAgain()
		}
	}
	if r := m.run; r != nil && r.g.GetRound() == c.GetRound() {
		r.finish(m.w.now)
	}
}

// nothing says that no (more) update of the round is to be expected.
func (m *member) nothing(number, steps uint64) {
	m.state, m.round, m.steps = round.MemberReady, number, steps
}
