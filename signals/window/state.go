package window

import (
	"encoding/json"
	"fmt"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
)

// State is all that a decision remembers. Its JSON round trip continues
// identically, so minimum on and off, confirmations and a hold survive a
// restart. The zero State is a site never seen.
type State struct {
	// Window as last decided, and since when.
	Window v1alpha1.WindowState `json:"window,omitempty"`
	Since  time.Time            `json:"since,omitzero"`
	// Open says whether the window, as far as it is known, is open; it keeps its
	// value while Window is Unknown and a hold lasts. Changed is when it last
	// changed, zero for never.
	Open    bool      `json:"open"`
	Changed time.Time `json:"changed,omitzero"`

	// Thresholds that the counts below were made with; others start anew.
	Thresholds Thresholds `json:"thresholds"`
	// Last is the newest usable point.
	Last *Point `json:"last,omitempty"`
	// EnterCount and LeaveCount are consecutive distinct points up to Last.
	EnterCount int `json:"enterCount"`
	LeaveCount int `json:"leaveCount"`
	// PriorEnter and PriorLeave are the counts without Last, from which a
	// revision of Last counts anew.
	PriorEnter int `json:"priorEnter,omitempty"`
	PriorLeave int `json:"priorLeave,omitempty"`

	// UnknownSince is when the signal was lost; zero while it is known.
	UnknownSince time.Time `json:"unknownSince,omitzero"`
	// Zeros are the newest two points that were exactly 0.
	Zeros sanity.Zeros `json:"zeros,omitempty"`
	// Trailing are the points that Percentile mode ranks in, oldest first.
	Trailing []Sample `json:"trailing,omitempty"`

	// Doubt is why the newest reading was not taken by its verdict; nothing opens
	// before one is.
	Doubt v1alpha1.Reason `json:"doubt,omitempty"`
	// Forecast is the newest issue.
	Forecast *Outlook `json:"forecast,omitempty"`
	// LeftFor is the forecast end before which the window was left; zero unless
	// that closed it.
	LeftFor time.Time `json:"leftFor,omitzero"`
	// Admitted and Left are kept for a Cooldown: whether the site is in, and when
	// it was last put out.
	Admitted bool      `json:"admitted,omitempty"`
	Left     time.Time `json:"left,omitzero"`
}

// Thresholds are what points are counted against.
type Thresholds struct {
	Mode  Mode    `json:"mode,omitempty"`
	Enter float64 `json:"enter,omitempty"`
	Leave float64 `json:"leave,omitempty"`
}

// Point is a reading as far as decisions need it.
type Point struct {
	Kind      signals.Kind  `json:"kind"`
	Unit      signals.Unit  `json:"unit"`
	Region    string        `json:"region"`
	Model     string        `json:"model,omitempty"`
	Value     float64       `json:"value"`
	PointTime time.Time     `json:"pointTime"`
	Period    time.Duration `json:"periodNanoseconds"`
	// Compared is what the thresholds saw: the value in Grams mode, the rank in
	// Percentile mode; nil if it could not be told.
	Compared *float64 `json:"compared"`
	// Suspect: a zero without a second one in sight, or held by its verdict.
	Suspect bool `json:"suspect,omitempty"`
	// Doubt is the reason of a verdict that held the point.
	Doubt v1alpha1.Reason `json:"doubt,omitempty"`
}

// Sample is one point of the trailing window.
type Sample struct {
	Time   time.Time
	Value  float64
	Period time.Duration
}

// MarshalJSON writes [unix nanoseconds, value, period nanoseconds]: there are
// thousands of samples in a state.
func (s Sample) MarshalJSON() ([]byte, error) {
	v, err := json.Marshal(s.Value)
	if err != nil {
		return nil, fmt.Errorf("window: sample of %s: %w", s.Time, err)
	}
	return fmt.Appendf(nil, "[%d,%s,%d]", s.Time.UnixNano(), v, int64(s.Period)), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Sample) UnmarshalJSON(b []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return fmt.Errorf("window: sample: %w", err)
	}
	if len(raw) != 3 {
		return fmt.Errorf("window: sample has %d numbers, want 3", len(raw))
	}
	var at, period int64
	var v float64
	for i, to := range []any{&at, &v, &period} {
		if err := json.Unmarshal(raw[i], to); err != nil {
			return fmt.Errorf("window: sample number %d: %w", i, err)
		}
	}
	*s = Sample{Time: time.Unix(0, at).UTC(), Value: v, Period: time.Duration(period)}
	return nil
}

// observe takes a reading into the state and says what was wrong with it, "" if
// nothing. It never changes memory that the caller's state shares.
func (s *State) observe(p Policy, r *signals.Reading, verdict *sanity.Verdict, now time.Time) (problem string) {
	if t := (Thresholds{p.Mode, p.Enter, p.Leave}); s.Thresholds != t {
		s.Thresholds, s.Last, s.EnterCount, s.LeaveCount = t, nil, 0, 0
	}
	if r == nil {
		return ""
	}
	if err := r.Validate(); err != nil {
		return err.Error()
	}
	n := r.Normalized()
	if problem := unfit(p.Mode, n); problem != "" {
		return problem
	}
	if verdict != nil {
		switch verdict.Class {
		case sanity.Suspect:
			s.Doubt = verdict.Reason
			return verdict.Message
		case sanity.Missing, sanity.Stale, sanity.Superseded:
			return ""
		}
	}
	switch {
	case n.Value == nil:
		return ""
	case n.Quality == signals.Suspect:
		return fmt.Sprintf("the source marks %s as suspect", show(*n.Value, n.Unit))
	case n.PointTime.After(now.Add(n.Period)):
		return fmt.Sprintf("point %s lies in the future", stamp(n.PointTime))
	}
	if l := s.Last; l != nil {
		switch {
		case l.Region != n.Region || l.Kind != n.Kind || l.Unit != n.Unit || l.Model != n.Model:
			// Another signal: nothing seen so far speaks for it.
			s.Last, s.EnterCount, s.LeaveCount, s.Zeros, s.Trailing = nil, 0, 0, nil, nil
			s.Forecast = nil
		case n.PointTime.Before(l.PointTime):
			return "" // superseded
		case n.PointTime.Equal(l.PointTime):
			if *n.Value == l.Value && n.Period == l.Period && held(verdict) == l.Doubt {
				s.Doubt = ""
				return "" // the same point again counts once
			}
			s.EnterCount, s.LeaveCount = s.PriorEnter, s.PriorLeave
		case n.PointTime.After(signals.StaleAt(l.PointTime, l.Period)):
			s.EnterCount, s.LeaveCount = 0, 0 // a gap: no longer consecutive
		}
	}
	s.Doubt = ""
	s.count(p, n, verdict)
	return ""
}

// held is the reason of a verdict that waits for one more point, "" otherwise.
func held(v *sanity.Verdict) v1alpha1.Reason {
	if v == nil || v.Class != sanity.Held {
		return ""
	}
	return v.Reason
}

// unfit says why a reading cannot be compared with the mode's thresholds.
func unfit(m Mode, r signals.Reading) string {
	intensity := r.Kind == signals.Marginal || r.Kind == signals.Average
	switch {
	case m == Grams && !intensity:
		return fmt.Sprintf("a %s in %s cannot be compared with thresholds in %s", r.Kind, r.Unit, signals.GramsPerKWh)
	case m == Percentile && !intensity && r.Kind != signals.Percentile:
		return fmt.Sprintf("a %s in %s cannot be compared with percentiles", r.Kind, r.Unit)
	}
	return ""
}

// count makes r the last point and counts it; the counts so far are those
// before it.
func (s *State) count(p Policy, r signals.Reading, verdict *sanity.Verdict) {
	v := *r.Value
	l := &Point{Kind: r.Kind, Unit: r.Unit, Region: r.Region, Model: r.Model, Value: v,
		PointTime: r.PointTime.Round(0).UTC(), Period: r.Period}
	l.Compared = &v
	if p.Mode == Percentile && r.Kind != signals.Percentile {
		l.Compared = s.rank(p, l)
	}
	if r.Kind == signals.Marginal || r.Kind == signals.Average {
		var alone bool
		s.Zeros, alone = s.Zeros.Observe(l.PointTime, v)
		l.Suspect = alone && !p.TrustZero
	}
	if verdict != nil { // it knows more than the zeros
		l.Doubt = held(verdict)
		l.Suspect = l.Doubt != ""
	}
	s.Last = l
	s.PriorEnter, s.PriorLeave = s.EnterCount, s.LeaveCount
	if p.Mode == None || l.Compared == nil {
		return
	}
	x := *l.Compared
	if x < p.Enter {
		s.EnterCount++
	} else {
		s.EnterCount = 0
	}
	switch {
	case x > p.Leave:
		s.LeaveCount++
	case !l.Suspect: // a doubtful zero ends no row of dirty points
		s.LeaveCount = 0
	}
}

// rank adds l to the trailing window and returns its mid-rank there, 0 to 100,
// or nil if too little of the window was seen.
func (s *State) rank(p Policy, l *Point) *float64 {
	oldest := l.PointTime.Add(-p.Trailing)
	kept := make([]Sample, 0, len(s.Trailing)+1)
	for _, t := range s.Trailing {
		if t.Time.After(oldest) && t.Time.Before(l.PointTime) {
			kept = append(kept, t)
		}
	}
	kept = append(kept, Sample{Time: l.PointTime, Value: l.Value, Period: l.Period})
	s.Trailing = kept
	if s.coverage(p) < MinCoverage {
		return nil
	}
	var below, equal int
	for _, t := range s.Trailing {
		switch {
		case t.Value < l.Value:
			below++
		case t.Value == l.Value:
			equal++
		}
	}
	r := 100 * (float64(below) + float64(equal)/2) / float64(len(s.Trailing))
	return &r
}

// coverage is the share of the trailing window that its points speak for.
func (s *State) coverage(p Policy) float64 {
	var seen time.Duration
	for i, t := range s.Trailing {
		d := t.Period
		if i+1 < len(s.Trailing) {
			d = min(d, s.Trailing[i+1].Time.Sub(t.Time))
		}
		seen += d
	}
	return float64(seen) / float64(p.Trailing)
}
