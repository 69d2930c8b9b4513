// Package energycharts reads Energy-Charts of Fraunhofer ISE: the traffic light of
// a grid and the share of renewables in the load, in quarter hours, for the
// present days. It owns that API's fields. It must not know sites, thresholds or
// training.
//
// Times are unix seconds, so that a day of 92 or 100 quarter hours is no special
// case. Values that the API guesses from the past are estimated by their quality.
package energycharts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

const (
	provider    = "energycharts"
	standardURL = "https://api.energy-charts.info"
	quarter     = 15 * time.Minute
)

var limit = fetch.Limit{Every: 2 * time.Second, Burst: 10}

// Config of a Source.
type Config struct {
	Client *fetch.Client
	// BaseURL. Default https://api.energy-charts.info.
	BaseURL string
	// Kind is signals.RenewableShare (default) or signals.TrafficLight.
	Kind signals.Kind
	// Country in two letters, such as de.
	Country string
	// PostalCode narrows the signal to a place in Germany; optional.
	PostalCode string
}

// Source reads one kind for one country.
type Source struct {
	client *fetch.Client
	base   string
	kind   signals.Kind
	unit   signals.Unit
	region string
	query  url.Values
	last   signals.LastForecast
}

var (
	_ signals.Source     = (*Source)(nil)
	_ signals.Historian  = (*Source)(nil)
	_ signals.Forecaster = (*Source)(nil)

	country = regexp.MustCompile(`^[a-z]{2}$`)
	postal  = regexp.MustCompile(`^[0-9]{5}$`)
)

// New checks the configuration; it makes no call.
func New(c Config) (*Source, error) {
	base, err := fetch.BaseURL(c.BaseURL, standardURL)
	if err != nil {
		return nil, fmt.Errorf("energycharts: %w", err)
	}
	if c.Kind == "" {
		c.Kind = signals.RenewableShare
	}
	s := &Source{client: c.Client, base: base, kind: c.Kind, region: c.Country, query: url.Values{"country": {c.Country}}}
	switch c.Kind {
	case signals.RenewableShare:
		s.unit = signals.Percent
	case signals.TrafficLight:
		s.unit = signals.Level
	default:
		return nil, fmt.Errorf("energycharts: kind %q is neither %q nor %q", c.Kind, signals.RenewableShare, signals.TrafficLight)
	}
	switch {
	case c.Client == nil:
		return nil, errors.New("energycharts: no client")
	case !country.MatchString(c.Country):
		return nil, fmt.Errorf("energycharts: country %q is not of two small letters, such as de", c.Country)
	case c.PostalCode != "" && (c.Country != "de" || !postal.MatchString(c.PostalCode)):
		return nil, fmt.Errorf("energycharts: postal code %q is not five digits of country de", c.PostalCode)
	case c.PostalCode != "":
		s.query.Set("postal_code", c.PostalCode)
		s.region += "-" + c.PostalCode
	}
	return s, nil
}

// Latest is the slot of the moment.
func (s *Source) Latest(ctx context.Context) (signals.Reading, error) {
	got, err := s.signal(ctx)
	if err != nil {
		return signals.Reading{}, err
	}
	r, _ := fetch.Present(got.readings, s.client.Clock().Now())
	return r, nil
}

// History is what the answer for the present days holds of the span; the API has
// no other.
func (s *Source) History(ctx context.Context, from, to time.Time) ([]signals.Reading, error) {
	got, err := s.signal(ctx)
	if err != nil {
		return nil, err
	}
	if now := s.client.Clock().Now(); to.After(now) {
		to = now
	}
	return fetch.Between(got.readings, from, to), nil
}

// Forecast is of the share, or the slots of the traffic light to come.
func (s *Source) Forecast(ctx context.Context) (signals.Forecast, error) {
	f, err := s.forecast(ctx)
	return s.last.Keep(f, err, s.client.Clock().Now())
}

func (s *Source) forecast(ctx context.Context) (signals.Forecast, error) {
	var got series
	var err error
	if s.kind == signals.TrafficLight {
		got, err = s.signal(ctx)
	} else {
		got, err = s.ask(ctx, "ren_share_forecast", url.Values{"country": s.query["country"]}, decodeShare)
	}
	if err != nil {
		return signals.Forecast{}, err
	}
	// The API does not say when it made a forecast: not later than received.
	f := signals.Forecast{Kind: s.kind, Unit: s.unit, Region: s.region, Source: provider, Quality: signals.Forecasted}
	if got.substitute {
		f.Quality = signals.Estimated
	}
	now := s.client.Clock().Now()
	for _, r := range got.readings {
		f.GeneratedAt = r.ReceivedTime
		if r.ValidUntil().After(now) && r.Value != nil {
			f.Points = append(f.Points, signals.ForecastPoint{Start: r.PointTime, Duration: r.Period, Value: fetch.Copy(r).Value})
		}
	}
	if len(f.Points) == 0 {
		e := fetch.NoData("the forecast has run out")
		e.Provider, e.Region, e.Endpoint = provider, s.region, "ren_share_forecast"
		return signals.Forecast{}, e
	}
	return f, nil
}

func (s *Source) signal(ctx context.Context) (series, error) {
	return s.ask(ctx, "signal", s.query, s.decodeSignal)
}

func (s *Source) ask(ctx context.Context, endpoint string, query url.Values, decode func([]byte) (columns, error)) (series, error) {
	r := fetch.Request{Provider: provider, Region: s.region, Endpoint: endpoint, Scope: s.region + "|" + string(s.kind) + "|" + endpoint,
		// The kinds decode one answer differently and so do not share it.
		Variant: string(s.kind), URL: s.base + "/" + endpoint + "?" + query.Encode(), Limit: limit, Period: quarter,
		Classify: func(a fetch.Answer) *signals.ProviderError {
			if a.Status != http.StatusUnprocessableEntity && a.Status != http.StatusNotFound {
				return nil
			}
			return &signals.ProviderError{Reason: v1alpha1.ReasonSignalRefused, Permanent: true,
				Detail: fmt.Sprintf("Energy-Charts does not know %s; check country and postal code: %s", s.region, fetch.Remark(a))}
		}}
	return fetch.Get(ctx, s.client, r, func(a fetch.Answer) (fetch.Result[series], error) {
		c, err := decode(a.Body)
		if err != nil {
			return fetch.Result[series]{}, err
		}
		if c.deprecated {
			s.client.Note(provider, s.region, "the endpoint "+endpoint+" is deprecated")
		}
		got, err := s.readings(c, a.Received)
		if err != nil {
			return fetch.Result[series]{}, err
		}
		newest, ok := fetch.Present(got.readings, a.Received)
		if !ok {
			return fetch.Result[series]{}, fetch.NoData("the answer holds no slots")
		}
		return fetch.Result[series]{Value: got, Point: newest.PointTime, Period: newest.Period}, nil
	})
}
