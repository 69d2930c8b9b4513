package round

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// settle does everything that the present facts and time allow: ends drains,
// closes the round, starts the next, grants to late comers, and reports sites
// whose phase or reason changed. Every public method ends here.
func (m *Machine) settle(now time.Time, out []Action) []Action {
	m.expireDrains(now)
	if m.state == Collecting {
		out = append(out, m.collect(now)...)
	}
	if m.state == Waiting {
		out = append(out, m.start(now)...)
	}
	return append(out, m.changes(now)...)
}

// expireDrains gives up the pending work of members whose drain or leave is
// over time.
func (m *Machine) expireDrains(now time.Time) {
	for _, mb := range m.members {
		s := m.sites[mb.site]
		late := !s.drainBy.IsZero() && s.membership == Drain && !now.Before(s.drainBy)
		late = late || !mb.leaving.IsZero() && !now.Before(mb.leaving)
		if late {
			m.forfeit(mb.name)
		}
	}
}

// collect closes the round when nothing more is to come, and otherwise grants
// the rest of it to members that have appeared.
func (m *Machine) collect(now time.Time) []Action {
	if !now.Before(m.expectedEnd) {
		// Who has lost its session or its process is waited for while the others
		// train, not longer.
		for name, sh := range m.shares {
			if sh.outcome == pending && m.absent(name, sh) {
				sh.outcome = forfeited
			}
		}
	}
	timeUp := !now.Before(m.deadline)
	var waiting, took []string
	sites := map[string]bool{}
	for name, sh := range m.shares {
		switch sh.outcome {
		case pending:
			waiting = append(waiting, name)
		case accepted:
			took = append(took, name)
			sites[strings.SplitN(name, "/", 2)[0]] = true
		}
	}
	if len(waiting) > 0 && !timeUp {
		return m.grantRest(now)
	}
	if len(waiting) == 0 && len(took) == 0 && !timeUp {
		// All grants are gone: give the rest of the round to whoever is ready.
		if out := m.grantRest(now); len(out) > 0 {
			return out
		}
	}
	slices.Sort(took)
	slices.Sort(waiting)
	if len(sites) < m.cfg.MinSites {
		why := fmt.Sprintf("%d of at least %d sites sent a usable update", len(sites), m.cfg.MinSites)
		if len(waiting) > 0 {
			why += "; no answer by the deadline from " + strings.Join(waiting, ", ")
		}
		return m.void(now, v1alpha1.ReasonTooFewUpdates, why)
	}
	m.state = Committing
	return []Action{Commit{Round: m.round, Members: took, Alone: len(took) == 1}}
}

// absent says that the member that took the grant has no session, or is a new
// process that does not work for it.
func (m *Machine) absent(name string, sh *share) bool {
	mb := m.members[name]
	return mb == nil || !mb.connected || mb.epoch > sh.epoch
}

// grantRest grants what is left of the round to eligible members without a share.
func (m *Machine) grantRest(now time.Time) []Action {
	if m.paused {
		return nil
	}
	var out []Action
	left := m.stopAt.Sub(now)
	for _, mb := range m.sortedMembers() {
		if m.shares[mb.name] != nil || !m.eligible(mb) {
			continue
		}
		need := mb.step
		if need == 0 {
			need = m.cfg.Train / 5 // unknown speed: ask for a fair rest
		}
		if left < need {
			continue
		}
		out = append(out, m.grant(mb, m.budget(mb, left)))
	}
	return out
}

// eligible members can take a grant.
func (m *Machine) eligible(mb *member) bool {
	return mb.connected && mb.state == MemberReady && mb.leaving.IsZero() && m.sites[mb.site].membership == Admit
}

// start begins a round when there is a model, nobody paused, and enough sites
// are ready; it gives the others a bounded time to be ready too.
func (m *Machine) start(now time.Time) []Action {
	if m.paused || !m.hasModel {
		return nil
	}
	ready := m.readyMembers()
	if m.countSites(ready) < m.cfg.MinSites {
		return nil
	}
	if len(m.missing()) > 0 && now.Before(m.startBy()) {
		return nil
	}
	m.round++
	m.begun = true
	m.state = Collecting
	m.started = now
	m.stopAt = now.Add(m.cfg.Train)
	m.deadline = m.stopAt.Add(m.cfg.Collect)
	span := m.cfg.Train
	if m.cfg.LocalSteps > 0 {
		span = min(span, time.Duration(float64(m.cfg.LocalSteps)*m.meanStep(ready)))
		if span == 0 {
			span = m.cfg.Train
		}
	}
	m.expectedEnd = m.stopAt
	if m.cfg.LocalSteps > 0 {
		m.expectedEnd = earlier(m.stopAt, now.Add(span+span/4+m.cfg.Settle))
	}
	var out []Action
	for _, mb := range ready {
		g := m.grant(mb, m.budget(mb, span))
		g.Alone = len(ready) == 1
		out = append(out, g)
	}
	return out
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (m *Machine) grant(mb *member, steps uint64) Grant {
	m.shares[mb.name] = &share{epoch: mb.epoch, maxSteps: steps}
	return Grant{
		Member: mb.name, Round: m.round, MaxSteps: steps, StopAt: m.stopAt, Deadline: m.deadline,
		Evaluate: m.cfg.EvaluateEvery > 0 && m.committed%m.cfg.EvaluateEvery == 0,
	}
}

// budget is the member's number of local steps for a span: as many as its
// measured step time lets it do, so that all finish together.
func (m *Machine) budget(mb *member, span time.Duration) uint64 {
	if m.cfg.LocalSteps == 0 {
		return 0
	}
	if mb.step == 0 {
		return m.cfg.LocalSteps
	}
	return uint64(max(1, math.Round(float64(span)/float64(mb.step))))
}

// meanStep is the mean of the known step times, in nanoseconds.
func (m *Machine) meanStep(ms []*member) float64 {
	sum, n := 0.0, 0
	for _, mb := range ms {
		if mb.step > 0 {
			sum += float64(mb.step)
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
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
// round before that are connected and not ready yet.
func (m *Machine) missing() []string {
	var out []string
	if !m.begun {
		for _, name := range m.order {
			if m.sites[name].membership != Admit {
				continue
			}
			if !slices.ContainsFunc(m.membersOf(name), m.eligible) {
				out = append(out, name)
			}
		}
		return out
	}
	for name := range m.last {
		mb := m.members[name]
		if mb != nil && mb.connected && mb.leaving.IsZero() && m.sites[mb.site].membership == Admit && mb.state != MemberReady {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// startBy is when a start no longer waits for those who are missing.
func (m *Machine) startBy() time.Time {
	if !m.begun {
		return m.waitFrom.Add(m.cfg.Join)
	}
	return m.waitFrom.Add(m.cfg.Settle)
}

// Next is when Tick must be called at the latest; zero when only an input can
// change anything.
func (m *Machine) Next() time.Time {
	var next time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	switch m.state {
	case Collecting:
		sooner(m.deadline)
		for name, sh := range m.shares {
			if sh.outcome == pending && m.absent(name, sh) {
				sooner(m.expectedEnd)
			}
		}
	case Waiting:
		if m.hasModel && !m.paused && len(m.missing()) > 0 {
			sooner(m.startBy())
		}
	}
	for name, sh := range m.shares {
		mb := m.members[name]
		if mb == nil || sh.outcome != pending {
			continue
		}
		sooner(mb.leaving)
		if s := m.sites[mb.site]; s.membership == Drain {
			sooner(s.drainBy)
		}
	}
	return next
}
