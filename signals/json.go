package signals

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// wire is Reading in JSON. Value is raw so that null, 0 and absence stay three
// different things.
type wire struct {
	Kind          Kind            `json:"kind"`
	Unit          Unit            `json:"unit"`
	Region        string          `json:"region"`
	Value         json.RawMessage `json:"value,omitempty"`
	PointTime     time.Time       `json:"pointTime"`
	ReceivedTime  *time.Time      `json:"receivedTime,omitempty"`
	PeriodSeconds float64         `json:"periodSeconds"`
	Source        string          `json:"source,omitempty"`
	Quality       Quality         `json:"quality,omitempty"`
	Model         string          `json:"model,omitempty"`
}

var null = []byte("null")

// MarshalJSON writes an explicit 0 as 0, a missing value as null and an omitted
// one not at all.
func (r Reading) MarshalJSON() ([]byte, error) {
	w := wire{
		Kind: r.Kind, Unit: r.Unit, Region: r.Region, PointTime: r.PointTime,
		PeriodSeconds: r.Period.Seconds(), Source: r.Source, Quality: r.Quality, Model: r.Model,
	}
	if !r.ReceivedTime.IsZero() {
		w.ReceivedTime = &r.ReceivedTime
	}
	switch {
	case r.Value != nil:
		v, err := json.Marshal(*r.Value)
		if err != nil {
			return nil, fmt.Errorf("signals: value of region %q: %w", r.Region, err)
		}
		w.Value = v
	case !r.Omitted:
		w.Value = null
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes and validates it. Times need an
// offset (RFC 3339).
func (r *Reading) UnmarshalJSON(b []byte) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("signals: reading: %w", err)
	}
	if most := MaxPeriod.Seconds(); w.PeriodSeconds < 0 || w.PeriodSeconds > most {
		return fmt.Errorf("signals: periodSeconds %v is outside 0 to %v", w.PeriodSeconds, most)
	}
	got := Reading{
		Kind: w.Kind, Unit: w.Unit, Region: w.Region, PointTime: w.PointTime,
		Period: time.Duration(math.Round(w.PeriodSeconds * float64(time.Second))),
		Source: w.Source, Quality: w.Quality, Model: w.Model,
	}
	if w.ReceivedTime != nil {
		got.ReceivedTime = *w.ReceivedTime
	}
	switch {
	case len(w.Value) == 0:
		got.Omitted = true
	case !bytes.Equal(w.Value, null):
		var v float64
		if err := json.Unmarshal(w.Value, &v); err != nil {
			return fmt.Errorf("signals: value of region %q: %w", w.Region, err)
		}
		got.Value = &v
	}
	if err := got.Validate(); err != nil {
		return err
	}
	*r = got
	return nil
}
