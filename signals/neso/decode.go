package neso

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

type slot struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Intensity *struct {
		Forecast *float64 `json:"forecast"`
		Actual   *float64 `json:"actual"`
	} `json:"intensity"`
}

// node is a slot, or a region around a list of slots.
type node struct {
	slot
	RegionID int             `json:"regionid"`
	Data     json.RawMessage `json:"data"`
}

// longestSlot is far above the half hour of the API.
const longestSlot = 24 * time.Hour

// decode reads all shapes of answers: a list of slots, a region with a list, and
// a list of regions with lists. No slots is no error; expected prefers forecasts
// to measurements.
func (s *Source) decode(body []byte, expected bool, received time.Time) ([]signals.Reading, error) {
	var a struct {
		Data  json.RawMessage `json:"data"`
		Error json.RawMessage `json:"error"`
	}
	if err := fetch.JSON(body, &a); err != nil {
		return nil, err
	}
	if len(a.Error) > 0 && string(a.Error) != "null" {
		return nil, errors.New(fetch.Remark(fetch.Answer{Status: 200, Body: body}))
	}
	slots, err := s.flatten(a.Data, 0)
	if err != nil {
		return nil, err
	}
	var out []signals.Reading
	for _, sl := range slots {
		from, err := fetch.ParseTime(sl.From)
		if err != nil {
			return nil, err
		}
		to, err := fetch.ParseTime(sl.To)
		if err != nil {
			return nil, err
		}
		long := to.Sub(from)
		if long <= 0 || long > longestSlot {
			return nil, fmt.Errorf("a slot from %s to %s", sl.From, sl.To)
		}
		r := signals.Reading{Kind: signals.Average, Unit: signals.GramsPerKWh, Region: s.region, PointTime: from,
			ReceivedTime: received, Period: long, Source: provider, Omitted: sl.Intensity == nil}
		if in := sl.Intensity; in != nil {
			v, q := in.Actual, signals.Good
			if v == nil || expected && in.Forecast != nil {
				v, q = in.Forecast, signals.Forecasted
			}
			r.Value, r.Quality = fetch.Usable(r.Kind, v, q)
		}
		out = append(out, r)
	}
	return fetch.Ordered(out), nil
}

// flatten finds the slots in data, at most two levels down.
func (s *Source) flatten(data json.RawMessage, depth int) ([]slot, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	if depth > 2 {
		return nil, errors.New("the answer nests deeper than regions and slots")
	}
	var list []node
	if err := json.Unmarshal(data, &list); err != nil {
		var one node
		if json.Unmarshal(data, &one) != nil {
			return nil, fmt.Errorf("the answer cannot be read: %w", err)
		}
		list = []node{one}
	}
	var out []slot
	for _, n := range list {
		if s.id != 0 && n.RegionID != 0 && n.RegionID != s.id {
			return nil, fmt.Errorf("the answer is for region %d", n.RegionID)
		}
		if len(n.Data) == 0 {
			out = append(out, n.slot)
			continue
		}
		inner, err := s.flatten(n.Data, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, inner...)
	}
	return out, nil
}
