package electricitymaps

import (
	"fmt"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

type point struct {
	Zone      string   `json:"zone"`
	Intensity *float64 `json:"carbonIntensity"`
	Time      string   `json:"datetime"`
	Factor    string   `json:"emissionFactorType"`
	Estimated *bool    `json:"isEstimated"`
}

// reading of a point; zone is what the answer says, if the point does not.
func (s *Source) reading(p point, zone string, received time.Time) (signals.Reading, error) {
	if p.Zone != "" {
		zone = p.Zone
	}
	zone, err := s.checked(zone, p.Factor)
	if err != nil {
		return signals.Reading{}, err
	}
	at, err := fetch.ParseTime(p.Time)
	if err != nil {
		return signals.Reading{}, err
	}
	r := signals.Reading{Kind: signals.Average, Unit: signals.GramsPerKWh, Region: zone, PointTime: at, ReceivedTime: received,
		Period: s.config.Period, Source: provider, Model: string(s.config.Factor)}
	q := signals.Good
	if p.Estimated != nil && *p.Estimated {
		q = signals.Estimated
	}
	r.Value, r.Quality = fetch.Usable(r.Kind, p.Intensity, q)
	return r, nil
}

// checked refuses another zone's or another factor's values.
func (s *Source) checked(zone, factor string) (string, error) {
	if zone == "" {
		zone = s.zone
	}
	if s.config.Zone != "" && zone != s.config.Zone {
		return "", fmt.Errorf("the answer is for zone %q", zone)
	}
	if factor != "" && factor != string(s.config.Factor) {
		return "", fmt.Errorf("the answer has %q factors instead of %q", factor, s.config.Factor)
	}
	return zone, nil
}

func (s *Source) decodeLatest(body []byte, received time.Time) (signals.Reading, error) {
	var p point
	if err := fetch.JSON(body, &p); err != nil {
		return signals.Reading{}, err
	}
	if p.Time == "" && p.Intensity == nil {
		return signals.Reading{}, fetch.NoData("the answer holds no point")
	}
	return s.reading(p, "", received)
}

// decodeHistory reads past-range, whose points are in data, and history. No
// points is no error.
func (s *Source) decodeHistory(body []byte, received time.Time) ([]signals.Reading, error) {
	var a struct {
		Zone    string  `json:"zone"`
		Data    []point `json:"data"`
		History []point `json:"history"`
	}
	if err := fetch.JSON(body, &a); err != nil {
		return nil, err
	}
	var out []signals.Reading
	for _, p := range append(a.Data, a.History...) {
		r, err := s.reading(p, a.Zone, received)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return fetch.Ordered(out), nil
}

func (s *Source) decodeForecast(body []byte) (signals.Forecast, error) {
	var a struct {
		Zone     string  `json:"zone"`
		Forecast []point `json:"forecast"`
		Updated  string  `json:"updatedAt"`
	}
	if err := fetch.JSON(body, &a); err != nil {
		return signals.Forecast{}, err
	}
	if len(a.Forecast) == 0 {
		return signals.Forecast{}, fetch.NoData("the forecast holds no points")
	}
	f := signals.Forecast{Kind: signals.Average, Unit: signals.GramsPerKWh, Source: provider, Model: string(s.config.Factor),
		Quality: signals.Forecasted}
	var err error
	if f.Region, err = s.checked(a.Zone, ""); err != nil {
		return signals.Forecast{}, err
	}
	if f.GeneratedAt, err = fetch.ParseTime(a.Updated); err != nil {
		return signals.Forecast{}, err
	}
	for _, p := range a.Forecast {
		r, err := s.reading(p, a.Zone, time.Time{})
		if err != nil {
			return signals.Forecast{}, err
		}
		f.Points = append(f.Points, signals.ForecastPoint{Start: r.PointTime, Duration: r.Period, Value: r.Value})
	}
	f.Points = fetch.OrderedPoints(f.Points)
	return f, nil
}
