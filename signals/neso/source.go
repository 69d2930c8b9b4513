// Package neso reads the Carbon Intensity API of the National Energy System
// Operator: the average intensity of Great Britain or one of its regions in
// half-hour slots, in gCO2/kWh. It owns that API's fields and its oddities. It
// must not know sites, thresholds or training.
//
// The data is by the NESO Carbon Intensity API under CC BY 4.0.
//
// A slot's value is what was measured, where there is a measurement, else what
// was forecast, which its quality says; regions are only ever forecast. A
// forecast of one slot changes until the slot has passed.
package neso

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

const (
	provider    = "neso"
	standardURL = "https://api.carbonintensity.org.uk"
	halfHour    = 30 * time.Minute
	// historyPiece is the longest span of one call.
	historyPiece = 14 * 24 * time.Hour
	historyGood  = 5 * time.Minute
	// minutes is the one form of a time that the API takes.
	minutes = "2006-01-02T15:04Z"
)

var limit = fetch.Limit{Every: time.Second, Burst: 10}

// mostRegion is the number of the last region; England, Scotland and Wales are
// the last three.
const mostRegion = 17

// Config of a Source; without region and postcode it reads Great Britain.
type Config struct {
	Client *fetch.Client
	// BaseURL. Default https://api.carbonintensity.org.uk.
	BaseURL string
	// RegionID is 1 to 17.
	RegionID int
	// Postcode is the outward part, such as RG10.
	Postcode string
}

// Source reads one region.
type Source struct {
	client *fetch.Client
	base   string
	// suffix selects the region at the end of a path, "" for the nation.
	suffix string
	region string
	id     int // of the region, 0 if not known
	last   signals.LastForecast
}

var (
	_ signals.Source     = (*Source)(nil)
	_ signals.Historian  = (*Source)(nil)
	_ signals.Forecaster = (*Source)(nil)

	outward = regexp.MustCompile(`^[A-Z]{1,2}[0-9][0-9A-Z]?$`)
)

// New checks the configuration; it makes no call.
func New(c Config) (*Source, error) {
	base, err := fetch.BaseURL(c.BaseURL, standardURL)
	if err != nil {
		return nil, fmt.Errorf("neso: %w", err)
	}
	s := &Source{client: c.Client, base: base, region: "GB"}
	code := strings.ToUpper(strings.TrimSpace(c.Postcode))
	switch {
	case c.Client == nil:
		return nil, errors.New("neso: no client")
	case c.RegionID != 0 && code != "":
		return nil, errors.New("neso: give a region or a postcode, not both")
	case c.RegionID < 0 || c.RegionID > mostRegion:
		return nil, fmt.Errorf("neso: region %d is outside 1 to %d", c.RegionID, mostRegion)
	case code != "" && !outward.MatchString(code):
		return nil, fmt.Errorf("neso: postcode %q is not the outward part of one, such as RG10", c.Postcode)
	case c.RegionID != 0:
		s.suffix, s.region, s.id = fmt.Sprintf("/regionid/%d", c.RegionID), fmt.Sprintf("GB-%d", c.RegionID), c.RegionID
	case code != "":
		s.suffix, s.region = "/postcode/"+url.PathEscape(code), "GB-"+code
	}
	return s, nil
}

// Latest is the slot of the moment.
func (s *Source) Latest(ctx context.Context) (signals.Reading, error) {
	path, endpoint := "/intensity", "intensity"
	if s.suffix != "" {
		path, endpoint = "/regional"+s.suffix, "regional"
	}
	got, err := s.slots(ctx, endpoint, path, time.Time{})
	if err != nil {
		return signals.Reading{}, err
	}
	r, _ := fetch.Present(got, s.client.Clock().Now())
	return r, nil
}

// History is asked in pieces of a fortnight. Slots without a measurement, the
// newest ones among them, are forecasts by their quality.
func (s *Source) History(ctx context.Context, from, to time.Time) ([]signals.Reading, error) {
	var out []signals.Reading
	for _, p := range fetch.Pieces(from.UTC().Truncate(halfHour), to.UTC(), historyPiece) {
		path := "/intensity/" + p[0].Format(minutes) + "/" + p[1].Add(time.Minute-1).Format(minutes)
		endpoint := "intensity/from/to"
		if s.suffix != "" {
			path, endpoint = "/regional"+path+s.suffix, "regional/intensity/from/to"
		}
		got, err := s.slots(ctx, endpoint, path, s.client.Clock().Now().Add(historyGood))
		if err != nil {
			return nil, err
		}
		out = append(out, fetch.Between(got, from, to)...)
	}
	return fetch.Ordered(out), nil
}

// Forecast reaches up to 48 hours; it may end earlier.
func (s *Source) Forecast(ctx context.Context) (signals.Forecast, error) {
	now := s.client.Clock().Now()
	f, err := s.forecast(ctx, now)
	return s.last.Keep(f, err, now)
}

func (s *Source) forecast(ctx context.Context, now time.Time) (signals.Forecast, error) {
	slot := now.UTC().Truncate(halfHour)
	// The API begins with the slot before, which is left out below.
	path, endpoint := "/intensity/"+slot.Format(minutes)+"/fw48h", "intensity/from/fw48h"
	if s.suffix != "" {
		path, endpoint = "/regional"+path+s.suffix, "regional/intensity/from/fw48h"
	}
	got, err := fetch.Get(ctx, s.client, s.request(endpoint, path), func(a fetch.Answer) (fetch.Result[signals.Forecast], error) {
		rs, err := s.decode(a.Body, true, a.Received)
		if err != nil {
			return fetch.Result[signals.Forecast]{}, err
		}
		// The API does not say when it made a forecast: not later than now.
		f := signals.Forecast{Kind: signals.Average, Unit: signals.GramsPerKWh, Region: s.region, GeneratedAt: a.Received,
			Source: provider, Quality: signals.Forecasted}
		for _, r := range rs {
			if r.ValidUntil().After(slot) && r.Value != nil {
				f.Points = append(f.Points, signals.ForecastPoint{Start: r.PointTime, Duration: r.Period, Value: r.Value})
			}
		}
		f.Points = fetch.OrderedPoints(f.Points)
		if len(f.Points) == 0 {
			return fetch.Result[signals.Forecast]{}, fetch.NoData("the forecast has run out")
		}
		return fetch.Result[signals.Forecast]{Value: f, Point: slot, Period: halfHour}, nil
	})
	return got.Clone(), err
}

// slots asks for slots; until is how long the answer is good, zero for the slot.
func (s *Source) slots(ctx context.Context, endpoint, path string, until time.Time) ([]signals.Reading, error) {
	return fetch.Get(ctx, s.client, s.request(endpoint, path), func(a fetch.Answer) (fetch.Result[[]signals.Reading], error) {
		rs, err := s.decode(a.Body, false, a.Received)
		if err != nil {
			return fetch.Result[[]signals.Reading]{}, err
		}
		if !until.IsZero() {
			return fetch.Result[[]signals.Reading]{Value: rs, Until: until}, nil
		}
		newest, ok := fetch.Present(rs, a.Received)
		if !ok {
			return fetch.Result[[]signals.Reading]{}, fetch.NoData("the answer holds no slots")
		}
		return fetch.Result[[]signals.Reading]{Value: rs, Point: newest.PointTime, Period: newest.Period}, nil
	})
}

func (s *Source) request(endpoint, path string) fetch.Request {
	return fetch.Request{Provider: provider, Region: s.region, Endpoint: endpoint, URL: s.base + path, Limit: limit, Period: halfHour}
}
