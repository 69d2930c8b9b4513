package power

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Energy in joules; the true one is within Joules ± Uncertainty.
type Energy struct{ Joules, Uncertainty float64 }

// longestEstimate is how long after its last reading a device still counts, in a
// span that never saw it, at the power before: a board may be gone for good.
const longestEstimate = 10 * time.Minute

// Meter adds up energy. It may be used by several goroutines. The zero Meter has
// seen nothing.
type Meter struct {
	mu      sync.Mutex
	devices map[key]*device
	totals  map[string]Energy
	events  map[Event]int64
	open    map[*Span]bool
	seen    time.Time // the last look
}

// key of a device: a source may change with a driver, its device goes on.
type key struct {
	part   Part
	device string
}

// Observe takes a look at the machine. What is missing from it is a gap of its
// device, and its energy comes with the next reading.
func (m *Meter) Observe(s Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.devices == nil {
		m.devices, m.totals, m.events = map[key]*device{}, map[string]Energy{}, map[Event]int64{}
	}
	m.seen = s.At
	seen, metered := map[key]bool{}, map[Part]bool{}
	for _, r := range s.Readings {
		metered[r.Part] = metered[r.Part] || r.Source != SourceModel
		k := key{r.Part, r.Device}
		if seen[k] {
			continue
		}
		seen[k] = true
		d := m.devices[k]
		if d == nil {
			d = &device{}
			m.devices[k] = d
		}
		i, ok := d.add(r, s.At)
		if !ok {
			continue
		}
		t := m.totals[r.Source]
		t.Joules += i.joules
		t.Uncertainty += i.spread
		m.totals[r.Source] = t
		if i.event != "" {
			m.events[i.event]++
		}
		for span := range m.open {
			span.add(k, r, i)
		}
	}
	for k, d := range m.devices {
		switch {
		case seen[k]:
		case metered[k.part] && d.last.Source == SourceModel:
			delete(m.devices, k) // its stand-in is over
		default:
			d.missed = true
		}
	}
}

// Totals are the energy since the first look, by source; they never fall.
func (m *Meter) Totals() map[string]Energy {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.totals)
}

// Figures of a machine as its metrics show them.
type Figures struct {
	// Totals and Watts by source: the energy since the first look, which never
	// falls, and the power at the last.
	Totals map[string]Energy
	Watts  map[string]float64
	// Events are how often what happened.
	Events map[Event]int64
}

// Figures as of the last look.
func (m *Meter) Figures() Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := Figures{Totals: maps.Clone(m.totals), Watts: map[string]float64{}, Events: maps.Clone(m.events)}
	for _, d := range m.devices {
		if d.known && !d.missed {
			f.Watts[d.last.Source] += d.watts
		}
	}
	return f
}

// metered says whether a part's own meter was ever read.
func (m *Meter) metered(p Part) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, d := range m.devices {
		if k.part == p && d.last.Source != SourceModel {
			return true
		}
	}
	return false
}

// has says whether the energy of a part is told, by a meter or a model, and no
// device of it is silent for good; missed, that one of its devices was not readable
// at the last look.
func (m *Meter) has(p Part) (told, missed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, d := range m.devices {
		if k.part != p {
			continue
		}
		if d.missed && m.seen.Sub(d.at) > longestEstimate {
			return false, true
		}
		told, missed = true, missed || d.missed
	}
	return told, missed
}

// Span is a stretch of time whose energy is asked for, as of a round. Observe
// should be called right before its begin and its end.
type Span struct {
	from    time.Time
	devices map[key]*share
	notes   map[string]bool
}

// share of a device in a span.
type share struct {
	Energy
	source  string
	covered time.Duration
}

// Begin opens a span.
func (m *Meter) Begin(at time.Time) *Span {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open == nil {
		m.open = map[*Span]bool{}
	}
	s := &Span{from: at, devices: map[key]*share{}, notes: map[string]bool{}}
	m.open[s] = true
	return s
}

// add counts an interval as far as it lies in the span: evenly, if it began before.
func (s *Span) add(k key, r Reading, i interval) {
	from := i.from
	if s.from.After(from) {
		from = s.from
	}
	within := i.to.Sub(from)
	if within <= 0 {
		return
	}
	e := Energy{i.joules, i.spread}
	if within < i.span() {
		e.Joules = i.joules * within.Seconds() / i.span().Seconds()
		e.Uncertainty = max(e.Joules, min(i.joules+i.spread, r.MaxWatts*within.Seconds())-e.Joules)
	}
	d := s.share(k, r.Source)
	d.Joules += e.Joules
	d.Uncertainty += e.Uncertainty
	if i.covered {
		d.covered += within
	}
	if i.event != "" && i.event != Wrapped {
		s.notes[fmt.Sprintf("%s %s: %s", r.Source, k.device, i.event)] = true
	}
}

func (s *Span) share(k key, source string) *share {
	d := s.devices[k]
	if d == nil {
		d = &share{}
		s.devices[k] = d
	}
	d.source = source
	return d
}

// Result is the energy of a span.
type Result struct {
	Energy
	// Source names all that the figure rests on, joined by "+"; "" when it says
	// nothing.
	Source string
	// Coverage is the share of the span, over all devices, that a meter has seen; a
	// model covers nothing.
	Coverage float64
	// Notes tell what made the figure less than sure.
	Notes []string
}

// End closes a span; it may be called once. For what a device has not yet told
// the power before is taken.
func (m *Meter) End(s *Span, at time.Time) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, s)
	length := at.Sub(s.from)
	if length <= 0 {
		return Result{}
	}
	var out Result
	var covered time.Duration
	sources := map[string]bool{}
	for k, d := range m.devices {
		if d.missed && !d.at.After(s.from) && at.Sub(d.at) > longestEstimate {
			s.notes[fmt.Sprintf("%s %s: %s", d.last.Source, k.device, Gone)] = true
			continue
		}
		from := d.at
		if s.from.After(from) {
			from = s.from
		}
		if open := at.Sub(from); open > 0 && (d.known || s.devices[k] != nil) {
			e := s.share(k, d.last.Source)
			joules := min(d.watts, d.last.MaxWatts) * open.Seconds()
			e.Joules += joules
			e.Uncertainty += max(joules, d.last.MaxWatts*open.Seconds()-joules)
			if d.missed {
				s.notes[fmt.Sprintf("%s %s: %s", d.last.Source, k.device, Gap)] = true
			}
		}
		if e := s.devices[k]; e != nil {
			out.Joules += e.Joules
			out.Uncertainty += e.Uncertainty
			covered += e.covered
			sources[e.source] = true
		}
	}
	out.Source = strings.Join(slices.Sorted(maps.Keys(sources)), "+")
	out.Notes = slices.Sorted(maps.Keys(s.notes))
	if n := len(m.devices); n > 0 {
		out.Coverage = min(covered.Seconds()/(length.Seconds()*float64(n)), 1)
	}
	return out
}
