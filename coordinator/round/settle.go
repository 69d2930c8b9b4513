package round

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// settle does everything that the present facts and time allow: ends drains,
// closes the round, starts the next, grants to late comers, and reports sites
// whose phase or reason changed. Every input ends here.
func (m *Machine) settle(now time.Time, out []Action) []Action {
	if m.held {
		m.deferred = append(m.deferred, out...)
		return nil
	}
	m.expireDrains(now)
	if m.state == Collecting {
		out = append(out, m.collect(now)...)
	}
	if m.state == Waiting {
		out = append(out, m.start(now)...)
	}
	if m.state == Collecting {
		out = append(out, m.callBack(now)...)
	}
	return append(out, m.changes(now)...)
}

// expireDrains gives up the pending work of members whose drain or leave is
// over time, and the sessions of those who have left by their own word.
func (m *Machine) expireDrains(now time.Time) {
	for _, mb := range m.sortedMembers() {
		sh := m.shares[mb.name]
		if sh != nil && sh.outcome == pending && m.outOfTime(now, mb.name, sh) {
			sh.outcome = expired
			if s := m.sites[mb.site]; s.membership == Drain {
				s.late = append(s.late, mb.name)
			}
		}
		if mb.connected && !mb.leaving.IsZero() && !now.Before(mb.leaving) {
			mb.connected = false
		}
	}
}

// leaveBy is when a member with work must be out; zero if it may stay.
func (m *Machine) leaveBy(name string, sh *share) time.Time {
	return earlier(m.sites[sh.site].drainBy, m.members[name].leaving)
}

func (m *Machine) outOfTime(now time.Time, name string, sh *share) bool {
	by := m.leaveBy(name, sh)
	return !by.IsZero() && !now.Before(by)
}

// earlier of two times, where zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// collect closes the round when nothing more is to come, and otherwise grants
// the rest of it to members that have appeared.
func (m *Machine) collect(now time.Time) []Action {
	timeUp := !now.Before(m.deadline)
	waiting := false
	var took, silent []string
	sites := map[string]bool{}
	for _, name := range m.shareNames() {
		sh := m.shares[name]
		switch {
		case sh.outcome == accepted:
			took = append(took, name)
			sites[sh.site] = true
			continue
		case sh.outcome == withheld:
			sites[sh.site] = true // it has nothing to add
			continue
		case sh.outcome == pending && (sh.awayUntil.IsZero() || now.Before(sh.awayUntil)):
			waiting = true
		}
		silent = append(silent, name)
	}
	if !timeUp {
		if waiting {
			return m.grantRest(now)
		}
		// Nothing more is to come. If that is too little, the rest of the round may
		// go to whoever is ready.
		if len(took) == 0 || len(sites) < m.cfg.MinSites {
			if out := m.grantRest(now); len(out) > 0 {
				return out
			}
		}
	}
	if len(took) == 0 || len(sites) < m.cfg.MinSites {
		why := fmt.Sprintf("%d of at least %d sites sent a usable update", min(len(took), len(sites)), m.cfg.MinSites)
		if len(silent) > 0 {
			why += "; none came from " + strings.Join(silent, ", ")
		}
		return m.void(now, v1alpha1.ReasonTooFewUpdates, why)
	}
	for _, sh := range m.shares {
		if sh.outcome == pending {
			sh.outcome = expired
		}
	}
	m.state = Committing
	return []Action{Commit{Round: m.round, Members: took, Alone: len(took) == 1}}
}

// grantRest grants what is left of the round to eligible members without a
// share, if a step of theirs fits.
func (m *Machine) grantRest(now time.Time) []Action {
	if m.paused || m.obstacle != nil {
		return nil
	}
	left := m.started.Add(m.span).Sub(now)
	var fit []*member
	ready := m.readyMembers()
	learn(ready)
	for _, mb := range ready {
		need := mb.pace + mb.aside()
		if mb.pace == 0 {
			need = m.span / 5 // unknown speed: ask for a fair rest
		}
		if m.shares[mb.name] == nil && left >= need {
			fit = append(fit, mb)
		}
	}
	return m.grant(now, fit, left)
}

// eligible members can take a grant.
func (m *Machine) eligible(mb *member) bool {
	return mb.connected && mb.state == MemberReady && mb.leaving.IsZero() && m.sites[mb.site].membership == Admit
}

// start begins a round when there is a model, nobody paused, and enough sites
// are ready; it gives the others a bounded time to be ready too.
func (m *Machine) start(now time.Time) []Action {
	if !m.canStart() || m.holdsBack() && now.Before(m.startBy()) {
		return nil
	}
	ready := m.readyMembers()
	m.round++
	m.begun = true
	m.state = Collecting
	m.started = now
	m.stopAt = now.Add(m.cfg.Train)
	m.deadline = m.stopAt.Add(m.cfg.Collect)
	learn(ready)
	m.span, m.paced = m.plan(ready)
	return m.grant(now, ready, m.span)
}

func (m *Machine) canStart() bool {
	return !m.paused && m.obstacle == nil && m.goingBack == "" && m.hasModel && m.countSites(m.readyMembers()) >= m.cfg.MinSites
}

// holdsBack says whether the start waits until startBy: for somebody, or after a
// void round, so that a fault that ends every round at once does not spin.
func (m *Machine) holdsBack() bool { return m.voidRow > 0 || len(m.missing()) > 0 }

// grant gives members work for the span that is left.
func (m *Machine) grant(now time.Time, ms []*member, left time.Duration) []Action {
	if len(ms) == 0 {
		return nil
	}
	for _, mb := range ms {
		m.shares[mb.name] = &share{site: mb.site, epoch: mb.epoch, maxSteps: m.budget(mb, left), since: now, evaluates: m.evaluates(mb.site)}
		mb.state = MemberWorking
	}
	atWork := 0
	for _, sh := range m.shares {
		if sh.outcome == pending || sh.outcome == accepted {
			atWork++
		}
	}
	out := make([]Action, 0, len(ms))
	for _, mb := range ms {
		out = append(out, Grant{
			Member: mb.name, Round: m.round, MaxSteps: m.shares[mb.name].maxSteps, StopAt: m.stopAt, Deadline: m.deadline,
			Alone:    atWork == 1,
			Evaluate: m.evaluates(mb.site),
		})
	}
	return out
}

func (m *Machine) shareNames() []string {
	names := make([]string, 0, len(m.shares))
	for name := range m.shares {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (m *Machine) readyMembers() []*member {
	var out []*member
	for _, mb := range m.sortedMembers() {
		if m.eligible(mb) {
			out = append(out, mb)
		}
	}
	return out
}

func (m *Machine) countSites(ms []*member) int {
	seen := map[string]bool{}
	for _, mb := range ms {
		seen[mb.site] = true
	}
	return len(seen)
}

// missing names who the next start is still waiting for: before the first
// round the admitted sites without a ready member, later the members of the
// round before that answered, are connected and not ready yet.
func (m *Machine) missing() []string {
	var out []string
	if !m.begun {
		for _, name := range m.order {
			if m.sites[name].membership == Admit && !slices.ContainsFunc(m.membersOf(name), m.eligible) {
				out = append(out, name)
			}
		}
		return out
	}
	for name := range m.last {
		mb := m.members[name]
		if mb.connected && mb.leaving.IsZero() && m.sites[mb.site].membership == Admit && mb.state != MemberReady {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// startBy is when a start is held back no longer.
func (m *Machine) startBy() time.Time {
	if !m.begun {
		return m.waitFrom.Add(m.cfg.Join)
	}
	return m.waitFrom.Add(m.cfg.Settle)
}

// Next is when Tick must be called at the latest; zero when only an input can
// change anything. It lies after the time of the last input.
func (m *Machine) Next() time.Time {
	var next time.Time
	switch m.state {
	case Collecting:
		next = earlier(m.closeBy(), m.nextCallBack())
	case Waiting:
		if m.canStart() {
			next = m.startBy()
		}
	}
	for name, sh := range m.shares {
		if sh.outcome == pending {
			next = earlier(next, m.leaveBy(name, sh))
		}
	}
	for _, mb := range m.members {
		if mb.connected {
			next = earlier(next, mb.leaving)
		}
	}
	return next
}

// closeBy is when the round at work ends without further input.
func (m *Machine) closeBy() time.Time {
	var last time.Time
	for _, sh := range m.shares {
		if sh.outcome != pending {
			continue
		}
		if sh.awayUntil.IsZero() {
			return m.deadline
		}
		if sh.awayUntil.After(last) {
			last = sh.awayUntil
		}
	}
	return earlier(last, m.deadline)
}
