package round

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// member is one agent as the machine sees it. It outlives its sessions, so that
// a reconnect finds its grant again.
type member struct {
	name, site string
	epoch      uint64
	connected  bool
	state      MemberState
	detail     string
	waits      v1alpha1.Reason
	lostReason v1alpha1.Reason
	leaving    time.Time // deadline of its own leave; zero otherwise
	step       time.Duration
}

// share is a member's part in the round at work.
type share struct {
	epoch    uint64 // of the session that took the grant
	maxSteps uint64
	outcome  outcome
}

type outcome int

const (
	pending   outcome = iota
	accepted          // its update counts
	forfeited         // refused, nothing to report, lost or out of time
)

type site struct {
	name       string
	membership Membership
	reason     v1alpha1.Reason
	message    string
	drainBy    time.Time
	shown      SiteChanged
	since      time.Time
}

// Machine runs rounds. It is not safe for concurrent use.
type Machine struct {
	cfg     Config
	sites   map[string]*site
	order   []string // site names, sorted
	members map[string]*member

	state    State
	ended    Ended
	paused   bool
	hasModel bool
	begun    bool // a round was granted by this machine

	round    uint64
	started  time.Time
	stopAt   time.Time
	deadline time.Time
	// expectedEnd is when members of known speed should have finished.
	expectedEnd time.Time
	shares      map[string]*share
	last        map[string]bool // members of the round before

	waitFrom  time.Time // since when it waits to start a round
	committed uint64
	voids     uint64
	voidRow   uint64
}

// New makes a machine at rest. lastRound is the highest round number ever
// granted, committed the number of rounds committed so far.
func New(cfg Config, lastRound, committed, voids uint64, now time.Time) *Machine {
	m := &Machine{
		cfg: cfg, sites: map[string]*site{}, members: map[string]*member{},
		state: Waiting, round: lastRound, committed: committed, voids: voids, waitFrom: now,
		shares: map[string]*share{}, last: map[string]bool{},
	}
	if m.cfg.MinSites < 1 {
		m.cfg.MinSites = 1
	}
	for _, name := range cfg.Sites {
		m.sites[name] = &site{name: name, membership: Drain, reason: v1alpha1.ReasonSignalMissing,
			message: "no decision yet", since: now}
	}
	for name := range m.sites {
		m.order = append(m.order, name)
	}
	slices.Sort(m.order)
	if cfg.Total > 0 && committed >= cfg.Total {
		m.state = Completed
		m.ended = m.completed()
	}
	return m
}

// SetModel says that the first weights are known, so that rounds can begin.
func (m *Machine) SetModel(now time.Time) []Action {
	if !m.hasModel {
		m.hasModel, m.waitFrom = true, now
	}
	return m.settle(now, nil)
}

// SetMembership tells what is wished of a site. Deadline bounds a drain; zero
// means now plus Config.Grace. It returns whether the membership was another
// one, and an error for an undeclared site.
func (m *Machine) SetMembership(now time.Time, name string, want Membership, deadline time.Time, reason v1alpha1.Reason, message string) (bool, []Action, error) {
	s, ok := m.sites[name]
	if !ok {
		return false, nil, fmt.Errorf("site %q is not declared in this federation; declared are %v", name, m.order)
	}
	changed := s.membership != want
	s.membership, s.reason, s.message = want, reason, message
	if !changed {
		return false, m.settle(now, nil), nil
	}
	var out []Action
	switch want {
	case Admit:
		s.drainBy = time.Time{}
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
		s.drainBy = time.Time{}
		for _, mb := range m.membersOf(name) {
			if sh := m.shares[mb.name]; sh != nil && m.state == Collecting {
				sh.outcome = forfeited
				out = append(out, Stop{Member: mb.name, Round: m.round, Reason: v1alpha1.ReasonExcluded})
			}
		}
	}
	return true, m.settle(now, out), nil
}

// Join says that a member has a session with this epoch. A newer epoch of a
// known member takes the place of the older one.
func (m *Machine) Join(now time.Time, name, siteName string, epoch uint64) ([]Action, error) {
	if _, ok := m.sites[siteName]; !ok {
		return nil, fmt.Errorf("site %q is not declared in this federation; declared are %v", siteName, m.order)
	}
	mb := m.members[name]
	if mb == nil {
		mb = &member{name: name, site: siteName}
		m.members[name] = mb
	}
	mb.epoch, mb.connected, mb.state, mb.detail, mb.waits = epoch, true, MemberBusy, "", ""
	mb.leaving, mb.lostReason = time.Time{}, ""
	return m.settle(now, nil), nil
}

// Lose says that the session with this epoch ended.
func (m *Machine) Lose(now time.Time, name string, epoch uint64, reason v1alpha1.Reason) []Action {
	mb := m.members[name]
	if mb == nil || mb.epoch != epoch || !mb.connected {
		return nil
	}
	mb.connected, mb.lostReason = false, reason
	if !mb.leaving.IsZero() {
		// It said that it leaves: nothing more comes from it.
		m.forfeit(mb.name)
		delete(m.members, name)
		delete(m.last, name)
	}
	return m.settle(now, nil)
}

// Report is what a heartbeat says.
type Report struct {
	State  MemberState
	Detail string
	// Waits is why a busy member cannot take work; empty: it synchronizes.
	Waits  v1alpha1.Reason
	Round  uint64        // the round at work or, when Ready, the one just handled; 0 none
	Step   time.Duration // measured time of a local step; 0 unknown
}

// Heard takes a member's heartbeat.
func (m *Machine) Heard(now time.Time, name string, epoch uint64, r Report) []Action {
	mb := m.members[name]
	if mb == nil || mb.epoch != epoch || !mb.connected {
		return nil
	}
	mb.state, mb.detail, mb.waits = r.State, r.Detail, r.Waits
	if r.Step > 0 {
		mb.step = r.Step
	}
	if sh := m.shares[name]; sh != nil && sh.outcome == pending && m.state == Collecting {
		switch {
		case r.State == MemberWorking && r.Round == m.round:
			sh.epoch = epoch
		case r.State == MemberReady && r.Round == m.round:
			sh.outcome = forfeited // nothing to report
		case r.State == MemberReady && r.Round == 0 && epoch > sh.epoch:
			// A new process that knows nothing of the grant: its work is lost, and it
			// may take a new grant for the rest of the round.
			delete(m.shares, name)
		}
	}
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
	if m.state != Collecting || round != m.round || !now.Before(m.deadline) {
		return v1alpha1.ReasonStaleRound, false
	}
	sh := m.shares[name]
	switch {
	case sh == nil:
		return v1alpha1.ReasonNotGranted, false
	case sh.outcome == accepted:
		return v1alpha1.ReasonConflictingUpdate, false
	case sh.outcome == forfeited:
		return v1alpha1.ReasonStaleRound, false
	}
	return "", true
}

// Accepted says that a member's update for the round was checked and is kept.
// It must follow Expecting without other calls between.
func (m *Machine) Accepted(now time.Time, name string) []Action {
	if sh := m.shares[name]; sh != nil {
		sh.outcome = accepted
	}
	return m.settle(now, nil)
}

// Refused says that a member's update cannot be used and that no better one is
// to be expected in this round.
func (m *Machine) Refused(now time.Time, name string, round uint64) []Action {
	if round == m.round && m.state == Collecting {
		m.forfeit(name)
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
		m.state, m.ended = Completed, m.completed()
		out = append(out, m.ended)
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
	m.state, m.ended = Failed, Ended{State: Failed, Reason: reason, Message: message}
	return m.settle(now, []Action{m.ended})
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

func (m *Machine) forfeit(name string) {
	if sh := m.shares[name]; sh != nil && sh.outcome == pending {
		sh.outcome = forfeited
	}
}

// rest clears the round at work.
func (m *Machine) rest(now time.Time) {
	m.state, m.waitFrom = Waiting, now
	clear(m.last)
	for name, sh := range m.shares {
		// Only those that answered are worth waiting for at the next start.
		if mb := m.members[name]; mb != nil && mb.connected && sh.outcome == accepted {
			m.last[name] = true
		}
	}
	clear(m.shares)
}

func (m *Machine) void(now time.Time, reason v1alpha1.Reason, message string) []Action {
	out := []Action{Void{Round: m.round, Reason: reason, Message: message}}
	m.voids++
	m.voidRow++
	m.rest(now)
	if m.cfg.MaxConsecutiveVoid > 0 && m.voidRow >= m.cfg.MaxConsecutiveVoid {
		m.state = Failed
		m.ended = Ended{State: Failed, Reason: v1alpha1.ReasonTooManyVoidRounds,
			Message: fmt.Sprintf("%d rounds in a row were void, the last one because %s: %s", m.voidRow, reason, message)}
		out = append(out, m.ended)
	}
	return out
}

func (m *Machine) completed() Ended {
	return Ended{State: Completed, Reason: v1alpha1.ReasonCompleted,
		Message: fmt.Sprintf("all %d rounds are committed", m.cfg.Total)}
}

func (m *Machine) membersOf(siteName string) []*member {
	var out []*member
	for _, mb := range m.members {
		if mb.site == siteName {
			out = append(out, mb)
		}
	}
	slices.SortFunc(out, func(a, b *member) int { return cmp.Compare(a.name, b.name) })
	return out
}

func (m *Machine) sortedMembers() []*member {
	out := make([]*member, 0, len(m.members))
	for _, mb := range m.members {
		out = append(out, mb)
	}
	slices.SortFunc(out, func(a, b *member) int { return cmp.Compare(a.name, b.name) })
	return out
}
