// Package prometheus reads a signal from a query to a Prometheus server. It owns
// the HTTP API's fields. What the value means, its kind, unit and region, is the
// user's to say. It must not know sites, thresholds or training.
//
// The query must give one series: several are refused, never added up. NaN and
// infinities are no values.
package prometheus

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
	provider    = "prometheus"
	historyGood = time.Minute
	// mostSteps of one range query; the server's limit is 11,000.
	mostSteps = 10000
)

var limit = fetch.Limit{Every: time.Second / 10, Burst: 20}

// Config of a Source.
type Config struct {
	Client *fetch.Client
	// BaseURL of the server, such as http://prometheus:9090.
	BaseURL string
	Query   string
	Kind    signals.Kind
	Unit    signals.Unit
	Region  string
	// Period of the signal: a value holds for it, and it is asked for once in it.
	// 1 s to 24 h; default 5 minutes.
	Period time.Duration
	// Auth is optional: fetch.HeaderAuth("Authorization", "Bearer ", token) or
	// fetch.BasicAuth.
	Auth fetch.Authorizer
	// AllowPlain lets Auth travel over http to other machines.
	AllowPlain bool
}

// Source reads one query.
type Source struct {
	config Config
}

var (
	_ signals.Source    = (*Source)(nil)
	_ signals.Historian = (*Source)(nil)
)

// New checks the configuration; it makes no call.
func New(c Config) (*Source, error) {
	if c.BaseURL == "" {
		return nil, errors.New("prometheus: no base URL, such as http://prometheus:9090")
	}
	var err error
	if c.BaseURL, err = fetch.BaseURL(c.BaseURL, ""); err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	if c.Period == 0 {
		c.Period = 5 * time.Minute
	}
	switch {
	case c.Client == nil:
		return nil, errors.New("prometheus: no client")
	case c.Query == "":
		return nil, errors.New("prometheus: no query")
	case c.Region == "":
		return nil, errors.New("prometheus: say which region the query speaks for")
	case c.Period < time.Second || c.Period > 24*time.Hour:
		return nil, fmt.Errorf("prometheus: period %s is outside 1s to 24h", c.Period)
	}
	if err := signals.CheckUnit(c.Kind, c.Unit); err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	return &Source{config: c}, nil
}

// Latest is the value of the present period. An instant query answers with the
// time of asking; the point is the beginning of its period, so that it counts
// once however often it is read.
func (s *Source) Latest(ctx context.Context) (signals.Reading, error) {
	r := s.request("api/v1/query", url.Values{"query": {s.config.Query}})
	got, err := fetch.Get(ctx, s.config.Client, r, func(a fetch.Answer) (fetch.Result[signals.Reading], error) {
		samples, err := decode(a.Body)
		if err != nil {
			return fetch.Result[signals.Reading]{}, err
		}
		if len(samples) == 0 {
			return fetch.Result[signals.Reading]{}, fetch.NoData("the query gives no series")
		}
		d := s.reading(samples[len(samples)-1], a.Received)
		d.PointTime = d.PointTime.Truncate(s.config.Period)
		return fetch.Result[signals.Reading]{Value: d, Point: d.PointTime, Period: d.Period}, nil
	})
	return fetch.Copy(got), err
}

// History is the query at the beginnings of the periods, as the server knows it
// now.
func (s *Source) History(ctx context.Context, from, to time.Time) ([]signals.Reading, error) {
	var out []signals.Reading
	first := from.UTC().Truncate(s.config.Period)
	if first.Before(from) {
		first = first.Add(s.config.Period)
	}
	for _, p := range fetch.Pieces(first, to.UTC(), mostSteps*s.config.Period) {
		// Both ends count.
		r := s.request("api/v1/query_range", url.Values{"query": {s.config.Query}, "start": {stamp(p[0])},
			"end": {stamp(p[1].Add(-time.Millisecond))}, "step": {strconv.FormatFloat(s.config.Period.Seconds(), 'f', -1, 64)}})
		got, err := fetch.Get(ctx, s.config.Client, r, func(a fetch.Answer) (fetch.Result[[]signals.Reading], error) {
			samples, err := decode(a.Body)
			if err != nil {
				return fetch.Result[[]signals.Reading]{}, err
			}
			var rs []signals.Reading
			for _, v := range samples {
				rs = append(rs, s.reading(v, a.Received))
			}
			return fetch.Result[[]signals.Reading]{Value: fetch.Ordered(rs), Until: a.Received.Add(historyGood)}, nil
		})
		if err != nil {
			return nil, err
		}
		out = append(out, fetch.Between(got, from, to)...)
	}
	return fetch.Ordered(out), nil
}

// stamp is unix seconds with milliseconds.
func stamp(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

func (s *Source) reading(v sample, received time.Time) signals.Reading {
	r := signals.Reading{Kind: s.config.Kind, Unit: s.config.Unit, Region: s.config.Region, PointTime: v.at,
		ReceivedTime: received, Period: s.config.Period, Source: provider}
	r.Value, r.Quality = fetch.Usable(r.Kind, v.value, signals.Good)
	return r.Normalized()
}

func (s *Source) request(endpoint string, query url.Values) fetch.Request {
	// What is decoded depends on more than the URL.
	about := fmt.Sprintf("%s|%s|%s|%s", s.config.Kind, s.config.Unit, s.config.Region, s.config.Period)
	return fetch.Request{
		Provider: provider, Region: s.config.Region, Endpoint: endpoint,
		Scope:   s.config.BaseURL + "|" + s.config.Query + "|" + about + "|" + endpoint,
		Variant: about, URL: s.config.BaseURL + "/" + endpoint + "?" + query.Encode(),
		Auth: s.config.Auth, AllowPlain: s.config.AllowPlain, Limit: limit, Period: s.config.Period,
		Classify: func(a fetch.Answer) *signals.ProviderError {
			e := &signals.ProviderError{Detail: fetch.Remark(a)}
			switch {
			case a.Status == http.StatusForbidden && fetch.IsJSON(a):
				e.Reason, e.Permanent = v1alpha1.ReasonSignalUnauthorized, true
			case a.Status == http.StatusUnprocessableEntity:
				e.Reason, e.Permanent = v1alpha1.ReasonSignalRefused, true
				e.Detail = "the query cannot be executed: " + e.Detail
			case a.Status == http.StatusBadRequest:
				e.Reason, e.Permanent = v1alpha1.ReasonSignalRefused, true
				e.Detail = "the query was refused: " + e.Detail
			default:
				return nil
			}
			return e
		},
	}
}
