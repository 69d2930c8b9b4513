package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals"
)

// Target is what a message speaks for: a site or a grid region, one of the two.
type Target struct {
	Site   string `json:"site,omitempty"`
	Region string `json:"region,omitempty"`
}

// String is "site NAME" or "region NAME".
func (t Target) String() string {
	if t.Site != "" {
		return "site " + t.Site
	}
	return "region " + t.Region
}

// name is what readings have as their region.
func (t Target) name() string {
	if t.Site != "" {
		return t.Site
	}
	return t.Region
}

// Curtailment is a grid's or a person's demand to draw less. It replaces that
// sender's earlier one of the same target and ID; without demands it takes that
// back.
type Curtailment struct {
	Target  Target   `json:"-"`
	Source  string   `json:"-"`
	ID      string   `json:"id,omitempty"`
	Demands []Demand `json:"demands,omitempty"`
	// Priority among curtailments: 0 is the highest; nil is the lowest.
	Priority *int   `json:"priority,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Demand holds over [Start, Until).
type Demand struct {
	Start time.Time `json:"start"`
	// Until is always set: a demand whose end was lost does not hold for ever.
	Until time.Time `json:"until"`
	// LimitWatts is the most that the site may draw; nil means nothing at all.
	LimitWatts *float64 `json:"limitWatts,omitempty"`
	Reason     string   `json:"reason,omitempty"`
}

// At is the strictest demand that holds at t; false if none does.
func (c Curtailment) At(t time.Time) (strictest Demand, ok bool) {
	for _, d := range c.Demands {
		if t.Before(d.Start) || !t.Before(d.Until) {
			continue
		}
		if !ok || strictest.LimitWatts != nil && (d.LimitWatts == nil || *d.LimitWatts < *strictest.LimitWatts) {
			strictest, ok = d, true
		}
	}
	return strictest, ok
}

// Override is a person's word on a target; it wins over signals until it ends.
type Override struct {
	Target Target            `json:"-"`
	Source string            `json:"-"`
	Action signalpush.Action `json:"action"`
	// Until is zero for signalpush.ActionAuto, which ends an override.
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
}

// Sink takes what was pushed, each message in the order of its generation and
// once more when a Handler starts. Its methods must be quick and must not call
// the Handler.
type Sink interface {
	Reading(Target, signals.Reading)
	// Forecast replaces that sender's earlier one of the same target, kind and
	// series; without points it withdraws it. Series is "" but for senders that
	// give a kind in several parts, such as OpenADR events.
	Forecast(t Target, series string, f signals.Forecast)
	Curtailment(Curtailment)
	Override(Override)
}

// Type says which field of a Message counts.
type Type string

// The types of messages.
const (
	TypeObserved    Type = "observed"
	TypeForecast    Type = "forecast"
	TypeCurtailment Type = "curtailment"
	TypeOverride    Type = "override"
)

// Message is one pushed event, checked. Its JSON is what a Store keeps.
type Message struct {
	Type   Type   `json:"type"`
	Target Target `json:"target"`
	// ID is the event's own identity besides its delivery's, with its version
	// where it has versions; may be empty.
	ID string `json:"eventID,omitempty"`
	// GeneratedAt orders the messages of one stream: sender, target, type, kind
	// and series.
	GeneratedAt time.Time `json:"generatedAt"`
	// ValidUntil is zero for none; a message that arrives after it is ignored.
	ValidUntil time.Time `json:"validUntil,omitzero"`
	// Series tells forecasts of one kind apart that do not replace each other.
	Series    string       `json:"series,omitempty"`
	Kind      signals.Kind `json:"kind,omitempty"`
	Unit      signals.Unit `json:"unit,omitempty"`
	Estimated bool         `json:"estimated,omitempty"`
	// Points ascend in time and do not overlap. A forecast without any withdraws.
	Points      []Point      `json:"points,omitempty"`
	Curtailment *Curtailment `json:"curtailment,omitempty"`
	Override    *Override    `json:"override,omitempty"`
}

// Point is one value and the span it holds for.
type Point struct {
	Start  time.Time     `json:"start"`
	Period time.Duration `json:"periodNanoseconds"`
	// Value is nil for none; Omitted tells left out from null.
	Value   *float64 `json:"value"`
	Omitted bool     `json:"omitted,omitempty"`
}

// stream is the name of what a newer message replaces.
func (m Message) stream() string {
	switch m.Type {
	case TypeCurtailment:
		return m.Target.String() + "\n" + string(m.Type) + "\n" + m.Curtailment.ID
	case TypeOverride:
		return m.Target.String() + "\n" + string(m.Type)
	}
	return m.Target.String() + "\n" + string(m.Type) + "\n" + string(m.Kind) + "\n" + m.Series
}

// readings puts the points into readings.
func (m Message) readings(source string, received time.Time) []signals.Reading {
	readings := make([]signals.Reading, len(m.Points))
	for i, p := range m.Points {
		readings[i] = m.reading(p, source, received)
	}
	return readings
}

func (m Message) reading(p Point, source string, received time.Time) signals.Reading {
	quality := signals.Good
	switch {
	case m.Type == TypeForecast:
		quality = signals.Forecasted
	case m.Estimated:
		quality = signals.Estimated
	}
	return signals.Reading{
		Kind: m.Kind, Unit: m.Unit, Region: m.Target.name(), Value: copied(p.Value), Omitted: p.Omitted,
		PointTime: p.Start, ReceivedTime: received, Period: p.Period, Source: source, Quality: quality,
	}
}

func (m Message) forecast(source string) signals.Forecast {
	f := signals.Forecast{Kind: m.Kind, Unit: m.Unit, Region: m.Target.name(), GeneratedAt: m.GeneratedAt,
		Source: source, Quality: signals.Forecasted, Points: make([]signals.ForecastPoint, len(m.Points))}
	for i, p := range m.Points {
		f.Points[i] = signals.ForecastPoint{Start: p.Start, Duration: p.Period, Value: copied(p.Value)}
	}
	return f
}

func copied(v *float64) *float64 {
	if v == nil {
		return nil
	}
	c := *v
	return &c
}

// expired says that the message is of no use any more at now. What was observed
// stays of use as the past.
func (m Message) expired(now time.Time) bool {
	if !m.ValidUntil.IsZero() && !now.Before(m.ValidUntil) {
		return true
	}
	end := m.end()
	return m.Type != TypeObserved && !end.IsZero() && !now.Before(end)
}

// end is when nothing of the message holds any more; zero for an unknown end.
func (m Message) end() time.Time {
	switch {
	case m.Type == TypeCurtailment:
		var end time.Time
		for _, d := range m.Curtailment.Demands {
			if d.Until.After(end) {
				end = d.Until
			}
		}
		return end
	case m.Type == TypeOverride:
		return m.Override.Until
	case len(m.Points) > 0:
		last := m.Points[len(m.Points)-1]
		return last.Start.Add(last.Period)
	}
	return time.Time{}
}

// ends says that the message only takes back what an earlier one said.
func (m Message) ends() bool {
	switch m.Type {
	case TypeCurtailment:
		return len(m.Curtailment.Demands) == 0
	case TypeOverride:
		return m.Override.Action == signalpush.ActionAuto
	}
	return len(m.Points) == 0
}

// Entry is the newest message of a stream, as a Store keeps it.
type Entry struct {
	Source, Stream string
	Received       time.Time
	GeneratedAt    time.Time
	Message        json.RawMessage
}

// Delivery is an identity that was taken, with the digest of what it named.
type Delivery struct{ ID, Digest string }

// Commit is what one request changes in a Store.
type Commit struct {
	Source     string
	At         time.Time
	Deliveries []Delivery
	// Entries replace those of their stream; Drop names streams to forget.
	Entries []Entry
	Drop    []string
}

// Store keeps over restarts which deliveries were taken and each stream's newest
// message. Calls for one source come one at a time.
type Store interface {
	// Seen gives the digest of a delivery that was taken; false for none within
	// the store's retention, which is at least 24 hours.
	Seen(ctx context.Context, source, id string, now time.Time) (digest string, ok bool, err error)
	// Commit is durable when it returns. After a crash in it, entries may be there
	// without the deliveries, never the other way.
	Commit(context.Context, Commit) error
	// Load gives all entries. It may return what it could read together with an
	// error that names what it could not; nil with an error says that it could not
	// look.
	Load(context.Context) ([]Entry, error)
}

// check refuses a message that cannot be right whoever made it. It sorts nothing.
func (m Message) check() error {
	switch {
	case (m.Target.Site == "") == (m.Target.Region == ""):
		return errors.New("want site or region, one of the two")
	case m.GeneratedAt.IsZero():
		return errors.New("no generated_at: messages are ordered by it")
	}
	if !sane(m.GeneratedAt) {
		return outside("generated_at", m.GeneratedAt)
	}
	if !m.ValidUntil.IsZero() && !sane(m.ValidUntil) {
		return outside("valid_until", m.ValidUntil)
	}
	switch m.Type {
	case TypeObserved, TypeForecast:
		return m.checkPoints()
	case TypeCurtailment:
		return m.Curtailment.check()
	case TypeOverride:
		return m.Override.check()
	}
	return fmt.Errorf("unknown type %q", m.Type)
}

func (m Message) checkPoints() error {
	if err := signals.CheckUnit(m.Kind, m.Unit); err != nil {
		return err
	}
	if m.Type == TypeObserved && len(m.Points) == 0 {
		return errors.New("no points")
	}
	for i, p := range m.Points {
		if !sane(p.Start) {
			return outside(fmt.Sprintf("point %d: start", i), p.Start)
		}
		if p.Value != nil {
			if err := signals.CheckValue(m.Kind, *p.Value); err != nil {
				return fmt.Errorf("point %d: %w", i, err)
			}
		}
		if p.Period <= 0 || p.Period > signals.MaxPeriod {
			return fmt.Errorf("point %d: it holds for %s, want more than 0 and at most %s", i, p.Period, signals.MaxPeriod)
		}
		if i > 0 && p.Start.Before(m.Points[i-1].Start.Add(m.Points[i-1].Period)) {
			return fmt.Errorf("points at %s and %s overlap", m.Points[i-1].Start.Format(time.RFC3339), p.Start.Format(time.RFC3339))
		}
	}
	return nil
}

func (c *Curtailment) check() error {
	if c == nil {
		return errors.New("no curtailment")
	}
	for _, d := range c.Demands {
		switch {
		case d.LimitWatts != nil && !(*d.LimitWatts >= 0 && *d.LimitWatts <= maxWatts):
			return fmt.Errorf("limit of %v W is outside 0 to %v", *d.LimitWatts, float64(maxWatts))
		case !sane(d.Start):
			return outside("start", d.Start)
		case !sane(d.Until):
			return outside("end", d.Until)
		case !d.Start.Before(d.Until):
			return fmt.Errorf("end %s is not after start %s", d.Until.Format(time.RFC3339), d.Start.Format(time.RFC3339))
		}
	}
	return nil
}

func (o *Override) check() error {
	switch {
	case o == nil:
		return errors.New("no override")
	case o.Action == signalpush.ActionAuto:
		return nil
	case o.Action != signalpush.ActionOn && o.Action != signalpush.ActionOff:
		return fmt.Errorf("unknown action %q, use on, off or auto", o.Action)
	case o.Until.IsZero():
		return errors.New("no valid_until: an override without an end would be forgotten")
	case !sane(o.Until):
		return outside("valid_until", o.Until)
	}
	return nil
}

const (
	firstYear = 2000
	lastYear  = 2200
	maxWatts  = 1e12
)

func outside(what string, t time.Time) error {
	return fmt.Errorf("%s %s is outside the years %d to %d", what, t.Format(time.RFC3339), firstYear, lastYear)
}

// sane keeps times where arithmetic on them cannot overflow.
func sane(t time.Time) bool {
	year := t.UTC().Year()
	return year >= firstYear && year <= lastYear
}
