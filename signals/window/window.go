package window

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
)

// Decision is what follows from the electricity now.
type Decision struct {
	Window v1alpha1.WindowState
	// Admit says whether the site is to take part.
	Admit  bool
	Reason v1alpha1.Reason
	// Message says why in words, with value, unit, thresholds and counts.
	Message string
	// NextChange is the earliest time at which the window can change; zero when
	// not known. It is never at or before the time of the decision.
	NextChange time.Time
	// ForecastClose is when the forecast closes the window; zero when it does not
	// say.
	ForecastClose time.Time
}

// Decide is DecideWith with a reading only.
func Decide(p Policy, s State, r *signals.Reading, now time.Time) (State, Decision) {
	return DecideWith(p, s, Inputs{Reading: r}, now)
}

// DecideWith takes the newest reading, nil if there is none, into the state and
// decides. The same point counts once, however often it is given; a point older
// than the last is ignored; the same point with another value is a revision and
// replaces it. DecideWith changes nothing that s refers to.
//
// While the signal is unknown (no value covering now plus a grace of two
// periods, or none yet, or too little of the trailing window in Percentile
// mode), OnStale decides: Hold keeps an open window for MaxStale, counted from
// the loss, and never opens one; Drain closes at once; Admit opens the window
// and, when the signal is back, leaves it by the ordinary rule.
//
// Who is admitted follows, the first that applies, from: a block (emergency,
// curtailment, budget), an override, a policy that ignores energy, the cooldown
// and the window.
func DecideWith(p Policy, s State, in Inputs, now time.Time) (State, Decision) {
	s.lapse(p, now)
	problem := s.observe(p, in.Reading, in.Verdict, now)
	forecastProblem := s.foresee(p, in, now)
	var d Decision
	if s.known(now) {
		s.UnknownSince = time.Time{}
		ahead := s.ahead(p, now)
		s.move(p, ahead, now)
		d.Window = v1alpha1.WindowClosed
		if s.Open {
			d.Window = v1alpha1.WindowOpen
		}
		if p.Mode == None {
			d.Window = v1alpha1.WindowUnknown
		}
		d.Reason, d.Message = s.explain(p, ahead, now)
		if problem != "" {
			d.Message += "; newest reading refused: " + problem
		}
		d.NextChange = s.next(p, ahead, now)
		if s.Open || s.EnterCount > 0 { // there is a window to speak of
			d.ForecastClose = ahead.end
			if ahead.used || ahead.problem != "" {
				d.Message += "; " + ahead.String()
			}
		}
	} else {
		s.lose(p, now)
		d.Window = v1alpha1.WindowUnknown
		d.Reason, d.Message = s.explainUnknown(p, problem)
		if problem != "" && s.Doubt != "" {
			d.Reason = s.Doubt
		}
		if ends, ok := s.holdEnds(p); ok && s.Open {
			d.NextChange = ends
		}
	}
	if forecastProblem != "" {
		d.Message += "; newest forecast refused: " + forecastProblem
	}
	if s.Window != d.Window {
		s.Window, s.Since = d.Window, now.Round(0).UTC()
	}
	s.admit(p, in, now, &d)
	return s, d
}

// known says that there is a value to decide by.
func (s *State) known(now time.Time) bool {
	return s.Last != nil && s.Last.Compared != nil && now.Before(s.staleAt())
}

func (s *State) staleAt() time.Time { return signals.StaleAt(s.Last.PointTime, s.Last.Period) }

// move opens or closes by the counts, the minimum times and the forecast.
func (s *State) move(p Policy, a ahead, now time.Time) {
	if p.Mode == None {
		return
	}
	if !s.LeftFor.IsZero() && !now.Before(s.LeftFor) {
		s.LeftFor = time.Time{}
	}
	if s.Open {
		switch {
		case now.Before(s.held(p)):
		case s.LeaveCount >= p.LeaveConfirmations && !s.doubtful(p):
			s.set(false, now)
		case a.closing(p, now):
			// What was seen spoke for this window: another one needs points of
			// its own.
			s.set(false, now)
			if a.end.After(now) {
				s.LeftFor = a.end
			}
			s.EnterCount, s.PriorEnter = 0, 0
		}
		return
	}
	if s.EnterCount >= p.EnterConfirmations && !s.Last.Suspect && s.Doubt == "" && !now.Before(s.held(p)) && !a.tooShort(p, now) {
		s.set(true, now)
		s.LeftFor = time.Time{}
	}
}

// doubtful says that the last point is held by its verdict and would close the
// window.
func (s *State) doubtful(p Policy) bool { return s.Last.Doubt != "" && *s.Last.Compared > p.Leave }

func (s *State) set(open bool, now time.Time) { s.Open, s.Changed = open, now.Round(0).UTC() }

// held is until when the minimum time holds the window as it is; zero if
// nothing does.
func (s *State) held(p Policy) time.Time {
	switch {
	case s.Changed.IsZero():
		return time.Time{}
	case s.Open:
		return s.Changed.Add(p.MinimumOn)
	}
	return s.Changed.Add(p.MinimumOff)
}

// lapse closes a window whose hold ended before now, when nobody decided: a
// restart takes up what an uninterrupted run would have done.
func (s *State) lapse(p Policy, now time.Time) {
	if ends, ok := s.holdEnds(p); ok && s.Open && ends.Before(now) {
		s.set(false, ends)
	}
}

// holdEnds is when OnStale closes an open window whose signal is or would then
// be unknown.
func (s *State) holdEnds(p Policy) (time.Time, bool) {
	since := s.UnknownSince
	switch {
	case p.OnStale == v1alpha1.StaleAdmit:
		return time.Time{}, false
	case since.IsZero() && (s.Last == nil || s.Last.Compared == nil):
		return time.Time{}, false
	case since.IsZero():
		since = s.staleAt()
	}
	if p.OnStale == v1alpha1.StaleDrain {
		return since, true
	}
	return since.Add(p.MaxStale), true
}

// lose applies OnStale while the signal is unknown.
func (s *State) lose(p Policy, now time.Time) {
	if s.UnknownSince.IsZero() {
		s.UnknownSince = now.Round(0).UTC()
		if s.Last != nil && s.Last.Compared != nil {
			s.UnknownSince = s.staleAt()
		}
	}
	ends, holds := s.holdEnds(p)
	switch {
	case !holds && !s.Open:
		s.set(true, now)
	case holds && s.Open && !now.Before(ends):
		s.set(false, ends)
	}
}

// next is the earliest time at which a known window can change: by the missing
// confirmations and the minimum time, or by the signal going stale.
func (s *State) next(p Policy, a ahead, now time.Time) time.Time {
	stale := s.staleAt()
	if p.Mode == None {
		return time.Time{}
	}
	missing := p.EnterConfirmations - s.EnterCount
	if s.Open {
		missing = p.LeaveConfirmations - s.LeaveCount
	}
	if missing <= 0 && (!s.Open && (s.Last.Suspect || s.Doubt != "" || a.tooShort(p, now)) || s.Open && s.doubtful(p)) {
		missing = 1
	}
	at := s.held(p)
	if missing > 0 {
		if confirmed := s.Last.PointTime.Add(time.Duration(missing) * s.Last.Period); confirmed.After(at) {
			at = confirmed
		}
	}
	if s.Open && p.LeaveLead > 0 && !a.end.IsZero() {
		if leave := later(a.end.Add(-p.LeaveLead), s.held(p)); leave.After(now) && leave.Before(at) || !at.After(now) {
			at = leave
		}
	}
	if !at.After(now) || at.After(stale) {
		return stale
	}
	return at
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// explain gives reason and message of a known window.
func (s *State) explain(p Policy, a ahead, now time.Time) (v1alpha1.Reason, string) {
	value := s.value(p)
	switch {
	case p.Mode == None:
		return v1alpha1.ReasonAdmittedByPolicy, value + ", no thresholds to compare with"
	case s.Open && s.LeaveCount == 0:
		return v1alpha1.ReasonEnergyFavourable, fmt.Sprintf("%s, open below %s until above %s", value, num(p.Enter), num(p.Leave))
	case s.Open && s.LeaveCount < p.LeaveConfirmations:
		return v1alpha1.ReasonConfirming, fmt.Sprintf("%s; %d of the %d points above %s seen that close it",
			value, s.LeaveCount, p.LeaveConfirmations, num(p.Leave))
	case s.Open && s.doubtful(p):
		return s.Last.Doubt, value + " is far outside of what was seen: waits for the next point"
	case s.Open:
		return v1alpha1.ReasonMinimumOn, fmt.Sprintf("%s is above %s, stays open for the minimum of %s until %s",
			value, num(p.Leave), span(p.MinimumOn), stamp(s.held(p)))
	case !s.LeftFor.IsZero():
		return v1alpha1.ReasonWindowClosing, fmt.Sprintf("%s, left %s before the end that was forecast for %s", value,
			span(s.LeftFor.Sub(s.Changed)), stamp(s.LeftFor))
	case s.EnterCount == 0:
		return v1alpha1.ReasonWaitingForEnergy, fmt.Sprintf("%s, opens below %s", value, num(p.Enter))
	case s.EnterCount < p.EnterConfirmations:
		return v1alpha1.ReasonConfirming, fmt.Sprintf("%s; %d of the %d points below %s seen that open it",
			value, s.EnterCount, p.EnterConfirmations, num(p.Enter))
	case s.Last.Doubt == v1alpha1.ReasonSignalJump:
		return s.Last.Doubt, value + " is far outside of what was seen: waits for the next point"
	case s.Last.Suspect:
		reason := v1alpha1.ReasonSignalSuspect
		if s.Last.Doubt != "" {
			reason = s.Last.Doubt
		}
		return reason, fmt.Sprintf("%s without another zero in the %d days before: waits for the next point",
			value, int(sanity.ZeroMemory.Hours()/24))
	case s.Doubt != "":
		return s.Doubt, value + " is the last that could be believed: waits for the next point"
	case now.Before(s.held(p)):
	case a.tooShort(p, now):
		return v1alpha1.ReasonWindowTooShort, fmt.Sprintf("%s is below %s, but for %s only: a start takes %s", value, num(p.Enter),
			span(a.end.Sub(now).Round(time.Second)), span(a.needs(p)))
	}
	return v1alpha1.ReasonMinimumOff, fmt.Sprintf("%s is below %s, stays closed for the minimum of %s until %s",
		value, num(p.Enter), span(p.MinimumOff), stamp(s.held(p)))
}

// explainUnknown gives reason and message while the signal is unknown.
func (s *State) explainUnknown(p Policy, problem string) (v1alpha1.Reason, string) {
	var reason v1alpha1.Reason
	var why string
	switch {
	case problem != "":
		reason, why = v1alpha1.ReasonSignalSuspect, problem
	case s.Last == nil:
		reason, why = v1alpha1.ReasonSignalMissing, "no value of the signal yet"
	case s.Last.Compared == nil:
		reason = v1alpha1.ReasonSignalMissing
		why = fmt.Sprintf("%s, percentile unknown: %.0f %% of the last %s seen, %.0f %% needed",
			show(s.Last.Value, s.Last.Unit), 100*s.coverage(p), span(p.Trailing), 100*MinCoverage)
	default:
		reason = v1alpha1.ReasonSignalStale
		why = fmt.Sprintf("stale since %s, last %s at %s", stamp(s.UnknownSince), s.value(p), stamp(s.Last.PointTime))
	}
	switch {
	case p.Ignore:
		return reason, why
	case p.OnStale == v1alpha1.StaleAdmit:
		return reason, why + "; admitted because onStale is " + string(p.OnStale)
	case s.Open:
		return reason, why + "; the open window is held until " + stamp(s.UnknownSince.Add(p.MaxStale))
	}
	return reason, why + "; not admitted before there is a present value"
}

// value shows the last value as the thresholds saw it.
func (s *State) value(p Policy) string {
	v := show(s.Last.Value, s.Last.Unit)
	if p.Mode == Percentile && s.Last.Unit != signals.PercentileOf {
		v += fmt.Sprintf(" at percentile %s of the last %s", num(*s.Last.Compared), span(p.Trailing))
	}
	return v
}

func show(v float64, u signals.Unit) string { return num(v) + " " + string(u) }

// num shows at most two decimals.
func num(v float64) string {
	s := strconv.FormatFloat(v, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// span shows 30m and 168h instead of 30m0s and 168h0m0s.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// stamp is the same in every zone.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
