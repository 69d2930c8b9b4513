package openadr

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/webhook"
)

// The payload types that are mapped; all that begin with alertPrefix are alerts.
const (
	typeGHG     = "GHG"
	typePrice   = "PRICE"
	typeSimple  = "SIMPLE"
	typeLimit   = "IMPORT_CAPACITY_LIMIT"
	alertPrefix = "ALERT_"
)

// forceOff is the level of SIMPLE from which on the site must not draw: high shed.
const forceOff = 2

// Options say whom events speak for and how what they leave open is filled in.
type Options struct {
	Target webhook.Target
	// Jitter gives an event's share, in [0,1), of the delay that its randomizeStart
	// asks for. It must give one event the same share always: an event is mapped
	// more than once. Default: from the target and the event's id.
	Jitter func(eventID string) float64
	// MaxCurtailment is how long a demand without an end holds. Default 4 h.
	MaxCurtailment time.Duration
}

func (o *Options) defaults() {
	if o.MaxCurtailment <= 0 {
		o.MaxCurtailment = 4 * time.Hour
	}
	if o.Jitter == nil {
		o.Jitter = func(id string) float64 {
			h := fnv.New64a()
			_, _ = h.Write([]byte(o.Target.String() + "\n" + id))
			return float64(h.Sum64()>>11) / (1 << 53)
		}
	}
}

// Map gives the messages of an event: at most one forecast per kind and one
// curtailment, with the event's id as series and as ID. A curtailment without
// demands says that all is normal. Payload types that are not known are passed over; a known one
// that cannot be right is an error, and then nothing of the event is mapped.
func Map(e Event, o Options, now time.Time) ([]webhook.Message, error) {
	o.defaults()
	m, err := mapEvent(e, o, now)
	if err != nil {
		return nil, fmt.Errorf("openadr: event %s: %w", e.ID, err)
	}
	return m, nil
}

func mapEvent(e Event, o Options, now time.Time) ([]webhook.Message, error) {
	spans, err := e.spans(now, o.Jitter(e.ID))
	if err != nil {
		return nil, err
	}
	m := mapping{event: e, spans: spans, now: now, options: o,
		base: webhook.Message{Target: o.Target, GeneratedAt: e.generated(now)}}
	for i, interval := range e.Intervals {
		for _, p := range interval.Payloads {
			if err := m.add(p, spans[i]); err != nil {
				return nil, fmt.Errorf("interval %d: %s: %w", interval.ID, p.Type, err)
			}
		}
	}
	return m.messages(), nil
}

// mapping is an event on its way.
type mapping struct {
	event   Event
	spans   []span
	now     time.Time
	options Options
	base    webhook.Message

	ghg, price *webhook.Message
	curtails   bool
	demands    []webhook.Demand
}

func (m *mapping) add(p Payload, s span) error {
	switch {
	case p.Type == typeGHG:
		return m.value(&m.ghg, p, s)
	case p.Type == typePrice:
		return m.value(&m.price, p, s)
	case isDemand(p.Type):
		m.curtails = true
		d, ok, err := m.event.demand(p, s, m.now, m.options.MaxCurtailment)
		if ok {
			m.demands = append(m.demands, d)
		}
		return err
	}
	return nil
}

func (m *mapping) value(to **webhook.Message, p Payload, s span) error {
	point, kind, unit, err := m.event.point(p, s)
	if err != nil {
		return err
	}
	if *to == nil {
		*to = m.forecast(kind, unit)
	}
	(*to).Points = append((*to).Points, point)
	return nil
}

func (m *mapping) forecast(kind signals.Kind, unit signals.Unit) *webhook.Message {
	f := m.base
	f.Type, f.Series, f.Kind, f.Unit = webhook.TypeForecast, m.event.ID, kind, unit
	return &f
}

func (m *mapping) messages() []webhook.Message {
	var out []webhook.Message
	for _, f := range []*webhook.Message{m.ghg, m.price} {
		if f != nil {
			slices.SortStableFunc(f.Points, func(a, b webhook.Point) int { return a.Start.Compare(b.Start) })
			out = append(out, *f)
		}
	}
	if m.curtails {
		c := m.base
		c.Type = webhook.TypeCurtailment
		c.Curtailment = &webhook.Curtailment{ID: m.event.ID, Demands: merge(m.demands), Priority: m.event.Priority, Reason: m.event.name()}
		out = append(out, c)
	}
	return out
}

// point is a value of GHG or PRICE. A span without an end is as long as a reading
// may be.
func (e Event) point(p Payload, s span) (webhook.Point, signals.Kind, signals.Unit, error) {
	out := webhook.Point{Start: s.start, Period: signals.MaxPeriod}
	if !s.until.IsZero() {
		out.Period = min(s.until.Sub(s.start), signals.MaxPeriod)
	}
	kind, unit, factor, err := e.unit(p.Type)
	if err != nil {
		return out, "", "", err
	}
	v, null, err := p.number()
	if err != nil {
		return out, "", "", err
	}
	if !null {
		v *= factor
		if err := signals.CheckValue(kind, v); err != nil {
			return out, "", "", err
		}
		out.Value = &v
	}
	return out, kind, unit, nil
}

// unit of GHG and PRICE. GHG is g/kWh by its definition; a price says what of.
func (e Event) unit(payloadType string) (signals.Kind, signals.Unit, float64, error) {
	d := e.descriptor(payloadType)
	if payloadType == typeGHG {
		switch strings.ToUpper(d.Units) {
		case "", "GHG":
			return signals.Marginal, signals.GramsPerKWh, 1, nil
		}
		return "", "", 0, fmt.Errorf("units %.20q, want GHG (g/kWh)", d.Units)
	}
	factor, ok := map[string]float64{"KWH": 1000, "MWH": 1}[strings.ToUpper(d.Units)]
	unit, known := map[string]signals.Unit{"EUR": signals.EurosPerMWh, "USD": signals.DollarsPerMWh}[strings.ToUpper(d.Currency)]
	if !ok || !known {
		return "", "", 0, fmt.Errorf("units %.20q and currency %.20q in its payloadDescriptor, want KWH or MWH and EUR or USD", d.Units, d.Currency)
	}
	return signals.Price, unit, factor, nil
}

func (e Event) descriptor(payloadType string) Descriptor {
	for _, d := range e.PayloadDescriptors {
		if d.PayloadType == payloadType {
			return d
		}
	}
	return Descriptor{}
}

// number is the payload's one value, or null.
func (p Payload) number() (v float64, null bool, err error) {
	if len(p.Values) != 1 {
		return 0, false, fmt.Errorf("%d values, want one", len(p.Values))
	}
	var number *float64
	if err := json.Unmarshal(p.Values[0], &number); err != nil {
		return 0, false, fmt.Errorf("value %.40s is no number", p.Values[0])
	}
	if number == nil {
		return 0, true, nil
	}
	return *number, false, nil
}

func isDemand(payloadType string) bool {
	return payloadType == typeSimple || payloadType == typeLimit || strings.HasPrefix(payloadType, alertPrefix)
}

// name that people know the event by.
func (e Event) name() string {
	if e.EventName != "" {
		return clip(e.EventName)
	}
	return "OpenADR event " + e.ID
}

func clip(s string) string {
	if runes := []rune(s); len(runes) > maxText {
		return string(runes[:maxText])
	}
	return s
}

const maxText = 200

// demand of a payload; false if it is none.
func (e Event) demand(p Payload, s span, now time.Time, most time.Duration) (webhook.Demand, bool, error) {
	d := webhook.Demand{Start: s.start.Add(s.delay), Until: s.until, Reason: p.Type}
	switch {
	case p.Type == typeSimple:
		level, null, err := p.number()
		if err != nil {
			return d, false, err
		}
		if null || level != float64(int(level)) || level < 0 || level > 3 {
			return d, false, errors.New("want a level of 0, 1, 2 or 3")
		}
		if level < forceOff {
			return d, false, nil
		}
		d.Reason = fmt.Sprintf("%s %d", typeSimple, int(level))
	case strings.HasPrefix(p.Type, alertPrefix):
		if len(p.Values) > 0 {
			var text string
			if json.Unmarshal(p.Values[0], &text) == nil && text != "" {
				d.Reason += ": " + clip(text)
			}
		}
	case p.Type == typeLimit:
		if units := e.descriptor(typeLimit).Units; !strings.EqualFold(units, "KW") {
			return d, false, fmt.Errorf("units %.20q in its payloadDescriptor, want KW", units)
		}
		kilowatts, null, err := p.number()
		if err != nil {
			return d, false, err
		}
		if null {
			return d, false, nil // no limit
		}
		if !(kilowatts >= 0 && kilowatts <= 1e9) {
			return d, false, fmt.Errorf("limit of %v kW is outside 0 to 1e9", kilowatts)
		}
		watts := kilowatts * 1000
		d.LimitWatts = &watts
	}
	if d.Until.IsZero() {
		// Counted from now: as long as the event is there, it is renewed.
		d.Until = later(now, d.Start).Add(most)
	}
	if !d.Start.Before(d.Until) {
		return d, false, nil // it was shorter than its random delay
	}
	return d, true, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// merge joins demands of the same kind that follow one another, so that a level
// held over many intervals is one demand.
func merge(in []webhook.Demand) []webhook.Demand {
	slices.SortStableFunc(in, func(a, b webhook.Demand) int { return a.Start.Compare(b.Start) })
	var out []webhook.Demand
	for _, d := range in {
		if n := len(out) - 1; n >= 0 && out[n].Reason == d.Reason && sameLimit(out[n].LimitWatts, d.LimitWatts) && !d.Start.After(out[n].Until) {
			out[n].Until = later(out[n].Until, d.Until)
			continue
		}
		out = append(out, d)
	}
	return out
}

func sameLimit(a, b *float64) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
