package window

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
)

// maxOutlook bounds the points of a forecast that a state keeps.
const maxOutlook = 1024

// clockSkew is how far ahead of now a forecast may have been issued.
const clockSkew = 5 * time.Minute

// Outlook is an issue of a forecast as far as decisions need it, in normal
// units.
type Outlook struct {
	Kind        signals.Kind `json:"kind"`
	Unit        signals.Unit `json:"unit"`
	GeneratedAt time.Time    `json:"generatedAt"`
	// Points with a value, by time; where there is none, nothing is forecast.
	Points []Sample `json:"points"`
}

// foresee takes a newer issue into the state and says what was wrong with it, ""
// if nothing. Issues are kept as they were published.
func (s *State) foresee(p Policy, in Inputs, now time.Time) (problem string) {
	f := in.Forecast
	if f == nil || p.Mode == None {
		return ""
	}
	if s.Forecast != nil && !f.GeneratedAt.After(s.Forecast.GeneratedAt) {
		return ""
	}
	if err := f.Validate(); err != nil {
		return err.Error()
	}
	probe := signals.Reading{Kind: f.Kind, Unit: f.Unit}.Normalized()
	switch {
	case f.GeneratedAt.IsZero():
		return "it does not say when it was issued"
	case f.GeneratedAt.After(now.Add(clockSkew)):
		return fmt.Sprintf("it was issued at %s, which is to come", stamp(f.GeneratedAt))
	case unfit(p.Mode, probe) != "":
		return unfit(p.Mode, probe)
	case s.Last != nil && (s.Last.Kind != probe.Kind || s.Last.Unit != probe.Unit):
		return fmt.Sprintf("it is a %s in %s, the readings are %s in %s", probe.Kind, probe.Unit, s.Last.Kind, s.Last.Unit)
	case in.ForecastVerdict != nil && in.ForecastVerdict.Class != sanity.Good:
		return in.ForecastVerdict.Message
	}
	o := &Outlook{Kind: probe.Kind, Unit: probe.Unit, GeneratedAt: f.GeneratedAt.Round(0).UTC()}
	o.Points = make([]Sample, 0, min(len(f.Points), maxOutlook))
	for _, pt := range f.Points {
		if pt.Value == nil || !pt.Start.Add(pt.Duration).After(now) {
			continue
		}
		if len(o.Points) == maxOutlook {
			break
		}
		v := *pt.Value
		if f.Unit == signals.PoundsPerMWh {
			v = signals.GramsFromPounds(v)
		}
		o.Points = append(o.Points, Sample{Time: pt.Start.Round(0).UTC(), Value: v, Period: pt.Duration})
	}
	if len(o.Points) == 0 {
		return "it ends before now"
	}
	s.Forecast = o
	return ""
}

// ahead is what the forecast says of a window at one moment.
type ahead struct {
	// used says that there is a forecast of the present moment and beyond that
	// the last reading does not contradict.
	used bool
	// end is the beginning of the first row of points that closes the window;
	// zero if there is none up to known.
	end, known time.Time
	issued     time.Time
	// problem is why a forecast that is there is not used.
	problem string
}

func (a ahead) String() string {
	switch {
	case !a.used:
		return "forecast not used: " + a.problem
	case a.end.IsZero():
		return fmt.Sprintf("the forecast of %s sees no end until %s", stamp(a.issued), stamp(a.known))
	}
	return fmt.Sprintf("the forecast of %s closes it at %s", stamp(a.issued), stamp(a.end))
}

// needs is how long a window must last to be opened.
func (a ahead) needs(p Policy) time.Duration { return max(p.MinWindow, p.LeaveLead) }

// tooShort says that the window will close before a start pays. One that would
// be left at once is too short, too.
func (a ahead) tooShort(p Policy, now time.Time) bool {
	if !a.used || a.end.IsZero() {
		return false
	}
	lasts := a.end.Sub(now)
	return lasts < p.MinWindow || lasts <= p.LeaveLead
}

// closing says that it is time to leave.
func (a ahead) closing(p Policy, now time.Time) bool {
	return a.used && p.LeaveLead > 0 && !a.end.IsZero() && !now.Before(a.end.Add(-p.LeaveLead))
}

// ahead reads the forecast, if the policy looks ahead. A window's end is where
// LeaveConfirmations consecutive points above Leave begin.
func (s *State) ahead(p Policy, now time.Time) ahead {
	f := s.Forecast
	if f == nil || p.MinWindow <= 0 && p.LeaveLead <= 0 || s.Last == nil || s.Last.Kind != f.Kind || s.Last.Unit != f.Unit {
		return ahead{}
	}
	oldest := p.MaxForecastAge
	if oldest == 0 {
		oldest = DefaultMaxForecastAge
	}
	a := ahead{issued: f.GeneratedAt}
	if now.Sub(f.GeneratedAt) > oldest {
		a.problem = fmt.Sprintf("it was issued at %s, more than %s ago", stamp(f.GeneratedAt), span(oldest))
		return a
	}
	i := sort.Search(len(f.Points), func(i int) bool { return f.Points[i].Time.After(now) }) - 1
	if i < 0 || !now.Before(f.Points[i].Time.Add(f.Points[i].Period)) {
		a.problem = fmt.Sprintf("that of %s says nothing of now", stamp(f.GeneratedAt))
		return a
	}
	dirty := s.above(p)
	if dirty(f.Points[i].Value) && s.LeaveCount == 0 {
		a.problem = fmt.Sprintf("that of %s says %s for now", stamp(f.GeneratedAt), show(f.Points[i].Value, f.Unit))
		return a
	}
	a.used = true
	row := 0
	var begin time.Time
	for ; i < len(f.Points); i++ {
		pt := f.Points[i]
		if !a.known.IsZero() && pt.Time.After(a.known) {
			break // a gap: what follows belongs to another window
		}
		a.known = pt.Time.Add(pt.Period)
		if !dirty(pt.Value) {
			row = 0
			continue
		}
		if row++; row == 1 {
			begin = pt.Time
		}
		if row >= p.LeaveConfirmations {
			a.end = begin
			return a
		}
	}
	return a
}

// above tells values that are above Leave, as the thresholds see them.
func (s *State) above(p Policy) func(v float64) bool {
	if p.Mode != Percentile || s.Last.Kind == signals.Percentile {
		return func(v float64) bool { return v > p.Leave }
	}
	values := make([]float64, len(s.Trailing))
	for i, t := range s.Trailing {
		values[i] = t.Value
	}
	slices.Sort(values)
	return func(v float64) bool {
		below, _ := slices.BinarySearch(values, v)
		upTo := sort.Search(len(values), func(i int) bool { return values[i] > v })
		rank := 100 * (float64(below) + float64(upTo-below)/2) / float64(len(values))
		return rank > p.Leave
	}
}
