package round

import (
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Withhold takes back grants of the round at work that the caller could not give:
// there is no data for these members. They are not awaited, their sites count as
// heard, and the next round finds them ready.
func (m *Machine) Withhold(now time.Time, names []string) []Action {
	for _, name := range names {
		if sh := m.shares[name]; sh != nil && sh.outcome == pending && m.state == Collecting {
			sh.outcome = withheld
			m.members[name].state = MemberReady
		}
	}
	return m.settle(now, nil)
}

// Complete says that the run has reached its end by what its caller counts, at rest
// or with the commit at work, which is durable. It takes the place of Committed.
func (m *Machine) Complete(now time.Time, message string) []Action {
	switch m.state {
	case Committing:
		m.committed++
		m.voidRow = 0
		m.rest(now)
	case Waiting:
	default:
		return nil
	}
	return m.settle(now, m.end(Ended{State: Completed, Reason: v1alpha1.ReasonCompleted, Message: message}))
}

// Reopen takes Complete back: there is something to do again.
func (m *Machine) Reopen(now time.Time) []Action {
	if m.state == Completed && (m.cfg.Total == 0 || m.committed < m.cfg.Total) {
		m.state, m.ended, m.waitFrom = Waiting, Ended{}, now
	}
	return m.settle(now, nil)
}

// Over says whether the member's part in the round at work ended without an update:
// nothing of it will come.
func (m *Machine) Over(name string) bool {
	sh := m.shares[name]
	return sh != nil && (sh.outcome == declined || sh.outcome == expired || sh.outcome == withheld)
}
