package round

import (
	"fmt"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// RollBack says that the model goes back to an older state, which takes a while: a
// round at work is void, also one whose Commit was asked for and not begun, and no
// other starts before RolledBack. Such a void round is not one of those in a row
// that fail the run. The message is shown meanwhile.
func (m *Machine) RollBack(now time.Time, reason v1alpha1.Reason, message string) []Action {
	m.goingBack = message
	if m.state != Collecting && m.state != Committing {
		return m.settle(now, nil)
	}
	m.voids++
	granted := m.shareNames()
	m.rest(now)
	for _, name := range granted {
		m.last[name] = true // the next round waits for all that were at work
	}
	return m.settle(now, []Action{Void{Round: m.round, Reason: reason, Message: message}})
}

// RolledBack says that the rollback has ended, with or without success.
func (m *Machine) RolledBack(now time.Time) []Action {
	if m.goingBack != "" {
		m.goingBack, m.waitFrom = "", now
	}
	return m.settle(now, nil)
}

// Evaluated says that there is a held-out result of the model as it was after so
// many commits: the next is due EvaluateEvery commits later.
func (m *Machine) Evaluated(committed uint64) { m.evaluated, m.resultAt = true, committed }

// Unevaluated says that there is no result that counts: one is due.
func (m *Machine) Unevaluated() { m.evaluated = false }

// EvaluationDue says whether the model at rest is to be evaluated.
func (m *Machine) EvaluationDue() bool {
	switch {
	case m.cfg.EvaluateEvery == 0:
		return false
	case !m.evaluated || m.committed >= m.resultAt+m.cfg.EvaluateEvery:
		return true
	}
	return m.cfg.EvaluateVoid && m.voidRow > 0 && m.committed > m.resultAt
}

// evaluates says whether grants to a site's members ask for an evaluation.
func (m *Machine) evaluates(siteName string) bool {
	return m.EvaluationDue() && (m.cfg.EvaluateSite == "" || m.cfg.EvaluateSite == siteName)
}

// evaluationWaits says why nobody is at work on an evaluation that is due: the site
// that does it is away.
func (m *Machine) evaluationWaits() string {
	name := m.cfg.EvaluateSite
	if name == "" || !m.EvaluationDue() || !m.hasModel || m.state == Completed || m.state == Failed || m.sites[name] == nil {
		return ""
	}
	for _, sh := range m.shares {
		if sh.site == name && sh.outcome != withheld && sh.outcome != expired {
			return ""
		}
	}
	st := m.standing(name)
	if st.reason == v1alpha1.ReasonReady || st.reason == v1alpha1.ReasonWaitingForRound {
		return ""
	}
	return fmt.Sprintf("the evaluation that is due waits for site %s, which is %s because %s", name, st.phase, st.reason)
}
