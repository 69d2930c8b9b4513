// Package electricitymaps reads the carbon intensity of Electricity Maps' API v3:
// average (flow-traced) intensity in gCO2e/kWh, with lifecycle or direct factors,
// its history and forecast. It owns that API's fields and what its errors mean. It
// must not know sites, thresholds or training.
//
// The values are averages: they are never marginal intensities, and lifecycle and
// direct values are told apart by the readings' Model.
package electricitymaps

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

const (
	provider    = "electricitymaps"
	standardURL = "https://api.electricitymap.org"
	endpoints   = "v3/carbon-intensity/"
	// historyPiece is the longest span of one call.
	historyPiece = 10 * 24 * time.Hour
	historyGood  = 5 * time.Minute
)

// limit fits the personal plan's 50 calls an hour.
var limit = fetch.Limit{Every: 72 * time.Second, Burst: 10}

// Factor says what counts as an emission.
type Factor string

// The factors.
const (
	Lifecycle Factor = "lifecycle"
	Direct    Factor = "direct"
)

// Config of a Source.
type Config struct {
	Client *fetch.Client
	Token  *fetch.Secret
	// BaseURL without /v3. Default https://api.electricitymap.org.
	BaseURL string
	// Zone, such as DE or US-CAL-CISO; or the place by which it is found.
	Zone                string
	Latitude, Longitude *float64
	// Factor. Default Lifecycle.
	Factor Factor
	// Period of the points: 5 or 15 minutes or an hour, as the plan has it.
	// Default an hour.
	Period time.Duration
	// HorizonHours of forecasts: 6, 24, 48 or 72. Default 24.
	HorizonHours int
	// NoEstimates refuses values that are not measured.
	NoEstimates bool
	// Limit of calls of the plan. Default one each 72 s, ten at once.
	Limit fetch.Limit
}

var granularities = map[time.Duration]string{5 * time.Minute: "5_minutes", 15 * time.Minute: "15_minutes", time.Hour: "hourly"}

// Source reads one zone.
type Source struct {
	config Config
	auth   fetch.Authorizer
	zone   string // for people
	last   signals.LastForecast
}

var (
	_ signals.Source     = (*Source)(nil)
	_ signals.Historian  = (*Source)(nil)
	_ signals.Forecaster = (*Source)(nil)
)

// New checks the configuration; it makes no call.
func New(c Config) (*Source, error) {
	var err error
	if c.BaseURL, err = fetch.BaseURL(c.BaseURL, standardURL); err != nil {
		return nil, fmt.Errorf("electricitymaps: %w", err)
	}
	if c.Factor == "" {
		c.Factor = Lifecycle
	}
	if c.Period == 0 {
		c.Period = time.Hour
	}
	if c.HorizonHours == 0 {
		c.HorizonHours = 24
	}
	if c.Limit == (fetch.Limit{}) {
		c.Limit = limit
	}
	switch {
	case c.Client == nil || c.Token == nil:
		return nil, errors.New("electricitymaps: a client and a token are needed")
	case c.Factor != Lifecycle && c.Factor != Direct:
		return nil, fmt.Errorf("electricitymaps: factor %q is neither lifecycle nor direct", c.Factor)
	case granularities[c.Period] == "":
		return nil, fmt.Errorf("electricitymaps: period %s is none of 5m, 15m and 1h", c.Period)
	case c.HorizonHours != 6 && c.HorizonHours != 24 && c.HorizonHours != 48 && c.HorizonHours != 72:
		return nil, fmt.Errorf("electricitymaps: horizon of %d hours is none of 6, 24, 48 and 72", c.HorizonHours)
	case (c.Latitude == nil) != (c.Longitude == nil):
		return nil, errors.New("electricitymaps: latitude and longitude go together")
	case (c.Zone == "") == (c.Latitude == nil):
		return nil, errors.New("electricitymaps: give a zone, such as DE, or latitude and longitude")
	case c.Latitude != nil && !(*c.Latitude >= -90 && *c.Latitude <= 90 && *c.Longitude >= -180 && *c.Longitude <= 180):
		return nil, fmt.Errorf("electricitymaps: %v, %v is no place on earth", *c.Latitude, *c.Longitude)
	}
	s := &Source{config: c, auth: fetch.HeaderAuth("auth-token", "", c.Token), zone: c.Zone}
	if s.zone == "" {
		s.zone = coordinate(*c.Latitude) + "," + coordinate(*c.Longitude)
	}
	return s, nil
}

func coordinate(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Latest is the newest reading; an estimated one says so in its quality.
func (s *Source) Latest(ctx context.Context) (signals.Reading, error) {
	got, err := fetch.Get(ctx, s.config.Client, s.request("latest", nil), func(a fetch.Answer) (fetch.Result[signals.Reading], error) {
		d, err := s.decodeLatest(a.Body, a.Received)
		return fetch.Result[signals.Reading]{Value: d, Point: d.PointTime, Period: d.Period}, err
	})
	return fetch.Copy(got), err
}

// History is asked in pieces of ten days.
func (s *Source) History(ctx context.Context, from, to time.Time) ([]signals.Reading, error) {
	var out []signals.Reading
	for _, p := range fetch.Pieces(from.UTC().Truncate(s.config.Period), to.UTC(), historyPiece) {
		r := s.request("past-range", url.Values{"start": {p[0].Format(time.RFC3339)}, "end": {p[1].Format(time.RFC3339)}})
		got, err := fetch.Get(ctx, s.config.Client, r, func(a fetch.Answer) (fetch.Result[[]signals.Reading], error) {
			d, err := s.decodeHistory(a.Body, a.Received)
			return fetch.Result[[]signals.Reading]{Value: d, Until: a.Received.Add(historyGood)}, err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, fetch.Between(got, from, to)...)
	}
	return fetch.Ordered(out), nil
}

// Forecast implements signals.Forecaster; not all plans have one.
func (s *Source) Forecast(ctx context.Context) (signals.Forecast, error) {
	r := s.request("forecast", url.Values{"horizonHours": {strconv.Itoa(s.config.HorizonHours)}})
	f, err := fetch.Get(ctx, s.config.Client, r, func(a fetch.Answer) (fetch.Result[signals.Forecast], error) {
		d, err := s.decodeForecast(a.Body)
		return fetch.Result[signals.Forecast]{Value: d, Point: d.GeneratedAt, Period: s.config.Period}, err
	})
	return s.last.Keep(f.Clone(), err, s.config.Client.Clock().Now())
}

func (s *Source) request(endpoint string, query url.Values) fetch.Request {
	if query == nil {
		query = url.Values{}
	}
	if s.config.Zone != "" {
		query.Set("zone", s.config.Zone)
	} else {
		query.Set("lat", coordinate(*s.config.Latitude))
		query.Set("lon", coordinate(*s.config.Longitude))
	}
	query.Set("emissionFactorType", string(s.config.Factor))
	query.Set("temporalGranularity", granularities[s.config.Period])
	if s.config.NoEstimates {
		query.Set("disableEstimations", "true")
	}
	return fetch.Request{
		Provider: provider, Region: s.zone, Endpoint: endpoints + endpoint,
		URL:  s.config.BaseURL + "/" + endpoints + endpoint + "?" + query.Encode(),
		Auth: s.auth, Limit: s.config.Limit, Period: s.config.Period,
		Classify: func(a fetch.Answer) *signals.ProviderError { return s.classify(endpoint, a) },
	}
}

func (s *Source) classify(endpoint string, a fetch.Answer) *signals.ProviderError {
	switch {
	case a.Status == http.StatusUnauthorized:
		return &signals.ProviderError{Reason: v1alpha1.ReasonSignalUnauthorized, Permanent: true,
			Detail: "the token was refused; check it, and that it is this zone's: " + fetch.Remark(a)}
	case a.Status == http.StatusForbidden && fetch.IsJSON(a):
		return &signals.ProviderError{Reason: v1alpha1.ReasonSignalNotCovered, Permanent: true,
			Detail: fmt.Sprintf("the plan of this token does not cover the %s of zone %s; change the plan or the zone: %s",
				endpoint, s.zone, fetch.Remark(a))}
	case a.Status == http.StatusNotFound && fetch.IsJSON(a):
		return &signals.ProviderError{Reason: v1alpha1.ReasonSignalNoData, Detail: fetch.Remark(a)}
	}
	return nil
}
