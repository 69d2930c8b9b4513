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
	State           State
	Paused          bool
	Phase           v1alpha1.FederationPhase
	Reason          v1alpha1.Reason
	Message         string
	Round           uint64
	Started         time.Time
	StopAt          time.Time
	Deadline        time.Time
	Granted         []string
	Reported        []string
	WaitingFor      []string
	Committed       uint64
	Voids           uint64
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
		for name, sh := range m.shares {
			st.Granted = append(st.Granted, name)
			if sh.outcome == pending {
				st.WaitingFor = append(st.WaitingFor, name)
			} else {
				st.Reported = append(st.Reported, name)
			}
		}
		slices.Sort(st.Granted)
		slices.Sort(st.Reported)
		slices.Sort(st.WaitingFor)
	}
	st.Phase, st.Reason, st.Message = m.explain(st)
	return st
}

func (m *Machine) explain(st Status) (v1alpha1.FederationPhase, v1alpha1.Reason, string) {
	switch m.state {
	case Completed:
		return v1alpha1.FederationCompleted, m.ended.Reason, m.ended.Message
	case Failed:
		return v1alpha1.FederationFailed, m.ended.Reason, m.ended.Message
	case Collecting:
		return v1alpha1.FederationTraining, v1alpha1.ReasonCollecting,
			fmt.Sprintf("round %d waits for %s until %s", m.round, list(st.WaitingFor), clock(m.deadline))
	case Committing:
		return v1alpha1.FederationTraining, v1alpha1.ReasonCommitting, fmt.Sprintf("round %d is merged", m.round)
	}
	switch {
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
	if missing := m.missing(); len(missing) > 0 {
		return v1alpha1.FederationWaitingForSites, v1alpha1.ReasonWaitingForSites,
			fmt.Sprintf("%d sites ready, waits for %s until %s", ready, list(missing), clock(m.startBy()))
	}
	return v1alpha1.FederationWaitingForSites, v1alpha1.ReasonWaitingForSites, fmt.Sprintf("%d sites ready", ready)
}

// sleepReason tells a federation asleep by energy policy from one that lacks
// sites it could have.
func (m *Machine) sleepReason() v1alpha1.Reason {
	for _, name := range m.order {
		if m.sites[name].membership == Admit {
			return v1alpha1.ReasonWaitingForSites
		}
	}
	for _, name := range m.order {
		switch m.sites[name].reason {
		case v1alpha1.ReasonWaitingForEnergy, v1alpha1.ReasonConfirming, v1alpha1.ReasonMinimumOff:
			return v1alpha1.ReasonWaitingForEnergy
		}
	}
	return v1alpha1.ReasonWaitingForSites
}

func (m *Machine) whyNotReady() string {
	var parts []string
	for _, name := range m.order {
		_, reason, msg := m.sitePhase(name)
		if reason == v1alpha1.ReasonReady {
			continue
		}
		part := fmt.Sprintf("%s %s", name, reason)
		if msg != "" {
			part += " (" + msg + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// Sites tells every site's phase, in name order.
func (m *Machine) Sites() []SiteStatus {
	out := make([]SiteStatus, 0, len(m.order))
	for _, name := range m.order {
		s := m.sites[name]
		phase, reason, msg := m.sitePhase(name)
		out = append(out, SiteStatus{Name: name, Membership: s.membership, Phase: phase, Reason: reason, Message: msg, Since: s.since})
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

func (m *Machine) sitePhase(name string) (v1alpha1.SitePhase, v1alpha1.Reason, string) {
	s := m.sites[name]
	ms := m.membersOf(name)
	working := slices.ContainsFunc(ms, func(mb *member) bool { return m.Working(mb.name) })
	switch s.membership {
	case Exclude:
		return v1alpha1.SiteBlocked, s.reason, s.message
	case Drain:
		if working {
			return v1alpha1.SiteDraining, s.reason, fmt.Sprintf("%s; until %s", s.message, clock(s.drainBy))
		}
		return v1alpha1.SiteIdle, s.reason, s.message
	}
	best, rank := [3]string{string(v1alpha1.SiteJoining), string(v1alpha1.ReasonWaitingForAgent), "no agent has connected"}, 0
	for _, mb := range ms {
		if p, r := m.memberPhase(mb); r > rank {
			best, rank = p, r
		}
	}
	return v1alpha1.SitePhase(best[0]), v1alpha1.Reason(best[1]), best[2]
}

// memberPhase and its rank: the site shows its furthest member.
func (m *Machine) memberPhase(mb *member) ([3]string, int) {
	of := func(p v1alpha1.SitePhase, r v1alpha1.Reason, msg string) [3]string {
		return [3]string{string(p), string(r), msg}
	}
	switch {
	case m.Working(mb.name) && mb.connected && !mb.leaving.IsZero():
		return of(v1alpha1.SiteDraining, v1alpha1.ReasonAgentLeaving, mb.name+" leaves by "+clock(mb.leaving)), 5
	case m.Working(mb.name) && mb.connected:
		return of(v1alpha1.SiteActive, v1alpha1.ReasonTraining, ""), 6
	case !mb.connected:
		return of(v1alpha1.SiteLost, mb.lostReason, mb.name+" has no session"), 1
	case !mb.leaving.IsZero():
		return of(v1alpha1.SiteDraining, v1alpha1.ReasonAgentLeaving, mb.name), 2
	case mb.state == MemberReady && m.state == Collecting:
		return of(v1alpha1.SiteActive, v1alpha1.ReasonWaitingForRound, "waits for the next round"), 4
	case mb.state == MemberReady, mb.state == MemberWorking:
		return of(v1alpha1.SiteActive, v1alpha1.ReasonReady, ""), 4
	}
	return of(v1alpha1.SiteJoining, cmp.Or(mb.waits, v1alpha1.ReasonSynchronizing), mb.detail), 3
}

// changes reports each site whose phase or reason is another one than last time.
func (m *Machine) changes(now time.Time) []Action {
	var out []Action
	for _, name := range m.order {
		s := m.sites[name]
		phase, reason, msg := m.sitePhase(name)
		if s.shown.Phase == phase && s.shown.Reason == reason {
			continue
		}
		if s.shown.Phase != phase {
			s.since = now
		}
		s.shown = SiteChanged{Site: name, Phase: phase, Reason: reason, Message: msg}
		out = append(out, s.shown)
	}
	return out
}

func list(names []string) string {
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }
