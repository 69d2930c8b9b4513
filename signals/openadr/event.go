// Package openadr maps OpenADR 3 events to pushed energy messages: GHG and PRICE to
// forecasts, SIMPLE, alerts and import limits to curtailments.
//
// It owns the language of the events: interval periods, durations, now and for
// ever, priorities, what is cancelled. It must not know how events arrive, nor
// what is decided from them. Source: OpenADR 3.1 definition and its enumerations.
package openadr

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Event is an OpenADR 3 event as far as it is mapped. Targets are not looked at:
// the server has chosen whom to send it to, and Options say whom it is for.
type Event struct {
	ID                   string          `json:"id"`
	EventName            string          `json:"eventName"`
	CreatedDateTime      Time            `json:"createdDateTime"`
	ModificationDateTime Time            `json:"modificationDateTime"`
	Priority             *int            `json:"priority"`
	PayloadDescriptors   []Descriptor    `json:"payloadDescriptors"`
	IntervalPeriod       *IntervalPeriod `json:"intervalPeriod"`
	Intervals            []Interval      `json:"intervals"`
	// Duration stands in for that of a single interval that has none.
	Duration string `json:"duration"`
}

// Descriptor gives a payload type its unit and currency.
type Descriptor struct {
	PayloadType string `json:"payloadType"`
	Units       string `json:"units"`
	Currency    string `json:"currency"`
}

// IntervalPeriod is when an interval, or the first of an event's, happens.
type IntervalPeriod struct {
	Start Time `json:"start"`
	// Duration and RandomizeStart are ISO 8601.
	Duration       string `json:"duration"`
	RandomizeStart string `json:"randomizeStart"`
}

// Interval holds the payloads of a span. Its ID is no sequence number.
type Interval struct {
	ID             int             `json:"id"`
	IntervalPeriod *IntervalPeriod `json:"intervalPeriod"`
	Payloads       []Payload       `json:"payloads"`
}

// Payload is values of a type.
type Payload struct {
	Type   string            `json:"type"`
	Values []json.RawMessage `json:"values"`
}

// Time is a time with an offset. The first day of the year 1 (or 0) means now. The zero Time was not given.
type Time struct {
	time.Time
	Now bool
}

// UnmarshalJSON refuses times without an offset.
func (t *Time) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return errors.New("a time is a text")
	}
	*t = Time{}
	if text == "" {
		return nil
	}
	if strings.HasPrefix(text, "0001-01-01") || strings.HasPrefix(text, "0000-01-01") {
		t.Now = true
		return nil
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("time %.40q is not RFC 3339 with an offset", text)
	}
	t.Time = parsed.UTC()
	return nil
}

func (t Time) given() bool { return t.Now || !t.IsZero() }

// ParseEvent reads one event.
func ParseEvent(raw []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(raw, &e); err != nil {
		return Event{}, fmt.Errorf("openadr: event: %w", err)
	}
	if e.ID == "" || len(e.ID) > 128 {
		return Event{}, errors.New("openadr: event: want an id of 1 to 128 bytes")
	}
	for _, r := range e.ID {
		if r < ' ' || r == 0x7f {
			return Event{}, errors.New("openadr: event: its id holds a control character")
		}
	}
	if len(e.Intervals) > maxIntervals {
		return Event{}, fmt.Errorf("openadr: event %s: %d intervals, the most is %d", e.ID, len(e.Intervals), maxIntervals)
	}
	return e, nil
}

const maxIntervals = 4096
