// Package replay serves a recorded or generated trace as if it were live: a CSV
// file of one time column and a column per region becomes Series that hold each
// value for its validity, and a Source that gives the reading of the moment
// under a Clock.
//
// It owns the CSV format. It must not know sites, thresholds or what the values
// are used for.
package replay

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"girassol.dev/signals"
)

// Trace is a table of points: one time per row, one region per column.
type Trace struct {
	// Name is for messages: the file's name.
	Name    string
	Kind    signals.Kind
	Unit    signals.Unit
	times   []time.Time
	regions []string
	columns [][]*float64
}

// DefaultPeriod is how long the point of a trace with a single row holds.
const DefaultPeriod = 5 * time.Minute

// NewTrace makes a trace of values[region][row]; nil is no value. Times must
// rise strictly. The trace keeps the slices.
func NewTrace(name string, kind signals.Kind, unit signals.Unit, times []time.Time, regions []string, values [][]*float64) (*Trace, error) {
	if err := signals.CheckUnit(kind, unit); err != nil {
		return nil, fmt.Errorf("replay: trace %s: %w", name, err)
	}
	if len(times) == 0 || len(regions) == 0 || len(values) != len(regions) {
		return nil, fmt.Errorf("replay: trace %s: %d times, %d regions, %d columns", name, len(times), len(regions), len(values))
	}
	for i := 1; i < len(times); i++ {
		if !times[i].After(times[i-1]) {
			return nil, fmt.Errorf("replay: trace %s: time %s is not after %s", name, stamp(times[i]), stamp(times[i-1]))
		}
	}
	for i, r := range regions {
		if !regionName(r) || slices.Index(regions, r) != i {
			return nil, fmt.Errorf("replay: trace %s: region %q is no name or there twice", name, r)
		}
		if len(values[i]) != len(times) {
			return nil, fmt.Errorf("replay: trace %s: region %s has %d values for %d times", name, r, len(values[i]), len(times))
		}
		for row, v := range values[i] {
			if v == nil {
				continue
			}
			if err := signals.CheckValue(kind, *v); err != nil {
				return nil, fmt.Errorf("replay: trace %s: region %s at %s: %w", name, r, stamp(times[row]), err)
			}
		}
	}
	t := &Trace{Name: name, Kind: kind, Unit: unit, times: times, regions: regions, columns: values}
	if p := t.Period(); p > signals.MaxPeriod {
		return nil, fmt.Errorf("replay: trace %s: a point every %s, at most %s apart", name, p, signals.MaxPeriod)
	}
	return t, nil
}

// Regions names the columns in order.
func (t *Trace) Regions() []string { return slices.Clone(t.regions) }

// Rows is the number of points of each region.
func (t *Trace) Rows() int { return len(t.times) }

// Start is the time of the first point.
func (t *Trace) Start() time.Time { return t.times[0] }

// End is the end of the last point's validity.
func (t *Trace) End() time.Time { return t.times[len(t.times)-1].Add(t.Period()) }

// Period is how long a point holds: the most frequent distance of two rows, the
// shorter one of equally frequent ones.
func (t *Trace) Period() time.Duration {
	if len(t.times) == 1 {
		return DefaultPeriod
	}
	gaps := make([]time.Duration, len(t.times)-1)
	for i := range gaps {
		gaps[i] = t.times[i+1].Sub(t.times[i])
	}
	slices.Sort(gaps)
	best, most := gaps[0], 0
	for i := 0; i < len(gaps); {
		j := i
		for j < len(gaps) && gaps[j] == gaps[i] {
			j++
		}
		if j-i > most {
			best, most = gaps[i], j-i
		}
		i = j
	}
	return best
}

// Column is one region's series. The error of an unknown region lists those that
// the trace has.
func (t *Trace) Column(region string) (*Series, error) {
	i := slices.Index(t.regions, region)
	if i < 0 {
		return nil, fmt.Errorf("replay: trace %s has no region %q, it has %s", t.Name, region, strings.Join(t.regions, ", "))
	}
	return &Series{Region: region, Kind: t.Kind, Unit: t.Unit,
		times: t.times, values: t.columns[i], period: t.Period()}, nil
}

// Append returns a trace that goes on with next, which must have the same kind,
// unit and regions (in any order) and begin after this one's last point.
func (t *Trace) Append(next *Trace) (*Trace, error) {
	if t.Kind != next.Kind || t.Unit != next.Unit {
		return nil, fmt.Errorf("replay: trace %s is %s in %s, %s is %s in %s",
			t.Name, t.Kind, t.Unit, next.Name, next.Kind, next.Unit)
	}
	if len(t.regions) != len(next.regions) {
		return nil, fmt.Errorf("replay: trace %s has regions %v, %s has %v", t.Name, t.regions, next.Name, next.regions)
	}
	columns := make([][]*float64, len(t.regions))
	for i, r := range t.regions {
		j := slices.Index(next.regions, r)
		if j < 0 {
			return nil, fmt.Errorf("replay: region %s of trace %s is missing in %s", r, t.Name, next.Name)
		}
		columns[i] = slices.Concat(t.columns[i], next.columns[j])
	}
	return NewTrace(t.Name+"+"+next.Name, t.Kind, t.Unit, slices.Concat(t.times, next.times), t.Regions(), columns)
}

// Series is one region's points over time.
type Series struct {
	Region string
	Kind   signals.Kind
	Unit   signals.Unit
	times  []time.Time
	values []*float64
	period time.Duration
	repeat bool
}

// Repeat is the same series going on for ever in both directions: after its last
// point's validity it begins anew. It shares the points.
func (s *Series) Repeat() *Series {
	r := *s
	r.repeat = true
	return &r
}

// Repeats says whether the series wraps.
func (s *Series) Repeats() bool { return s.repeat }

// Start is the time of the first point.
func (s *Series) Start() time.Time { return s.times[0] }

// End is the end of the last point's validity; a repeating series begins anew
// there.
func (s *Series) End() time.Time { return s.times[len(s.times)-1].Add(s.period) }

// Period is how long a point holds.
func (s *Series) Period() time.Duration { return s.period }

// Len is the number of points.
func (s *Series) Len() int { return len(s.times) }

// Point is the i-th point's time and value, nil for none.
func (s *Series) Point(i int) (time.Time, *float64) { return s.times[i], copied(s.values[i]) }

// Time is the i-th point's time.
func (s *Series) Time(i int) time.Time { return s.times[i] }

// At is the step that t lies in. A value holds from its point for a period, or
// until the next point if that is earlier; between the end of a validity and the
// next point, and outside the series, the step has no value. The step before the
// first point has no From, the one after the last validity no Until.
func (s *Series) At(t time.Time) signals.Step {
	var shift time.Duration
	if s.repeat {
		t, shift = s.wrap(t)
	}
	i := s.after(t)
	if i == 0 {
		return signals.Step{Until: s.times[0].Add(shift)}
	}
	from, until := s.times[i-1], s.times[i-1].Add(s.period)
	last := i == len(s.times)
	if !last && s.times[i].Before(until) {
		until = s.times[i]
	}
	if t.Before(until) {
		return signals.Step{From: from.Add(shift), Until: until.Add(shift), Value: copied(s.values[i-1])}
	}
	gap := signals.Step{From: until.Add(shift)}
	if !last {
		gap.Until = s.times[i].Add(shift)
	}
	return gap
}

// after is the index of the first point after t.
func (s *Series) after(t time.Time) int {
	return sort.Search(len(s.times), func(i int) bool { return s.times[i].After(t) })
}

// wrap moves t into [Start, End) by whole lengths of the series and says by how
// much to move back.
func (s *Series) wrap(t time.Time) (time.Time, time.Duration) {
	length := s.End().Sub(s.Start())
	d := t.Sub(s.Start())
	laps := d / length
	if d < 0 && d%length != 0 {
		laps--
	}
	shift := laps * length
	return t.Add(-shift), shift
}

// Grams is the series in gCO2/kWh; an error if it is no intensity.
func (s *Series) Grams() (*Series, error) {
	switch s.Unit {
	case signals.GramsPerKWh:
		return s, nil
	case signals.PoundsPerMWh:
		g := *s
		g.Unit = signals.GramsPerKWh
		g.values = make([]*float64, len(s.values))
		for i, v := range s.values {
			if v != nil {
				x := signals.GramsFromPounds(*v)
				g.values[i] = &x
			}
		}
		return &g, nil
	}
	return nil, fmt.Errorf("replay: region %s is in %s, no intensity", s.Region, s.Unit)
}

// regionName accepts what one CSV line can hold and a person can read.
func regionName(r string) bool {
	return r != "" && len(r) <= MaxCell && utf8.ValidString(r) && strings.TrimSpace(r) == r &&
		!strings.ContainsFunc(r, unicode.IsControl) && !strings.ContainsRune(r, '\ufeff')
}

func copied(v *float64) *float64 {
	if v == nil {
		return nil
	}
	c := *v
	return &c
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
