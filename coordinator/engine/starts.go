package engine

import (
	"maps"
	"math"
	"slices"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/session"
)

// start is how a site comes from its admission to work.
type start struct {
	admitted time.Time
	// first is the time to the first step, in seconds; nil before it.
	first *float64
}

// admitted begins a site's start.
func (e *Engine) admitted(now time.Time, site string) {
	e.starts[site] = &start{admitted: now}
}

// noteFirstStep ends a site's start with the first step that one of its members
// tells of in the round at work.
func (e *Engine) noteFirstStep(now time.Time, s *session.Session, hb *coordinatorv1.Heartbeat) {
	st := e.starts[s.Site]
	if st == nil || st.first != nil || hb.GetSteps() == 0 || hb.GetRound() != e.machine.Status().Round || !e.machine.Working(s.Member) {
		return
	}
	st.first = new(now.Sub(st.admitted).Seconds())
	e.log.Info("first step since the site's admission", "site", s.Site, "member", s.Member, "round", hb.GetRound(), "after", now.Sub(st.admitted).Round(time.Millisecond))
}

// firstStep is the time from a site's admission to its first step, if there was one.
func (e *Engine) firstStep(site string) *float64 {
	if st := e.starts[site]; st != nil {
		return st.first
	}
	return nil
}

// Limits of what a trainer says of itself.
const (
	maxTrainerEntries = 16
	maxTrainerText    = 64 // bytes
)

// trainerFacts bounds what a trainer says of itself: the first entries by name, cut.
func trainerFacts(in map[string]string) map[string]string {
	var out map[string]string
	for _, k := range slices.Sorted(maps.Keys(in)) {
		if k == "" || len(k) > maxTrainerText {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		if out[k] = cutTo(in[k], maxTrainerText); len(out) == maxTrainerEntries {
			break
		}
	}
	return out
}

// measuredStart is a member's start if all of it can be so.
func measuredStart(w *coordinatorv1.WarmStart) *coordinatorv1.WarmStart {
	if w == nil {
		return nil
	}
	for _, v := range []float64{w.GetProcessSeconds(), w.GetPullSeconds(), w.GetLoadSeconds(), w.GetFirstStepSeconds()} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return nil
		}
	}
	return w
}
