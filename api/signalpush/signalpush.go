// Package signalpush is what a sender pushes to POST /v1/signals, and the answer.
//
// The body is a Standard Webhooks envelope, or the same data in a CloudEvent
// (structured, binary or a batch). The unit is mandatory. A value is a number,
// null (the source says that there is none) or left out (the source says
// nothing); neither of the latter is a zero. Times are RFC 3339 with an offset.
//
//	POST /v1/signals
//	Content-Type: application/json
//	webhook-id: msg_2KWPBgLlAfxdpx2AI54pPJ85f4W
//	webhook-timestamp: 1772366400
//	webhook-signature: v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=
//
//	{
//	  "type": "energy.signal.observed",
//	  "timestamp": "2026-03-01T12:00:00Z",
//	  "data": {
//	    "site": "lisboa", "kind": "marginal", "unit": "gCO2/kWh",
//	    "points": [{"start": "2026-03-01T12:00:00Z", "duration_s": 300, "value": 87}],
//	    "generated_at": "2026-03-01T12:00:10Z"
//	  }
//	}
//
// Answers: 202 stored, 200 duplicate, superseded or expired (ignored), 400 headers
// or body that cannot be read, 401 signature or timestamp, 403 a site or region
// that the source may not speak for, 408 a body that came too slowly, 409 an id
// used for something else, 413, 415, 422 a message that cannot be right, 429 and
// 503 with Retry-After. A sender repeats 408, 429 and 5xx with the same id.
package signalpush

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Path of the endpoint.
const Path = "/v1/signals"

// The limits of one request.
const (
	MaxBody  = 256 << 10
	MaxBatch = 32
)

// HeaderSource optionally names the sender, so that the receiver need not look
// for the one whose secret fits.
const HeaderSource = "girassol-source"

// The content types.
const (
	ContentJSON       = "application/json"
	ContentCloudEvent = "application/cloudevents+json"
	ContentBatch      = "application/cloudevents-batch+json"
)

// Type says what a message is.
type Type string

// The types.
const (
	Observed           Type = "energy.signal.observed"
	Forecast           Type = "energy.signal.forecast"
	CurtailmentStarted Type = "energy.curtailment.started"
	CurtailmentEnded   Type = "energy.curtailment.ended"
	Override           Type = "energy.override"
)

// KindAvailablePower is a kind besides the kinds of signals: the most power that
// the site may draw, in UnitWatts or UnitKilowatts.
const (
	KindAvailablePower = "available_power"
	UnitWatts          = "W"
	UnitKilowatts      = "kW"
)

// Envelope is a body of ContentJSON.
type Envelope struct {
	Type Type `json:"type"`
	// Timestamp stands in for a generated_at that data does not have.
	Timestamp *Time           `json:"timestamp,omitempty"`
	Data      json.RawMessage `json:"data"`
}

// Signal is the data of Observed and Forecast. Either Site or Region is given.
type Signal struct {
	Site   string  `json:"site,omitempty"`
	Region string  `json:"region,omitempty"`
	Kind   string  `json:"kind"`
	Unit   string  `json:"unit"`
	Points []Point `json:"points"`
	// GeneratedAt orders messages: the newest wins, whatever arrives last.
	GeneratedAt *Time `json:"generated_at,omitempty"`
	// ValidUntil: after it the message is ignored.
	ValidUntil *Time `json:"valid_until,omitempty"`
	Estimated  bool  `json:"estimated,omitempty"`
}

// Point holds from Start for DurationSeconds.
type Point struct {
	Start           *Time   `json:"start"`
	DurationSeconds float64 `json:"duration_s"`
	Value           Value   `json:"value,omitzero"`
}

// Curtailment is the data of CurtailmentStarted and CurtailmentEnded. Curtailments
// of one sender and site with different ids are independent.
type Curtailment struct {
	Site   string `json:"site,omitempty"`
	Region string `json:"region,omitempty"`
	ID     string `json:"id,omitempty"`
	// Start defaults to GeneratedAt. Without End the receiver sets one.
	Start *Time `json:"start,omitempty"`
	End   *Time `json:"end,omitempty"`
	// LimitWatts is the most that the site may draw; without it, nothing.
	LimitWatts  *float64 `json:"limit_w,omitempty"`
	Reason      string   `json:"reason,omitempty"`
	GeneratedAt *Time    `json:"generated_at,omitempty"`
	ValidUntil  *Time    `json:"valid_until,omitempty"`
}

// Action of an override.
type Action string

// The actions.
const (
	ActionOn   Action = "on"
	ActionOff  Action = "off"
	ActionAuto Action = "auto"
)

// OverrideData is the data of Override: a person's word, which wins over the
// signals until it ends. ValidUntil is mandatory but for ActionAuto, which ends an
// override.
type OverrideData struct {
	Site        string `json:"site,omitempty"`
	Region      string `json:"region,omitempty"`
	Action      Action `json:"action"`
	Reason      string `json:"reason,omitempty"`
	GeneratedAt *Time  `json:"generated_at,omitempty"`
	ValidUntil  *Time  `json:"valid_until,omitempty"`
}

// CloudEvent is a body of ContentCloudEvent, and an element of ContentBatch.
// Extension attributes are allowed and not looked at.
type CloudEvent struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            Type            `json:"type"`
	Time            *Time           `json:"time,omitempty"`
	Subject         string          `json:"subject,omitempty"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	Data            json.RawMessage `json:"data,omitempty"`
	DataBase64      []byte          `json:"data_base64,omitempty"`
}

// Value tells a number, null and absence apart. The zero Value is absent.
type Value struct {
	// Given: the field was there.
	Given bool
	// Number is nil for null.
	Number *float64
}

// Number is a given value.
func Number(v float64) Value { return Value{Given: true, Number: &v} }

// Null is an explicit null.
func Null() Value { return Value{Given: true} }

// IsZero leaves an absent value out.
func (v Value) IsZero() bool { return !v.Given }

// MarshalJSON writes the number or null.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.Number) }

// UnmarshalJSON reads a number or null.
func (v *Value) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*v = Null()
		return nil
	}
	if len(b) > 0 && b[0] == '"' {
		return fmt.Errorf("a value is a number or null, not the text %.40s", b)
	}
	var number float64
	if err := json.Unmarshal(b, &number); err != nil {
		return fmt.Errorf("value %.40s is no number that can be held", b)
	}
	*v = Number(number)
	return nil
}

// Time is a time whose JSON must carry an offset from UTC.
type Time struct{ time.Time }

// At makes a Time.
func At(t time.Time) *Time { return &Time{t} }

// UnmarshalJSON refuses times without an offset, which mean another moment in
// every zone.
func (t *Time) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return errors.New(`a time is a text like "2026-03-01T12:00:00+01:00"`)
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		if _, err := time.Parse("2006-01-02T15:04:05", text); err == nil {
			return fmt.Errorf("time %s carries no offset: write Z or one like +01:00", text)
		}
		return fmt.Errorf("time %.40q is not RFC 3339", text)
	}
	t.Time = parsed
	return nil
}

// Result is what became of a message.
type Result string

// The results.
const (
	Stored     Result = "stored"
	Duplicate  Result = "duplicate"
	Superseded Result = "superseded"
	Expired    Result = "expired"
	Refused    Result = "refused"
)

// Answer is the body of every answer to a POST.
type Answer struct {
	// Result of the message; of a batch, Stored if anything was.
	Result Result `json:"result"`
	// Reason is a word for a refusal.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Events are the results of a batch, in its order.
	Events []Result `json:"events,omitempty"`
}
