package simulate

import (
	"sort"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// activity is what a site's machines do.
type activity uint8

const (
	out activity = iota
	provisioning
	idle
	training
	syncing
	activities
)

// Change of a site's membership, as a live director would have told it.
type Change struct {
	At      time.Time            `json:"at"`
	Admit   bool                 `json:"admit"`
	Window  v1alpha1.WindowState `json:"window"`
	Reason  v1alpha1.Reason      `json:"reason"`
	Message string               `json:"message"`
}

// mostChanges that a site keeps.
const mostChanges = 4096

// site is one site under way.
type site struct {
	Site
	index  int
	member string
	rate   float64 // work in a second of training

	// What its window is and does.
	state    window.State
	decision window.Decision
	sanity   sanity.State
	present  *signals.Reading  // the newest
	asked    bool              // the window is to decide at this instant
	newest   *signals.Forecast // the newest issue
	row      int               // of the signal, next
	issue    int               // of the forecasts, next
	slots    []planner.Slot    // of the newest forecast

	// What it is told and does.
	admitted, draining, accepted bool
	// why the planner has not taken it.
	why              v1alpha1.Reason
	drainBy          time.Time
	epoch, round     uint64
	activity         activity
	trainFrom, until time.Time
	pending          float64 // work that no commit has taken yet

	// What came of it, up to since.
	since   time.Time
	clean   bool // its electricity is below the threshold
	seconds [activities]float64
	// open is the time below the threshold, used the part of it in which the site
	// was admitted, productive the part in which it trained.
	open, used, productive float64
	admittedSeconds        float64
	joules, cleanJoules    float64
	starts, windows        int
	done, lost             float64
	reasons                map[v1alpha1.Reason]float64
	changes                []Change
}

// watts of IT power now.
func (s *site) watts() float64 {
	switch s.activity {
	case training:
		return s.Power.TrainingWatts
	case provisioning, idle, syncing:
		return s.Power.IdleWatts
	}
	return 0
}

// advance books the time since the last change.
func (s *site) advance(l *ledger.Ledger, now time.Time) error {
	dt := now.Sub(s.since).Seconds()
	if dt <= 0 {
		return nil
	}
	s.seconds[s.activity] += dt
	if s.clean {
		s.open += dt
		if s.admitted {
			s.used += dt
		}
		if s.activity == training {
			s.productive += dt
		}
	}
	if s.admitted {
		s.admittedSeconds += dt
	}
	if !s.admitted {
		s.reasons[s.reasonOf()] += dt
	}
	if w := s.watts(); w > 0 {
		joules := w * s.Power.PUE * dt
		s.joules += joules
		if s.clean {
			s.cleanJoules += joules
		}
		if err := l.Add(s.Name, s.since, now, w, s.Power.PUE); err != nil {
			return err
		}
	}
	s.since = now
	return nil
}

// first finds the row of the signal that holds at t, the first one if there is
// none yet.
func (s *site) first(t time.Time) {
	if s.Signal == nil {
		return
	}
	n := sort.Search(s.Signal.Len(), func(i int) bool { return s.Signal.Time(i).After(t) })
	s.row = max(0, n-1)
}

// reading is the present point of the signal, as a replay would give it.
func (s *site) reading(now time.Time) signals.Reading {
	at, value := s.Signal.Point(s.row)
	return signals.Reading{
		Kind: s.Signal.Kind, Unit: s.Signal.Unit, Region: s.Signal.Region, Value: value,
		PointTime: at, ReceivedTime: now, Period: s.Signal.Period(), Source: "trace", Quality: signals.Good,
	}
}

// isClean says whether the newest point is below the threshold.
func (s *site) isClean(now time.Time) bool {
	l := s.state.Last
	if s.Policy.Mode == window.None || l == nil || l.Compared == nil {
		return false
	}
	return now.Before(l.PointTime.Add(l.Period)) && *l.Compared < s.Policy.Enter
}

// grams is the present intensity, nil if it is not known.
func (s *site) grams(now time.Time) *float64 {
	l := s.state.Last
	if l == nil || l.Unit != signals.GramsPerKWh || !now.Before(signals.StaleAt(l.PointTime, l.Period)) {
		if s.Grid.Marginal == nil {
			return nil
		}
		return s.Grid.Marginal.At(now).Value
	}
	v := l.Value
	return &v
}

// foresee takes the issues up to now; the newest is for the window.
func (s *site) foresee() {
	f := s.Forecasts[s.issue]
	s.issue++
	s.newest = &f
	s.slots = s.slots[:0:0]
	for _, p := range f.Points {
		slot := planner.Slot{From: p.Start, Until: p.Start.Add(p.Duration), Grams: p.Value}
		if p.Value != nil && f.Unit == signals.PoundsPerMWh {
			v := signals.GramsFromPounds(*p.Value)
			slot.Grams = &v
		}
		s.slots = append(s.slots, slot)
	}
	if f.Kind == signals.Percentile {
		s.slots = nil // no intensity
	}
}
