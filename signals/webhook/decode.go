package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals"
)

// event is a message as it came, before its data is looked at.
type event struct {
	kind signalpush.Type
	data []byte
	// at stands in for a missing generated_at; nil if nothing signed does.
	at *signalpush.Time
	// id is the event's own: a CloudEvent's source and id; may be empty.
	id string
}

// limits of what messages may ask for.
type limits struct {
	curtailment, override time.Duration
}

// message reads an event's data. Its errors are the sender's to mend.
func (e event) message(now time.Time, l limits) (Message, error) {
	m, err := e.decode(now, l)
	if err != nil {
		return Message{}, err
	}
	m.ID = e.id
	if err := m.check(); err != nil {
		return Message{}, err
	}
	if ahead := m.GeneratedAt.Sub(now); ahead > clockSkew {
		// It would supersede all that follows.
		return Message{}, fmt.Errorf("generated_at lies %s ahead, the most is %s", ahead.Round(time.Second), clockSkew)
	}
	for i, p := range m.Points {
		if m.Type == TypeObserved && p.Start.Sub(now) > clockSkew+p.Period {
			return Message{}, fmt.Errorf("point %d: nothing can be observed at %s yet, send %s", i, p.Start.Format(time.RFC3339), signalpush.Forecast)
		}
	}
	return m, nil
}

func (e event) decode(now time.Time, l limits) (Message, error) {
	if len(e.data) == 0 {
		return Message{}, errors.New("no data")
	}
	switch e.kind {
	case signalpush.Observed, signalpush.Forecast:
		var d signalpush.Signal
		if err := strict(e.data, &d); err != nil {
			return Message{}, err
		}
		if d.Kind == signalpush.KindAvailablePower {
			return e.power(d)
		}
		m := Message{
			Type: TypeObserved, Target: Target{d.Site, d.Region}, GeneratedAt: e.generated(d.GeneratedAt), ValidUntil: at(d.ValidUntil),
			Kind: signals.Kind(d.Kind), Unit: signals.Unit(d.Unit), Estimated: d.Estimated,
		}
		if e.kind == signalpush.Forecast {
			m.Type = TypeForecast
		}
		var err error
		if m.Points, err = points(d.Points); err != nil {
			return Message{}, err
		}
		return m, nil
	case signalpush.CurtailmentStarted, signalpush.CurtailmentEnded:
		var d signalpush.Curtailment
		if err := strict(e.data, &d); err != nil {
			return Message{}, err
		}
		m := Message{Type: TypeCurtailment, Target: Target{d.Site, d.Region}, GeneratedAt: e.generated(d.GeneratedAt), ValidUntil: at(d.ValidUntil)}
		if err := name("id", d.ID); err != nil {
			return Message{}, err
		}
		m.Curtailment = &Curtailment{ID: d.ID, Reason: clip(d.Reason)}
		if e.kind == signalpush.CurtailmentEnded {
			if d.Start != nil || d.End != nil || d.LimitWatts != nil {
				return Message{}, errors.New("a curtailment that ended has no start, end or limit_w")
			}
			return m, nil
		}
		demand := Demand{Start: at(d.Start), Until: at(d.End), LimitWatts: d.LimitWatts}
		if demand.Start.IsZero() {
			demand.Start = m.GeneratedAt
		}
		if demand.Until.IsZero() {
			demand.Until = demand.Start.Add(l.curtailment)
		}
		m.Curtailment.Demands = []Demand{demand}
		return m, nil
	case signalpush.Override:
		var d signalpush.OverrideData
		if err := strict(e.data, &d); err != nil {
			return Message{}, err
		}
		o := &Override{Action: d.Action, Until: at(d.ValidUntil), Reason: clip(d.Reason)}
		if o.Action == signalpush.ActionAuto {
			o.Until = time.Time{}
		}
		if ahead := o.Until.Sub(now); ahead > l.override {
			return Message{}, fmt.Errorf("an override until %s is too long, the most is %s", o.Until.Format(time.RFC3339), l.override)
		}
		return Message{Type: TypeOverride, Target: Target{d.Site, d.Region}, GeneratedAt: e.generated(d.GeneratedAt),
			ValidUntil: at(d.ValidUntil), Override: o}, nil
	}
	return Message{}, fmt.Errorf("unknown type %q", e.kind)
}

// power makes a curtailment of a limit on the site's power: it is a demand, not a
// quantity to compare with thresholds. A missing value takes earlier ones back.
func (e event) power(d signalpush.Signal) (Message, error) {
	factor, ok := map[string]float64{signalpush.UnitWatts: 1, signalpush.UnitKilowatts: 1000}[d.Unit]
	if !ok {
		return Message{}, fmt.Errorf("%s is not given in %q, use %q or %q", d.Kind, d.Unit, signalpush.UnitWatts, signalpush.UnitKilowatts)
	}
	ps, err := points(d.Points)
	if err != nil {
		return Message{}, err
	}
	if len(ps) == 0 {
		return Message{}, errors.New("no points")
	}
	m := Message{Type: TypeCurtailment, Target: Target{d.Site, d.Region}, GeneratedAt: e.generated(d.GeneratedAt), ValidUntil: at(d.ValidUntil)}
	c := &Curtailment{ID: signalpush.KindAvailablePower, Reason: signalpush.KindAvailablePower}
	m.Curtailment = c
	for _, p := range ps {
		if p.Value != nil {
			watts := *p.Value * factor
			c.Demands = append(c.Demands, Demand{Start: p.Start, Until: p.Start.Add(p.Period), LimitWatts: &watts})
		}
	}
	return m, nil
}

func (e event) generated(in *signalpush.Time) time.Time {
	if in == nil {
		in = e.at
	}
	return at(in)
}

func at(t *signalpush.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// points sorts by time, which is no mistake worth a refusal.
func points(in []signalpush.Point) ([]Point, error) {
	out := make([]Point, len(in))
	for i, p := range in {
		if p.Start == nil {
			return nil, fmt.Errorf("point %d: no start", i)
		}
		if most := signals.MaxPeriod.Seconds(); !(p.DurationSeconds > 0 && p.DurationSeconds <= most) {
			return nil, fmt.Errorf("point %d: duration_s %v is outside 0 to %v", i, p.DurationSeconds, most)
		}
		out[i] = Point{Start: p.Start.UTC(), Period: time.Duration(math.Round(p.DurationSeconds * float64(time.Second))),
			Value: p.Value.Number, Omitted: !p.Value.Given}
	}
	slices.SortStableFunc(out, func(a, b Point) int { return a.Start.Compare(b.Start) })
	return out, nil
}

// strict refuses fields that nobody reads: a value under a misspelt name would be
// a missing one.
func strict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data: more than one value")
	}
	return nil
}

// name bounds what becomes part of a stream's name.
func name(field, s string) error {
	if len(s) > maxName {
		return fmt.Errorf("%s of %d bytes, the most is %d", field, len(s), maxName)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is not UTF-8", field)
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%s holds a control character", field)
		}
	}
	return nil
}

// clip keeps a text that people read short.
func clip(s string) string {
	if runes := []rune(s); len(runes) > maxReason {
		return string(runes[:maxReason])
	}
	return s
}

const (
	maxName   = 200
	maxReason = 300
	// clockSkew allowed to a sender's clock.
	clockSkew = 5 * time.Minute
)
