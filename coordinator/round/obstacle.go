package round

import (
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// obstacle is why no round starts until it is gone by itself.
type obstacle struct {
	reason  v1alpha1.Reason
	message string
}

// Obstruct says that nothing can be kept for now: no round starts, and nobody is
// granted the rest of one, before Clear. The round at work goes on collecting.
func (m *Machine) Obstruct(now time.Time, reason v1alpha1.Reason, message string) []Action {
	m.obstacle = &obstacle{reason, message}
	return m.settle(now, nil)
}

// Clear ends an obstruction.
func (m *Machine) Clear(now time.Time) []Action {
	if m.obstacle != nil {
		m.obstacle, m.waitFrom = nil, now
	}
	return m.settle(now, nil)
}

// Unstart takes back a round of which nobody was told, as if it had not begun. It
// must follow the input that has started it, after an Obstruct.
func (m *Machine) Unstart(now time.Time) []Action {
	if m.state != Collecting {
		return m.settle(now, nil)
	}
	for name := range m.shares {
		if mb := m.members[name]; mb != nil {
			mb.state = MemberReady
		}
	}
	clear(m.shares)
	m.round--
	m.state, m.waitFrom = Waiting, now
	return m.settle(now, nil)
}
