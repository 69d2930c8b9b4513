package watttime

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

// Signal is what of WattTime to read.
type Signal string

// The signals.
const (
	// Marginal intensity, co2_moer.
	Marginal Signal = "marginal"
	// Average intensity, co2_aoer; it has no forecast.
	Average Signal = "average"
	// Index is the percentile of the present marginal intensity, 100 dirty. It
	// has neither history nor forecast, and is open to free accounts.
	Index Signal = "index"
)

func (s Signal) signalType() string {
	if s == Average {
		return "co2_aoer"
	}
	return "co2_moer"
}

// kind, our unit and WattTime's name of the unit.
func (s Signal) kind() (signals.Kind, signals.Unit, string) {
	switch s {
	case Average:
		return signals.Average, signals.PoundsPerMWh, "lbs_co2_per_mwh"
	case Index:
		return signals.Percentile, signals.PercentileOf, "percentile"
	}
	return signals.Marginal, signals.PoundsPerMWh, "lbs_co2_per_mwh"
}

const (
	// regionLife: borders move.
	regionLife = 30 * 24 * time.Hour
	// historyPiece is the longest span of one call.
	historyPiece = 32 * 24 * time.Hour
	// historyGood is how long the answer to the same span is shared.
	historyGood = 5 * time.Minute
	// tail is how far back the newest historical point is looked for.
	tail        = 24 * time.Hour
	mostHorizon = 72
)

// Config of a Source.
type Config struct {
	Account *Account
	// Signal. Default Marginal.
	Signal Signal
	// Region, such as CAISO_NORTH; or the place by which WattTime names it, asked
	// anew every month. There is no default region.
	Region              string
	Latitude, Longitude *float64
	// Model date; empty is the newest, whose change can shift the level.
	Model string
	// HorizonHours of forecasts, 1 to 72. Default 24.
	HorizonHours int
	// Settled reads the present from the history, which is more accurate and
	// later, instead of the forecast of the moment. Average is always settled.
	Settled bool
}

// Source reads one signal of one region.
type Source struct {
	config Config
	client *fetch.Client
	last   signals.LastForecast
}

var (
	_ signals.Source     = (*Source)(nil)
	_ signals.Historian  = (*Source)(nil)
	_ signals.Forecaster = (*Source)(nil)
	_ fetch.Renewer      = (*Account)(nil)
)

// New checks the configuration; it makes no call.
func New(c Config) (*Source, error) {
	if c.Signal == "" {
		c.Signal = Marginal
	}
	if c.HorizonHours == 0 {
		c.HorizonHours = 24
	}
	switch {
	case c.Account == nil:
		return nil, errors.New("watttime: no account")
	case c.Signal != Marginal && c.Signal != Average && c.Signal != Index:
		return nil, fmt.Errorf("watttime: signal %q is none of marginal, average and index", c.Signal)
	case c.HorizonHours < 1 || c.HorizonHours > mostHorizon:
		return nil, fmt.Errorf("watttime: horizon of %d hours is outside 1 to %d", c.HorizonHours, mostHorizon)
	case (c.Latitude == nil) != (c.Longitude == nil):
		return nil, errors.New("watttime: latitude and longitude go together")
	case (c.Region == "") == (c.Latitude == nil):
		return nil, errors.New("watttime: give a region, such as CAISO_NORTH, or latitude and longitude")
	case c.Latitude != nil && !(*c.Latitude >= -90 && *c.Latitude <= 90 && *c.Longitude >= -180 && *c.Longitude <= 180):
		return nil, fmt.Errorf("watttime: %v, %v is no place on earth", *c.Latitude, *c.Longitude)
	}
	if c.Signal == Average {
		c.Settled = true
	}
	return &Source{config: c, client: c.Account.client}, nil
}

// Region is the configured region, or the one of the place.
func (s *Source) Region(ctx context.Context) (string, error) {
	if s.config.Region != "" {
		return s.config.Region, nil
	}
	lat, lon := coordinate(*s.config.Latitude), coordinate(*s.config.Longitude)
	r := s.request(lat+","+lon, "v3/region-from-loc", url.Values{"latitude": {lat}, "longitude": {lon}})
	r.Classify = func(a fetch.Answer) *signals.ProviderError {
		switch a.Status {
		case http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity:
			return &signals.ProviderError{Reason: v1alpha1.ReasonSignalNotCovered, Permanent: true,
				Detail: "no region of WattTime lies there: " + fetch.Remark(a)}
		}
		return nil
	}
	return fetch.Get(ctx, s.client, r, decodeRegion)
}

func coordinate(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Latest is the newest reading.
func (s *Source) Latest(ctx context.Context) (signals.Reading, error) {
	region, err := s.Region(ctx)
	if err != nil {
		return signals.Reading{}, err
	}
	endpoint, query, quality := "v3/forecast", url.Values{"region": {region}, "horizon_hours": {"0"}}, signals.Estimated
	switch {
	case s.config.Signal == Index:
		endpoint, query, quality = "v3/signal-index", url.Values{"region": {region}}, signals.Good
	case s.config.Settled:
		// In whole hours, so that all who ask within one ask the same.
		hour := s.client.Clock().Now().UTC().Truncate(time.Hour)
		endpoint, query, quality = "v3/historical", span(region, hour.Add(-tail), hour.Add(time.Hour)), signals.Good
	}
	r := s.request(region, endpoint, query)
	got, err := fetch.Get(ctx, s.client, r, func(a fetch.Answer) (fetch.Result[series], error) {
		d, err := decode(a.Body, region, s.config.Signal, quality, a.Received)
		if err != nil {
			return fetch.Result[series]{}, err
		}
		newest, ok := fetch.Present(d.readings, a.Received)
		if !ok {
			return fetch.Result[series]{}, fetch.NoData("the answer holds no points")
		}
		return fetch.Result[series]{Value: d, Point: newest.PointTime, Period: newest.Period}, nil
	})
	if err != nil {
		return signals.Reading{}, err
	}
	s.remark(region, got)
	newest, _ := fetch.Present(got.readings, s.client.Clock().Now())
	return newest, nil
}

// History is asked in pieces of 32 days. Revisions of late data show in later
// answers.
func (s *Source) History(ctx context.Context, from, to time.Time) ([]signals.Reading, error) {
	if s.config.Signal == Index {
		return nil, s.lacks("v3/historical", "the index has no history; read the marginal intensity and rank it")
	}
	region, err := s.Region(ctx)
	if err != nil {
		return nil, err
	}
	var out []signals.Reading
	for _, p := range fetch.Pieces(from.UTC().Truncate(time.Second), to.UTC(), historyPiece) {
		// Both ends count: the second before the end keeps its point out.
		last := p[1].Add(-time.Nanosecond).Truncate(time.Second)
		r := s.request(region, "v3/historical", span(region, p[0], last))
		got, err := fetch.Get(ctx, s.client, r, func(a fetch.Answer) (fetch.Result[series], error) {
			d, err := decode(a.Body, region, s.config.Signal, signals.Good, a.Received)
			return fetch.Result[series]{Value: d, Until: a.Received.Add(historyGood)}, err
		})
		if err != nil {
			return nil, err
		}
		s.remark(region, got)
		out = append(out, fetch.Between(got.readings, from, to)...)
	}
	return fetch.Ordered(out), nil
}

// Forecast implements signals.Forecaster.
func (s *Source) Forecast(ctx context.Context) (signals.Forecast, error) {
	if s.config.Signal != Marginal {
		return signals.Forecast{}, s.lacks("v3/forecast", "only the marginal intensity has a forecast")
	}
	f, err := s.forecast(ctx)
	return s.last.Keep(f, err, s.client.Clock().Now())
}

func (s *Source) forecast(ctx context.Context) (signals.Forecast, error) {
	region, err := s.Region(ctx)
	if err != nil {
		return signals.Forecast{}, err
	}
	query := url.Values{"region": {region}, "horizon_hours": {strconv.Itoa(s.config.HorizonHours)}}
	got, err := fetch.Get(ctx, s.client, s.request(region, "v3/forecast", query), func(a fetch.Answer) (fetch.Result[series], error) {
		d, err := decode(a.Body, region, s.config.Signal, signals.Forecasted, a.Received)
		if err != nil {
			return fetch.Result[series]{}, err
		}
		if len(d.readings) == 0 {
			return fetch.Result[series]{}, fetch.NoData("the forecast holds no points")
		}
		if d.generated.IsZero() {
			return fetch.Result[series]{}, errors.New("the forecast does not say when it was made")
		}
		return fetch.Result[series]{Value: d, Point: d.generated, Period: d.refresh}, nil
	})
	if err != nil {
		return signals.Forecast{}, err
	}
	s.remark(region, got)
	first := got.readings[0]
	f := signals.Forecast{Kind: first.Kind, Unit: first.Unit, Region: region, GeneratedAt: got.generated, Source: provider,
		Model: got.model, Quality: signals.Forecasted}
	for _, p := range got.readings {
		f.Points = append(f.Points, signals.ForecastPoint{Start: p.PointTime, Duration: p.Period, Value: fetch.Copy(p).Value})
	}
	f.Points = fetch.OrderedPoints(f.Points)
	return f, nil
}

func span(region string, from, to time.Time) url.Values {
	return url.Values{"region": {region}, "start": {from.Format(time.RFC3339)}, "end": {to.Format(time.RFC3339)}}
}

func (s *Source) request(region, endpoint string, query url.Values) fetch.Request {
	query.Set("signal_type", s.config.Signal.signalType())
	if s.config.Model != "" && endpoint != "v3/region-from-loc" && endpoint != "v3/signal-index" {
		query.Set("model", s.config.Model)
	}
	return fetch.Request{
		Provider: provider, Region: region, Endpoint: endpoint,
		Scope: strings.Join([]string{region, string(s.config.Signal), endpoint}, "|"),
		URL:   s.config.Account.base + "/" + endpoint + "?" + query.Encode(),
		Auth:  s.config.Account, Limit: dataLimit, Period: standardPeriod,
		Classify: func(a fetch.Answer) *signals.ProviderError {
			if a.Status != http.StatusForbidden || !fetch.IsJSON(a) && !strings.Contains(strings.ToLower(string(a.Body)), "scope") {
				return nil
			}
			return &signals.ProviderError{Reason: v1alpha1.ReasonSignalNotCovered, Permanent: true,
				Detail: fmt.Sprintf("the plan of this account does not cover %s of region %s at %s; change the plan or the region: %s",
					s.config.Signal.signalType(), region, endpoint, fetch.Remark(a))}
		},
	}
}

func (s *Source) remark(region string, d series) {
	for _, w := range d.warnings {
		s.client.Note(provider, region, w)
	}
}

// lacks is a question that WattTime has no answer to.
func (s *Source) lacks(endpoint, why string) error {
	return &signals.ProviderError{Provider: provider, Region: s.config.Region, Endpoint: endpoint,
		Reason: v1alpha1.ReasonSignalNotCovered, Permanent: true, Detail: why}
}
