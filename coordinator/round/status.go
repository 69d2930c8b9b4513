package round

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Status is what a person may know of the machine.
type Status struct {
	State      State
	Paused     bool
	Phase      v1alpha1.FederationPhase
	Reason     v1alpha1.Reason
	Message    string
	Round      uint64
	Started    time.Time
	StopAt     time.Time
	Deadline   time.Time
	Granted    []string
	Reported   []string // their updates count
	WaitingFor []string
	Committed  uint64
	Voids      uint64
	// Evaluation is what an evaluation that is due waits for; empty if it is at work
	// or none is due.
	Evaluation      string
	ConsecutiveVoid uint64
}

// SiteStatus is a site's phase and why.
type SiteStatus struct {
	Name       string
	Membership Membership
	Phase      v1alpha1.SitePhase
	Reason     v1alpha1.Reason
	Message    string
	Since      time.Time
}

// Status tells where the run stands and what it waits for, and until when.
func (m *Machine) Status() Status {
	st := Status{State: m.state, Paused: m.paused, Round: m.round, Committed: m.committed, Voids: m.voids, ConsecutiveVoid: m.voidRow}
	if m.state == Collecting || m.state == Committing {
		st.Started, st.StopAt, st.Deadline = m.started, m.stopAt, m.deadline
		st.Granted = m.shareNames()
		for _, name := range st.Granted {
			switch m.shares[name].outcome {
			case pending:
				st.WaitingFor = append(st.WaitingFor, name)
			case accepted:
				st.Reported = append(st.Reported, name)
			}
		}
	}
	st.Phase, st.Reason, st.Message = m.explain(st)
	st.Evaluation = m.evaluationWaits()
	return st
}

func (m *Machine) explain(st Status) (v1alpha1.FederationPhase, v1alpha1.Reason, string) {
	switch m.state {
	case Completed:
		return v1alpha1.FederationCompleted, m.ended.Reason, m.ended.Message
	case Failed:
		return v1alpha1.FederationFailed, m.ended.Reason, m.ended.Message
	}
	if m.obstacle != nil {
		return v1alpha1.FederationPaused, m.obstacle.reason, m.obstacle.message
	}
	switch m.state {
	case Collecting:
		names := slices.Clone(st.WaitingFor)
		for i, name := range names {
			if !m.shares[name].awayUntil.IsZero() {
				names[i] += " (session lost, not back at work)"
			}
		}
		return v1alpha1.FederationTraining, v1alpha1.ReasonCollecting,
			fmt.Sprintf("round %d waits for %s until %s", m.round, strings.Join(names, ", "), clock(m.closeBy()))
	case Committing:
		return v1alpha1.FederationTraining, v1alpha1.ReasonCommitting, fmt.Sprintf("round %d is merged", m.round)
	}
	switch {
	case m.goingBack != "":
		return v1alpha1.FederationTraining, v1alpha1.ReasonRolledBack, m.goingBack
	case m.paused:
		return v1alpha1.FederationPaused, v1alpha1.ReasonPaused, "paused by request; `girassol resume` goes on"
	case !m.hasModel:
		return v1alpha1.FederationWaitingForModel, v1alpha1.ReasonWaitingForModel,
			"no weights yet: waits for the first admitted site whose trainer offers them (PUT /v1/model)"
	}
	ready := m.countSites(m.readyMembers())
	if ready < m.cfg.MinSites {
		return v1alpha1.FederationWaitingForSites, m.sleepReason(),
			fmt.Sprintf("%d of at least %d sites ready: %s", ready, m.cfg.MinSites, m.whyNotReady())
	}
	why := "since the round before was void"
	if missing := m.missing(); len(missing) > 0 {
		why = "for " + strings.Join(missing, ", ")
	}
	return v1alpha1.FederationWaitingForSites, v1alpha1.ReasonWaitingForSites,
		fmt.Sprintf("%d sites ready; waits until %s, %s", ready, clock(m.startBy()), why)
}

// sleepReason tells a federation asleep by energy policy from one that lost or
// lacks sites it should have.
func (m *Machine) sleepReason() v1alpha1.Reason {
	lacks, asleep := false, false
	for _, name := range m.order {
		st := m.standing(name)
		switch m.sites[name].membership {
		case Admit:
			if st.phase == v1alpha1.SiteLost {
				return v1alpha1.ReasonQuorumLost
			}
			lacks = lacks || st.reason != v1alpha1.ReasonReady
		default:
			switch st.reason {
			case v1alpha1.ReasonWaitingForEnergy, v1alpha1.ReasonConfirming, v1alpha1.ReasonMinimumOff:
				asleep = true
			}
		}
	}
	if asleep && !lacks {
		return v1alpha1.ReasonWaitingForEnergy
	}
	return v1alpha1.ReasonWaitingForSites
}

func (m *Machine) whyNotReady() string {
	var parts []string
	for _, name := range m.order {
		st := m.standing(name)
		if st.reason == v1alpha1.ReasonReady {
			continue
		}
		part := fmt.Sprintf("%s %s", name, st.reason)
		if st.message != "" {
			part += " (" + st.message + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// Sites tells every site's phase, in name order.
func (m *Machine) Sites() []SiteStatus {
	out := make([]SiteStatus, 0, len(m.order))
	for _, name := range m.order {
		s, st := m.sites[name], m.standing(name)
		out = append(out, SiteStatus{Name: name, Membership: s.membership, Phase: st.phase, Reason: st.reason, Message: st.message, Since: s.since})
	}
	return out
}

// MaxSteps is a member's step budget in the round at work, 0 without one.
func (m *Machine) MaxSteps(name string) uint64 {
	if sh := m.shares[name]; sh != nil {
		return sh.maxSteps
	}
	return 0
}

// Working says whether the member holds a grant and has not reported.
func (m *Machine) Working(name string) bool {
	sh := m.shares[name]
	return sh != nil && sh.outcome == pending && m.state == Collecting
}

// atWork says whether a member works for the round and has its session.
func (m *Machine) atWork(name string) bool {
	return m.Working(name) && m.shares[name].awayUntil.IsZero()
}

// standing is a phase and why.
type standing struct {
	phase   v1alpha1.SitePhase
	reason  v1alpha1.Reason
	message string
}

// standing of a site: what is wished of it and, if it is admitted, how far the
// furthest of its members is.
func (m *Machine) standing(name string) standing {
	s := m.sites[name]
	ms := m.membersOf(name)
	switch s.membership {
	case Exclude:
		return standing{v1alpha1.SiteBlocked, s.reason, s.message}
	case Drain:
		if slices.ContainsFunc(ms, func(mb *member) bool { return m.Working(mb.name) }) {
			return standing{v1alpha1.SiteDraining, s.reason, s.message + "; until " + clock(s.drainBy)}
		}
		if len(s.late) > 0 {
			return standing{v1alpha1.SiteIdle, s.reason, fmt.Sprintf("%s; %s had not reported by %s", s.message, strings.Join(s.late, ", "), clock(s.drainBy))}
		}
		return standing{v1alpha1.SiteIdle, s.reason, s.message}
	}
	best, rank := standing{v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForAgent, "no agent is connected"}, 0
	for _, mb := range ms {
		if st, r := m.memberStanding(mb); r > rank {
			best, rank = st, r
		}
	}
	return best
}

// memberStanding of a member of an admitted site, and its rank among the
// members; 0 when there is nothing to show.
func (m *Machine) memberStanding(mb *member) (standing, int) {
	switch {
	case !mb.connected && mb.lostReason == "":
		return standing{}, 0 // it left in order and is not missed
	case !mb.connected:
		return standing{v1alpha1.SiteLost, mb.lostReason, mb.name + " has no session"}, 1
	case !mb.leaving.IsZero():
		st := standing{v1alpha1.SiteDraining, v1alpha1.ReasonAgentLeaving, mb.name + " leaves by " + clock(mb.leaving)}
		if m.Working(mb.name) {
			return st, 6
		}
		return st, 2
	case mb.state == MemberBusy && (mb.waits != "" || !m.atWork(mb.name)):
		return standing{v1alpha1.SiteJoining, cmp.Or(mb.waits, v1alpha1.ReasonSynchronizing), mb.detail}, 3
	case m.Working(mb.name):
		return standing{v1alpha1.SiteActive, v1alpha1.ReasonTraining, ""}, 7
	case mb.state == MemberWorking:
		return standing{v1alpha1.SiteActive, v1alpha1.ReasonWaitingForRound, mb.name + " is not ready for another round yet"}, 4
	case m.shares[mb.name] != nil && m.shares[mb.name].outcome == withheld:
		return standing{v1alpha1.SiteActive, v1alpha1.ReasonDataExhausted, mb.name + " waits for the next round: the rest of the data is leased to others"}, 4
	case m.state == Collecting || m.state == Committing:
		return standing{v1alpha1.SiteActive, v1alpha1.ReasonWaitingForRound, mb.name + " waits for the next round"}, 4
	}
	return standing{v1alpha1.SiteActive, v1alpha1.ReasonReady, ""}, 5
}

// changes reports each site whose phase or reason is another one than last time.
func (m *Machine) changes(now time.Time) []Action {
	var out []Action
	for _, name := range m.order {
		s, st := m.sites[name], m.standing(name)
		if s.shown.phase == st.phase && s.shown.reason == st.reason {
			continue
		}
		if s.shown.phase != st.phase {
			s.since = now
		}
		s.shown = st
		out = append(out, SiteChanged{Site: name, Phase: st.phase, Reason: st.reason, Message: st.message})
	}
	return out
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }
