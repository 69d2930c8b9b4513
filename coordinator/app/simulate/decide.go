package simulate

import (
	"slices"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// decide judges the newest reading and lets the window decide by it, as a
// director does at each answer of a source and whenever the window can change
// without one.
func (r *run) decide(s *site) {
	in := window.Inputs{Reading: s.present, Forecast: s.newest}
	if s.Signal != nil {
		in.Verdict = r.judge(s)
	}
	fresh := s.newest != nil && (s.state.Forecast == nil || s.newest.GeneratedAt.After(s.state.Forecast.GeneratedAt))
	if fresh {
		v := sanity.CheckForecast(s.Sanity, s.sanity, s.newest, nil, r.now)
		in.ForecastVerdict = &v
	}
	state, d := window.DecideWith(s.Policy, s.state, in, r.now)
	if v := in.Verdict; v != nil && (v.Class == sanity.Suspect || v.Class == sanity.Held) &&
		(d.Reason == v1alpha1.ReasonWaitingForEnergy || d.Reason == v1alpha1.ReasonConfirming && !state.Open) {
		d.Reason = v.Reason
	}
	if d.Reason != s.decision.Reason {
		r.advance(s)
	}
	if d.Window == v1alpha1.WindowOpen && s.decision.Window != v1alpha1.WindowOpen {
		s.windows++
	}
	if d.Admit != s.decision.Admit || fresh && !r.c.Plan.zero() {
		r.dirty = true
	}
	s.state, s.decision = state, d
	if d.NextChange.After(r.now) {
		r.q.set(d.NextChange, wake, s.index)
	} else {
		r.q.cancel(wake, s.index)
	}
	r.cleanliness(s)
}

// judge gives the verdict on the newest reading.
func (r *run) judge(s *site) *sanity.Verdict {
	in := sanity.Input{Reading: s.present, Forecast: s.newest}
	if p := s.present; p != nil && p.Value != nil && *p.Value == 0 {
		in.Peers = r.peers(s)
	}
	state, v := sanity.Check(s.Sanity, s.sanity, in, r.now)
	s.sanity = state
	return &v
}

// peers are the newest readings of the other regions of the same moment. They
// matter to zeros alone.
func (r *run) peers(s *site) []signals.Reading {
	var out []signals.Reading
	for _, o := range r.sites {
		n := o.present
		if o == s || n == nil || n.Kind != s.present.Kind || n.Region == s.present.Region || !n.ValidUntil().After(s.present.PointTime) ||
			slices.ContainsFunc(out, func(p signals.Reading) bool { return p.Region == n.Region }) {
			continue
		}
		out = append(out, *n)
		if n.Value != nil && *n.Value != 0 {
			break // one that is alive suffices
		}
	}
	return out
}
