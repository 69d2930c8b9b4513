package sanity

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

// MaxSamples bounds the trailing distribution: one for each of as many equal
// parts of the trailing span, whatever the period of the signal.
const MaxSamples = 168

// State is all that a verdict remembers of one signal, of bounded size. Its JSON
// round trip continues identically. The zero State is a signal never seen.
type State struct {
	// Series that the rest was seen of; another one starts anew.
	Series Series `json:"series"`
	// Last is the newest judged point and Previous the one before. Last enters
	// the memory below when the next point comes, so that it can be judged again.
	Previous *Point `json:"previous,omitempty"`
	Last     *Point `json:"last,omitempty"`
	// Zeros of the points before Last.
	Zeros Zeros `json:"zeros,omitempty"`
	// Samples of the trailing distribution, oldest first.
	Samples []Sample `json:"samples,omitempty"`
}

// Series names a signal.
type Series struct {
	Kind   signals.Kind `json:"kind,omitempty"`
	Unit   signals.Unit `json:"unit,omitempty"`
	Region string       `json:"region,omitempty"`
	Model  string       `json:"model,omitempty"`
}

// Point is a judged reading.
type Point struct {
	Time   time.Time       `json:"time"`
	Period time.Duration   `json:"periodNanoseconds"`
	Value  float64         `json:"value"`
	Class  Class           `json:"class"`
	Reason v1alpha1.Reason `json:"reason"`
	// Run is the run of zeros that the point belongs to; nil if it is not zero.
	Run *Run `json:"run,omitempty"`
}

// Run is a run of zeros.
type Run struct {
	Since time.Time `json:"since"`
	// From is the value before it; nil if there was none.
	From *float64 `json:"from,omitempty"`
	// Earlier is the last zero of the run before; zero if there was none.
	Earlier time.Time `json:"earlier,omitzero"`
}

// Sample is one value of the trailing distribution.
type Sample struct {
	Time  time.Time
	Value float64
}

// MarshalJSON writes [unix seconds, value].
func (s Sample) MarshalJSON() ([]byte, error) {
	v, err := json.Marshal(s.Value)
	if err != nil {
		return nil, fmt.Errorf("sanity: sample of %s: %w", s.Time, err)
	}
	return fmt.Appendf(nil, "[%d,%s]", s.Time.Unix(), v), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Sample) UnmarshalJSON(b []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return fmt.Errorf("sanity: sample: %w", err)
	}
	if len(raw) != 2 {
		return fmt.Errorf("sanity: sample has %d numbers, want 2", len(raw))
	}
	var at int64
	var v float64
	for i, to := range []any{&at, &v} {
		if err := json.Unmarshal(raw[i], to); err != nil {
			return fmt.Errorf("sanity: sample number %d: %w", i, err)
		}
	}
	*s = Sample{Time: time.Unix(at, 0).UTC(), Value: v}
	return nil
}

// ZeroMemory is how long a zero makes another zero of the same signal credible.
const ZeroMemory = 30 * 24 * time.Hour

// Zeros are the times of the newest two points of a signal that were exactly 0,
// oldest first.
type Zeros []time.Time

// Recent says that there is a zero before point, within ZeroMemory.
func (z Zeros) Recent(point time.Time) bool {
	return slices.ContainsFunc(z, func(t time.Time) bool {
		return !t.IsZero() && t.Before(point) && point.Sub(t) <= ZeroMemory
	})
}

// Observe remembers point if its value is 0 and says whether it is a zero
// without another one in the ZeroMemory before it. It does not change z.
func (z Zeros) Observe(point time.Time, value float64) (remembered Zeros, alone bool) {
	kept := slices.DeleteFunc(slices.Clone(z), func(t time.Time) bool { return !Zeros{t}.Recent(point) })
	if value != 0 {
		return kept, false
	}
	alone = len(kept) == 0
	if len(kept) > 1 {
		kept = kept[len(kept)-1:]
	}
	return append(kept, point), alone
}

func (z Zeros) newest() time.Time {
	var newest time.Time
	for _, t := range z {
		if t.After(newest) {
			newest = t
		}
	}
	return newest
}

// SawZero says that a zero was seen and believed within ZeroMemory before t.
func (s State) SawZero(t time.Time) bool {
	return s.Zeros.Recent(t) || s.Last != nil && s.Last.Run != nil && s.Last.Class == Good && Zeros{s.Last.Time}.Recent(t)
}

// run is the run of zeros that l begins, beside the value of before, or goes on
// with.
func (s *State) run(l, before *Point) *Run {
	if s.Previous != nil && s.Previous.Run != nil {
		return s.Previous.Run // over a gap as well: nothing else was seen
	}
	r := &Run{Since: l.Time, Earlier: s.Zeros.newest()}
	if before != nil {
		v := before.Value
		r.From = &v
	}
	return r
}

// settle moves Last into the memory, since a newer point came.
func (s *State) settle(p Policy) {
	l := s.Last
	s.Previous, s.Last = l, nil
	if l.Run != nil && l.Reason != v1alpha1.ReasonSignalOutage && l.Reason != v1alpha1.ReasonSignalFlatZero &&
		l.Reason != v1alpha1.ReasonSignalDisagrees {
		s.Zeros, _ = s.Zeros.Observe(l.Time, 0)
	}
	if l.Class != Good {
		return
	}
	oldest := l.Time.Add(-p.Trailing)
	if n := len(s.Samples); n > 0 {
		if newest := s.Samples[n-1].Time; newest.After(oldest) && l.Time.Sub(newest) < p.Trailing/MaxSamples {
			return
		}
	}
	first := 0
	for first < len(s.Samples) && (!s.Samples[first].Time.After(oldest) || len(s.Samples)-first >= MaxSamples) {
		first++
	}
	samples := make([]Sample, 0, len(s.Samples)-first+1)
	s.Samples = append(append(samples, s.Samples[first:]...), Sample{Time: l.Time.Truncate(time.Second), Value: l.Value})
}

// jumps says that a value is far outside the trailing distribution and that
// nothing near supports it.
func (s *State) jumps(p Policy, n signals.Reading, before *Point, in Input) bool {
	v := *n.Value
	if p.JumpMADs < 0 || n.Kind == signals.Percentile || n.Kind == signals.TrafficLight || len(s.Samples) < p.MinHistory {
		return false
	}
	neighbour := before != nil && before.Class != Suspect
	if neighbour && math.Abs(v-before.Value) <= p.JumpFloor {
		return false
	}
	for _, t := range s.Samples {
		if math.Abs(v-t.Value) <= p.JumpFloor {
			return false
		}
	}
	median, mad := spread(s.Samples)
	near := math.Max(p.JumpFloor, mad)
	if math.Abs(v-median) <= math.Max(p.JumpMADs*mad, p.JumpFloor) || neighbour && math.Abs(v-before.Value) <= near {
		return false
	}
	for _, t := range s.Samples {
		if math.Abs(v-t.Value) <= near {
			return false
		}
	}
	if f := in.Forecast; f != nil && f.Kind == n.Kind && !flatZero(f) && f.Validate() == nil {
		pt, ok := f.At(n.PointTime)
		if ok && pt.Value != nil {
			expected := signals.Reading{Kind: f.Kind, Unit: f.Unit, Value: pt.Value}.Normalized()
			return expected.Unit != n.Unit || math.Abs(v-*expected.Value) > near
		}
	}
	return true
}

// spread is the median and the median absolute deviation from it.
func spread(samples []Sample) (median, mad float64) {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = s.Value
	}
	median = middle(values)
	for i, v := range values {
		values[i] = math.Abs(v - median)
	}
	return median, middle(values)
}

func middle(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
