package watttime

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

// standardPeriod of a point whose answer does not say it.
const standardPeriod = 5 * time.Minute

// series is an answer of any data endpoint.
type series struct {
	readings  []signals.Reading // by time, in gCO2/kWh or percentiles
	period    time.Duration
	generated time.Time // of a forecast
	refresh   time.Duration
	model     string
	warnings  []string
}

type answer struct {
	Data []point `json:"data"`
	Meta *meta   `json:"meta"`
}

type point struct {
	PointTime string   `json:"point_time"`
	Value     *float64 `json:"value"`
	Imputed   *bool    `json:"imputed_data_used"`
}

// meta is read leniently where answers are known to vary.
type meta struct {
	Region          string          `json:"region"`
	SignalType      string          `json:"signal_type"`
	Period          *float64        `json:"data_point_period_seconds"`
	Units           string          `json:"units"`
	GeneratedAt     string          `json:"generated_at"`
	GeneratedPeriod *float64        `json:"generated_at_period_seconds"`
	Model           json.RawMessage `json:"model"`
	Warnings        json.RawMessage `json:"warnings"`
}

// decode reads the answer to a question for a signal of a region. No points is no
// error.
func decode(body []byte, region string, s Signal, quality signals.Quality, received time.Time) (series, error) {
	var a answer
	if err := fetch.JSON(body, &a); err != nil {
		return series{}, err
	}
	if a.Meta == nil {
		return series{}, errors.New("the answer has no meta, so its unit is not known")
	}
	if a.Meta.Region != "" && a.Meta.Region != region {
		return series{}, fmt.Errorf("the answer is for region %q", a.Meta.Region)
	}
	if a.Meta.SignalType != "" && a.Meta.SignalType != s.signalType() {
		return series{}, fmt.Errorf("the answer is for signal %q instead of %q", a.Meta.SignalType, s.signalType())
	}
	kind, unit, name := s.kind()
	if a.Meta.Units != name {
		return series{}, fmt.Errorf("the unit is %q instead of %q", a.Meta.Units, name)
	}
	out := series{model: modelDate(a.Meta.Model), warnings: texts(a.Meta.Warnings)}
	var err error
	if out.period, err = seconds(a.Meta.Period); err != nil {
		return series{}, err
	}
	if out.refresh, err = seconds(a.Meta.GeneratedPeriod); err != nil {
		return series{}, err
	}
	if a.Meta.GeneratedAt != "" {
		if out.generated, err = fetch.ParseTime(a.Meta.GeneratedAt); err != nil {
			return series{}, err
		}
	}
	for _, p := range a.Data {
		at, err := fetch.ParseTime(p.PointTime)
		if err != nil {
			return series{}, err
		}
		r := signals.Reading{Kind: kind, Unit: unit, Region: region, PointTime: at, ReceivedTime: received,
			Period: out.period, Source: provider, Model: out.model}
		q := quality
		if p.Imputed != nil && *p.Imputed {
			q = signals.Imputed
		}
		r.Value, r.Quality = fetch.Usable(kind, p.Value, q)
		out.readings = append(out.readings, r.Normalized())
	}
	out.readings = fetch.Ordered(out.readings)
	return out, nil
}

// seconds of a period; the standard one if there is none.
func seconds(v *float64) (time.Duration, error) {
	if v == nil || *v == 0 {
		return standardPeriod, nil
	}
	if !(*v >= 1 && *v <= (24*time.Hour).Seconds()) {
		return 0, fmt.Errorf("a period of %v seconds", *v)
	}
	return time.Duration(math.Round(*v)) * time.Second, nil
}

// modelDate of an object with a date, a plain string or nothing.
func modelDate(raw json.RawMessage) string {
	var text string
	var object struct {
		Date string `json:"date"`
	}
	switch {
	case len(raw) == 0:
	case json.Unmarshal(raw, &text) == nil:
		return text
	case json.Unmarshal(raw, &object) == nil:
		return object.Date
	}
	return ""
}

// texts of warnings, which are objects as documented and strings in places.
func texts(raw json.RawMessage) []string {
	if len(raw) == 0 {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	var out []string
	for _, item := range list {
		var text string
		var object struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(item, &text) != nil && json.Unmarshal(item, &object) == nil {
			text = object.Message
		}
		if text != "" {
			out = append(out, text)
		}
	}
	return out
}

// decodeRegion reads the answer of region-from-loc.
func decodeRegion(a fetch.Answer) (fetch.Result[string], error) {
	var body struct {
		Region string `json:"region"`
	}
	if err := fetch.JSON(a.Body, &body); err != nil {
		return fetch.Result[string]{}, err
	}
	if body.Region == "" {
		return fetch.Result[string]{}, errors.New("the answer names no region")
	}
	return fetch.Result[string]{Value: body.Region, Until: a.Received.Add(regionLife)}, nil
}
