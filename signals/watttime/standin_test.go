package watttime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/fetch/fetchtest"
	"girassol.dev/signals/watttime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 3, 1, 12, 2, 0, 0, time.UTC)

// standIn is a server that behaves as WattTime's reference says.
type standIn struct {
	clock *fetchtest.Clock
	url   string

	mu       sync.Mutex
	logins   int
	refused  int                  // calls with a token that is none
	tokens   map[string]time.Time // valid until
	calls    map[string]int       // by endpoint
	queries  []url.Values         // of data calls
	covered  map[string]bool      // regions of the plan
	answer   func(w http.ResponseWriter, r *http.Request) bool
	badLogin func(w http.ResponseWriter)
}

func start(t testing.TB) *standIn {
	s := &standIn{clock: fetchtest.NewClock(t0), tokens: map[string]time.Time{}, calls: map[string]int{},
		covered: map[string]bool{"CAISO_NORTH": true}}
	s.url = fetchtest.Serve(t, s.serve)
	return s
}

func (s *standIn) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if r.URL.Path == "/login" {
		s.logins++
		user, password, ok := r.BasicAuth()
		if s.badLogin != nil {
			s.badLogin(w)
			return
		}
		if !ok || user != fetchtest.Secret || password != fetchtest.Secret {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "Forbidden")
			return
		}
		token := fmt.Sprintf("jwt.%d.%s", s.logins, fetchtest.Secret)
		s.tokens[token] = now.Add(30 * time.Minute)
		fetchtest.JSON(w, 200, fmt.Sprintf(`{"token":%q}`, token))
		return
	}
	until, known := s.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if !known || !now.Before(until) {
		s.refused++
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, "Jwt is missing")
		return
	}
	q := r.URL.Query()
	s.calls[r.URL.Path]++
	s.queries = append(s.queries, q)
	if s.answer != nil && s.answer(w, r) {
		return
	}
	region := q.Get("region")
	if q.Get("signal_type") == "" {
		fetchtest.JSON(w, 400, `{"error":"signal_type is required"}`)
		return
	}
	if !s.covered[region] && r.URL.Path != "/v3/region-from-loc" && r.URL.Path != "/v3/signal-index" {
		fetchtest.JSON(w, 403, `{"error":"Invalid scope","message":"all users are allowed free access to CAISO_NORTH"}`)
		return
	}
	slot := now.Truncate(5 * time.Minute)
	meta := fmt.Sprintf(`"region":%q,"signal_type":%q,"data_point_period_seconds":300,"model":{"date":"2025-06-01","type":"heat"}`, region, q.Get("signal_type"))
	switch r.URL.Path {
	case "/v3/region-from-loc":
		if q.Get("latitude") == "0" {
			fetchtest.JSON(w, 404, `{"error":"Coordinates not in any region"}`)
			return
		}
		fetchtest.JSON(w, 200, `{"region":"CAISO_NORTH","region_full_name":"California","signal_type":"co2_moer"}`)
	case "/v3/signal-index":
		fetchtest.JSON(w, 200, fmt.Sprintf(`{"data":[{"point_time":%q,"value":42}],"meta":{%s,"units":"percentile"}}`, slot.Format(time.RFC3339), meta))
	case "/v3/forecast":
		n := 288
		if q.Get("horizon_hours") == "0" {
			n = 1
		}
		var points []string
		for i := range n {
			points = append(points, fmt.Sprintf(`{"point_time":%q,"value":%v}`, slot.Add(time.Duration(i)*5*time.Minute).Format("2006-01-02T15:04:05+00:00"), 1000+i))
		}
		fetchtest.JSON(w, 200, fmt.Sprintf(`{"data":[%s],"meta":{%s,"units":"lbs_co2_per_mwh","generated_at":%q,"generated_at_period_seconds":300}}`,
			strings.Join(points, ","), meta, slot.Format(time.RFC3339)))
	case "/v3/historical":
		from, err1 := time.Parse(time.RFC3339, q.Get("start"))
		to, err2 := time.Parse(time.RFC3339, q.Get("end"))
		if err1 != nil || err2 != nil || to.Sub(from) > 32*24*time.Hour {
			fetchtest.JSON(w, 400, `{"error":"invalid span"}`)
			return
		}
		var points []string
		// Both ends count; the newest points come an hour late; newest first.
		for at := to.Truncate(5 * time.Minute); !at.Before(from); at = at.Add(-5 * time.Minute) {
			if !at.After(slot.Add(-time.Hour)) {
				points = append(points, fmt.Sprintf(`{"point_time":%q,"value":870,"imputed_data_used":%v,"last_updated":%q}`,
					at.Format(time.RFC3339), at.Minute() == 30, slot.Format(time.RFC3339)))
			}
		}
		fetchtest.JSON(w, 200, fmt.Sprintf(`{"data":[%s],"meta":{%s,"units":"lbs_co2_per_mwh","warnings":[{"type":"EXAMPLE","message":"data is late"}]}}`,
			strings.Join(points, ","), meta))
	default:
		fetchtest.JSON(w, 404, `{"error":"no such path"}`)
	}
}

func (s *standIn) account(t testing.TB, c *fetch.Client) *watttime.Account {
	t.Helper()
	a, err := watttime.NewAccount(watttime.AccountConfig{Client: c, BaseURL: s.url,
		User: fetch.Value(fetchtest.Secret), Password: fetch.Value(fetchtest.Secret)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (s *standIn) source(t testing.TB, c *fetch.Client, config watttime.Config) *watttime.Source {
	t.Helper()
	if config.Account == nil {
		config.Account = s.account(t, c)
	}
	if config.Region == "" && config.Latitude == nil {
		config.Region = "CAISO_NORTH"
	}
	source, err := watttime.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func reason(t *testing.T, err error) *signals.ProviderError {
	t.Helper()
	var e *signals.ProviderError
	if !errors.As(err, &e) {
		t.Fatalf("got %T %v, want a ProviderError", err, err)
	}
	return e
}

func ask(ctx context.Context, c *fetch.Client, base string) error {
	secret := fetch.Value(fetchtest.Secret)
	a, err := watttime.NewAccount(watttime.AccountConfig{Client: c, BaseURL: base, User: secret, Password: secret})
	if err != nil {
		return err
	}
	s, err := watttime.New(watttime.Config{Account: a, Region: "CAISO_NORTH"})
	if err != nil {
		return err
	}
	_, err = s.Latest(ctx)
	return err
}

func proxy(w http.ResponseWriter, r *http.Request, base string) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, base+r.URL.RequestURI(), nil)
	if err != nil {
		panic(err)
	}
	req.Header = r.Header.Clone()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}
