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
	state      MemberState // as heard; Working from a grant on, until it says otherwise
	detail     string
	waits      v1alpha1.Reason
	lostReason v1alpha1.Reason // why its session ended; empty after an orderly leave
	leaving    time.Time       // deadline of its own leave; zero otherwise
	step       time.Duration
	// pace is the step time to plan with, from those heard at grants; learnt is the
	// newest that is in it.
	pace, learnt time.Duration
	// overhead is what its rounds take beside its steps, from grant to report:
	// loading, saving, transfers. A moving mean of what was measured, which noise
	// may take below zero.
	overhead time.Duration
	measured bool          // overhead
	seen     time.Duration // the newest measurement
	fresh    bool          // its session has had no measurement yet
}

// share is a member's part in the round at work.
type share struct {
	site     string
	epoch    uint64 // of the session that has the grant
	maxSteps uint64
	taken    bool // that session was heard working for it
	since    time.Time
	// steps were done at stepsAt, as last heard; 0 before the first.
	steps   uint64
	stepsAt time.Time // or, once accepted, when that was
	// stopped: it was asked for what it has.
	stopped bool
	// evaluates, disturbed: the time from grant to report says nothing of others.
	evaluates, disturbed bool
	outcome              outcome
	// awayUntil is how long a member whose session ended is waited for; zero
	// while its session lives.
	awayUntil time.Time
}

type outcome int

const (
	pending  outcome = iota
	accepted         // its update counts
	declined         // it answered without an update that counts
	expired          // nothing is awaited any more: excluded or out of time
	withheld         // there was no data for it
)

type site struct {
	name       string
	membership Membership
	reason     v1alpha1.Reason
	message    string
	drainBy    time.Time // zero unless it drains
	late       []string  // members whose work the drain did not wait for
	members    []*member // by name; those of Machine.members that are its own
	shown      standing  // as last reported
	since      time.Time
}

// Machine runs rounds. It is not safe for concurrent use.
type Machine struct {
	cfg     Config
	sites   map[string]*site
	order   []string // site names, sorted
	members map[string]*member
	sorted  []*member // all members by name

	held     bool     // inputs are not settled before Release
	deferred []Action // of held inputs

	state    State
	ended    Ended
	paused   bool
	obstacle *obstacle // nil without one
	hasModel bool
	begun    bool // a round was granted by this machine

	round    uint64
	started  time.Time
	stopAt   time.Time
	deadline time.Time
	span     time.Duration // planned for the local steps, at most Config.Train
	paced    bool          // span follows measured step times
	shares   map[string]*share
	last     map[string]bool // members of the round before

	waitFrom  time.Time // since when it waits to start a round
	committed uint64
	voids     uint64
	goingBack string // what a rollback at work does; empty without one
	evaluated bool   // there is a held-out result,
	resultAt  uint64 // of the model after so many commits
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
	m.cfg.MinSites = max(1, cfg.MinSites)
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

// end stops the run for good.
func (m *Machine) end(e Ended) []Action {
	m.state, m.ended = e.State, e
	clear(m.shares)
	return []Action{e}
}

// rest clears the round at work.
func (m *Machine) rest(now time.Time) {
	m.state, m.waitFrom = Waiting, now
	clear(m.last)
	for name, sh := range m.shares {
		// Only those that answered are worth waiting for at the next start.
		if sh.outcome == accepted || sh.outcome == declined {
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
		out = append(out, m.end(Ended{State: Failed, Reason: v1alpha1.ReasonTooManyVoidRounds,
			Message: fmt.Sprintf("%d rounds in a row were void, the last one because %s: %s", m.voidRow, reason, message)})...)
	}
	return out
}

func (m *Machine) completed() Ended {
	return Ended{State: Completed, Reason: v1alpha1.ReasonCompleted,
		Message: fmt.Sprintf("all %d rounds are committed", m.cfg.Total)}
}

// membersOf are a site's members by name; the slice is the machine's own.
func (m *Machine) membersOf(siteName string) []*member { return m.sites[siteName].members }

func byName(a, b *member) int { return cmp.Compare(a.name, b.name) }

// enrol takes up a new member.
func (m *Machine) enrol(mb *member) {
	m.members[mb.name] = mb
	s := m.sites[mb.site]
	for _, list := range []*[]*member{&s.members, &m.sorted} {
		at, _ := slices.BinarySearchFunc(*list, mb, byName)
		*list = slices.Insert(*list, at, mb)
	}
}

// strike drops a member.
func (m *Machine) strike(mb *member) {
	delete(m.members, mb.name)
	s := m.sites[mb.site]
	for _, list := range []*[]*member{&s.members, &m.sorted} {
		if at, ok := slices.BinarySearchFunc(*list, mb, byName); ok {
			*list = slices.Delete(*list, at, at+1)
		}
	}
}

// maxGone is how many members without a session are remembered of a site.
const maxGone = 256

// forget drops the longest gone member of a site that has many: nodes come and
// go under new names.
func (m *Machine) forget(siteName string) {
	var gone []*member
	for _, mb := range m.membersOf(siteName) {
		if !mb.connected && m.shares[mb.name] == nil && !m.last[mb.name] {
			gone = append(gone, mb)
		}
	}
	if len(gone) >= maxGone {
		oldest := slices.MinFunc(gone, func(a, b *member) int { return cmp.Compare(a.epoch, b.epoch) })
		m.strike(oldest)
	}
}

// sortedMembers are all members by name; the slice is the machine's own.
func (m *Machine) sortedMembers() []*member { return m.sorted }
