package round

import (
	"fmt"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// SetModel says that the first weights are known, so that rounds can begin.
func (m *Machine) SetModel(now time.Time) []Action {
	if !m.hasModel {
		m.hasModel, m.waitFrom = true, now
	}
	return m.settle(now, nil)
}

// SetMembership tells what is wished of a site. Deadline bounds a drain; zero
// means now plus Config.Grace. It returns whether the membership was another
// one, and an error for an undeclared site or an unknown membership.
func (m *Machine) SetMembership(now time.Time, name string, want Membership, deadline time.Time, reason v1alpha1.Reason, message string) (bool, []Action, error) {
	s, ok := m.sites[name]
	if !ok {
		return false, nil, fmt.Errorf("site %q is not declared in this federation; declared are %v", name, m.order)
	}
	switch want {
	case Admit, Drain, Exclude:
	default:
		return false, nil, fmt.Errorf("site %q: membership %q is none of %s, %s, %s", name, want, Admit, Drain, Exclude)
	}
	changed := s.membership != want
	s.membership, s.reason, s.message = want, reason, message
	if !changed {
		return false, m.settle(now, nil), nil
	}
	s.drainBy, s.late = time.Time{}, nil
	var out []Action
	switch want {
	case Drain:
		if deadline.IsZero() {
			deadline = now.Add(m.cfg.Grace)
		}
		s.drainBy = deadline
		for _, mb := range m.membersOf(name) {
			if mb.connected {
				out = append(out, DrainMember{Member: mb.name, Deadline: deadline, Reason: reason, Message: message})
			}
		}
	case Exclude:
		for _, mb := range m.membersOf(name) {
			// A merge at work goes on with what it has.
			if sh := m.shares[mb.name]; sh != nil && (sh.outcome == pending || sh.outcome == accepted) && m.state == Collecting {
				sh.outcome = expired
				out = append(out, Stop{Member: mb.name, Round: m.round, Reason: v1alpha1.ReasonExcluded})
			}
		}
	}
	if want != Admit {
		for _, mb := range m.membersOf(name) {
			mb.lostReason = "" // who is not wanted is not missed
		}
	}
	return true, m.settle(now, out), nil
}

// Join says that a member has a session with this epoch. A newer epoch of a
// known member takes the place of the older one; an older one is an error.
func (m *Machine) Join(now time.Time, name, siteName string, epoch uint64) ([]Action, error) {
	if _, ok := m.sites[siteName]; !ok {
		return nil, fmt.Errorf("site %q is not declared in this federation; declared are %v", siteName, m.order)
	}
	mb := m.members[name]
	switch {
	case mb == nil:
		m.forget(siteName)
		mb = &member{name: name, site: siteName}
		m.enrol(mb)
	case epoch <= mb.epoch:
		return nil, fmt.Errorf("member %s: session %d is fenced by session %d", name, epoch, mb.epoch)
	case mb.site != siteName:
		return nil, fmt.Errorf("member %s belongs to site %q, not %q", name, mb.site, siteName)
	}
	mb.epoch, mb.connected, mb.state, mb.detail, mb.waits = epoch, true, MemberBusy, "", ""
	mb.leaving, mb.lostReason, mb.fresh = time.Time{}, "", true
	var out []Action
	if sh := m.shares[name]; sh != nil && sh.outcome == pending {
		sh.stopped = false // the session before may not have heard of it
		m.away(now, mb, sh)
		if s := m.sites[siteName]; now.Before(s.drainBy) {
			// The session before may not have heard of the drain.
			out = append(out, DrainMember{Member: name, Deadline: s.drainBy, Reason: s.reason, Message: s.message})
		}
	}
	return m.settle(now, out), nil
}

// away bounds how long the round waits for a member without its session: as
// long as the others should need, and at least long enough to reconnect.
func (m *Machine) away(now time.Time, mb *member, sh *share) {
	if !sh.awayUntil.IsZero() {
		return
	}
	sh.disturbed = true
	sh.awayUntil = now.Add(m.cfg.Settle)
	if end := m.expectedEnd(); mb.leaving.IsZero() && end.After(sh.awayUntil) {
		sh.awayUntil = end
	}
}

// Lose says that the session with this epoch ended.
func (m *Machine) Lose(now time.Time, name string, epoch uint64, reason v1alpha1.Reason) []Action {
	mb := m.members[name]
	if mb == nil || mb.epoch != epoch || !mb.connected {
		return nil
	}
	if sh := m.shares[name]; sh != nil {
		m.away(now, mb, sh)
	}
	mb.connected, mb.lostReason = false, reason
	if !mb.leaving.IsZero() || m.sites[mb.site].membership != Admit {
		mb.lostReason = "" // it was to go
	}
	return m.settle(now, nil)
}

// Report is what a heartbeat says.
type Report struct {
	State  MemberState
	Detail string
	// Waits is why a busy member cannot take work; empty: it synchronizes.
	Waits v1alpha1.Reason
	// Round at work (also of a busy member: it synchronizes for it) or, when Ready,
	// the one just handled; 0 none. Ready with the round at work and no update
	// before it means that there is nothing to report.
	Round uint64
	Step  time.Duration // measured time of a local step; 0 unknown
	Steps uint64        // done in Round
}

// Heard takes a member's heartbeat.
func (m *Machine) Heard(now time.Time, name string, epoch uint64, r Report) []Action {
	mb := m.members[name]
	if mb == nil || mb.epoch != epoch || !mb.connected {
		return nil
	}
	if r.Step > 0 {
		mb.step = max(r.Step, leastStep)
	}
	if sh := m.shares[name]; sh != nil && sh.outcome == pending && m.state == Collecting {
		switch {
		case r.State != MemberReady && r.Round == m.round:
			sh.epoch, sh.taken, sh.awayUntil = epoch, true, time.Time{}
			if r.Steps != sh.steps {
				sh.steps, sh.stepsAt = r.Steps, now
			}
		case r.State != MemberReady:
		case epoch > sh.epoch && r.Round != m.round:
			// A new process, or one that the grant never reached: it has no work of
			// this round and may take a new grant for the rest of it.
			delete(m.shares, name)
		case r.Round == m.round || sh.taken:
			sh.outcome = declined // nothing to report
		default:
			// Sent before the grant arrived: it says nothing of now.
			return m.settle(now, nil)
		}
	}
	mb.state, mb.detail, mb.waits = r.State, r.Detail, r.Waits
	return m.settle(now, nil)
}

// Leave says that a member asks to go. It is drained by the deadline.
func (m *Machine) Leave(now time.Time, name string, epoch uint64, deadline time.Time, message string) []Action {
	mb := m.members[name]
	if mb == nil || mb.epoch != epoch || !mb.connected {
		return nil
	}
	mb.leaving = deadline
	return m.settle(now, []Action{DrainMember{Member: name, Deadline: deadline, Reason: v1alpha1.ReasonAgentLeaving, Message: message}})
}

// Expecting says whether an update of this member for this round is awaited; if
// not, the reason is StaleRound, NotGranted or ConflictingUpdate.
func (m *Machine) Expecting(now time.Time, name string, round uint64) (v1alpha1.Reason, bool) {
	if round > m.round {
		return v1alpha1.ReasonNotGranted, false
	}
	if m.state != Collecting || round != m.round || !now.Before(m.deadline) {
		return v1alpha1.ReasonStaleRound, false
	}
	sh := m.shares[name]
	switch {
	case sh == nil:
		return v1alpha1.ReasonNotGranted, false
	case sh.outcome == accepted:
		return v1alpha1.ReasonConflictingUpdate, false
	case sh.outcome != pending, m.outOfTime(now, name, sh):
		return v1alpha1.ReasonStaleRound, false
	}
	return "", true
}

// Accepted says that a member's update for the round, of so many local steps, was
// checked and is kept. It must follow Expecting without other calls between.
func (m *Machine) Accepted(now time.Time, name string, steps uint64) []Action {
	if sh := m.shares[name]; sh != nil && sh.outcome == pending && m.state == Collecting {
		sh.outcome, sh.steps, sh.stepsAt = accepted, steps, now
		m.members[name].measure(sh, m.cfg.Train)
	}
	return m.settle(now, nil)
}

// Refused says that a member's update cannot be used and that no better one is
// to be expected in this round.
func (m *Machine) Refused(now time.Time, name string, round uint64) []Action {
	if sh := m.shares[name]; sh != nil && sh.outcome == pending && m.state == Collecting && round == m.round {
		sh.outcome = declined
	}
	return m.settle(now, nil)
}

// Committed says that the commit of the round is durable.
func (m *Machine) Committed(now time.Time) []Action {
	if m.state != Committing {
		return nil
	}
	m.committed++
	m.voidRow = 0
	m.rest(now)
	var out []Action
	if m.cfg.Total > 0 && m.committed >= m.cfg.Total {
		out = m.end(m.completed())
	}
	return m.settle(now, out)
}

// CommitFailed says that the merge had no effect.
func (m *Machine) CommitFailed(now time.Time, reason v1alpha1.Reason, message string) []Action {
	if m.state != Committing {
		return nil
	}
	return m.settle(now, m.void(now, reason, message))
}

// Fail ends the run: nothing more can be committed.
func (m *Machine) Fail(now time.Time, reason v1alpha1.Reason, message string) []Action {
	if m.state == Failed || m.state == Completed {
		return nil
	}
	return m.settle(now, m.end(Ended{State: Failed, Reason: reason, Message: message}))
}

// Pause lets the round in flight end and grants no other.
func (m *Machine) Pause(now time.Time) []Action {
	m.paused = true
	return m.settle(now, nil)
}

// Resume ends a pause.
func (m *Machine) Resume(now time.Time) []Action {
	if m.paused {
		m.paused, m.waitFrom = false, now
	}
	return m.settle(now, nil)
}

// Tick lets time pass.
func (m *Machine) Tick(now time.Time) []Action { return m.settle(now, nil) }

// Hold takes the inputs that follow, all of one instant, together: they return no
// actions until Release. It is for callers that know several at once.
func (m *Machine) Hold() { m.held = true }

// Release ends a Hold and returns the actions of all inputs since.
func (m *Machine) Release(now time.Time) []Action {
	out := m.deferred
	m.held, m.deferred = false, nil
	return m.settle(now, out)
}
