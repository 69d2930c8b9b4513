package watttime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"girassol.dev/api/federation/v1alpha1"
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
			w.WriteHeader(403)
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
		w.WriteHeader(401)
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

func TestTheMarginalIntensityOfNowArrivesInGrams(t *testing.T) {
	s := start(t)
	c, _ := fetchtest.Client(t, s.clock)
	r, err := s.source(t, c, watttime.Config{}).Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Kind != signals.Marginal || r.Unit != signals.GramsPerKWh || math.Abs(*r.Value-453.59237) > 1e-9 ||
		!r.PointTime.Equal(t0.Truncate(5*time.Minute)) || r.Period != 5*time.Minute || r.Model != "2025-06-01" ||
		r.Region != "CAISO_NORTH" || r.Source != "watttime" || r.Quality != signals.Estimated || r.ReceivedTime.IsZero() {
		t.Errorf("%+v", r)
	}
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
}

func TestTheIndexIsAPercentileAndNeverAnIntensity(t *testing.T) {
	s := start(t)
	c, _ := fetchtest.Client(t, s.clock)
	// Open to free accounts in every region.
	r, err := s.source(t, c, watttime.Config{Signal: watttime.Index, Region: "PJM_NJ"}).Latest(t.Context())
	if err != nil || r.Kind != signals.Percentile || r.Unit != signals.PercentileOf || *r.Value != 42 {
		t.Fatalf("%+v, %v", r, err)
	}
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		fetchtest.JSON(w, 200, `{"data":[{"point_time":"2026-03-01T12:00:00Z","value":42}],"meta":{"region":"CAISO_NORTH","units":"percentile","data_point_period_seconds":300}}`)
		return true
	}
	_, err = s.source(t, c, watttime.Config{}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalBadAnswer || !strings.Contains(e.Detail, "percentile") {
		t.Errorf("%v", e)
	}
	index := s.source(t, c, watttime.Config{Signal: watttime.Index})
	_, err = index.History(t.Context(), t0, t0.Add(time.Hour))
	_, ferr := index.Forecast(t.Context())
	if !reason(t, err).Permanent || !reason(t, ferr).Permanent {
		t.Errorf("%v, %v", err, ferr)
	}
}

func TestASettledReadingIsTheNewestOfTheHistory(t *testing.T) {
	s := start(t)
	c, log := fetchtest.Client(t, s.clock)
	r, err := s.source(t, c, watttime.Config{Signal: watttime.Average}).Latest(t.Context())
	if err != nil || r.Kind != signals.Average || !r.PointTime.Equal(time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)) {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := s.queries[len(s.queries)-1].Get("signal_type"); got != "co2_aoer" {
		t.Errorf("asked for %s", got)
	}
	if log.Count("data is late") != 1 {
		t.Errorf("the warning was not logged: %s", log)
	}
}

func TestForecastsComeWithTheirTimeOfIssue(t *testing.T) {
	s := start(t)
	c, _ := fetchtest.Client(t, s.clock)
	source := s.source(t, c, watttime.Config{HorizonHours: 24})
	f, err := source.Forecast(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Points) != 288 || f.Points[0].Duration != 5*time.Minute || f.Unit != signals.GramsPerKWh ||
		math.Abs(*f.Points[1].Value-1001*.45359237) > 1e-9 || !f.GeneratedAt.Equal(t0.Truncate(5*time.Minute)) || f.Validate() != nil {
		t.Errorf("%d points, first %+v, %v", len(f.Points), f.Points[0], f.Validate())
	}
	first := f.GeneratedAt
	// An older issue never replaces a newer one.
	s.clock.Advance(10 * time.Minute)
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		fetchtest.JSON(w, 200, `{"data":[{"point_time":"2026-03-01T12:10:00Z","value":1}],"meta":{"region":"CAISO_NORTH","units":"lbs_co2_per_mwh","generated_at":"2026-03-01T11:00:00Z"}}`)
		return true
	}
	if f, err = source.Forecast(t.Context()); err != nil || !f.GeneratedAt.Equal(first) {
		t.Errorf("issued %s, %v", f.GeneratedAt, err)
	}
	// An answer without one leaves the last until its own end.
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		fetchtest.JSON(w, 200, `{"data":[],"meta":{"region":"CAISO_NORTH","units":"lbs_co2_per_mwh","generated_at":"2026-03-01T13:00:00Z"}}`)
		return true
	}
	s.clock.Advance(20 * time.Minute)
	f, err = source.Forecast(t.Context())
	if reason(t, err).Reason != v1alpha1.ReasonSignalNoData || len(f.Points) != 288 {
		t.Errorf("%d points, %v", len(f.Points), err)
	}
	s.clock.Advance(24 * time.Hour)
	if f, err = source.Forecast(t.Context()); err == nil || len(f.Points) != 0 {
		t.Errorf("%d points after the end, %v", len(f.Points), err)
	}
}

func TestHistoryIsAskedInPiecesOf32DaysThatRepeatNoPoint(t *testing.T) {
	s := start(t)
	c, log := fetchtest.Client(t, s.clock)
	source := s.source(t, c, watttime.Config{})
	from := t0.Add(-70 * 24 * time.Hour).Truncate(time.Hour)
	to := from.Add(65 * 24 * time.Hour)
	got, err := source.History(t.Context(), from, to)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	if len(got) != 65*288 || s.calls["/v3/historical"] != 3 {
		t.Errorf("%d points in %d calls, want %d in 3", len(got), s.calls["/v3/historical"], 65*288)
	}
	seen := map[string]bool{}
	for _, q := range s.queries {
		if seen[q.Get("start")] || seen[q.Get("end")] {
			t.Errorf("%s to %s repeats an end", q.Get("start"), q.Get("end"))
		}
		seen[q.Get("start")], seen[q.Get("end")] = true, true
	}
	for i, r := range got {
		if want := from.Add(time.Duration(i) * 5 * time.Minute); !r.PointTime.Equal(want) {
			t.Fatalf("point %d is at %s, want %s", i, r.PointTime, want)
		}
		if imputed := r.PointTime.Minute() == 30; imputed != (r.Quality == signals.Imputed) {
			t.Fatalf("%+v", r)
		}
	}
	if got, err := source.History(t.Context(), t0, t0); len(got) != 0 || err != nil {
		t.Errorf("%v, %v for an empty span", got, err)
	}
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		fetchtest.JSON(w, 200, `{"data":[],"meta":{"region":"CAISO_NORTH","units":"lbs_co2_per_mwh"}}`)
		return true
	}
	if got, err := source.History(t.Context(), t0.Add(-time.Hour), t0); len(got) != 0 || err != nil {
		t.Errorf("%v, %v where the provider has nothing", got, err)
	}
}

func TestOneLoginServesAllSitesUntilTwentyFiveMinutes(t *testing.T) {
	s := start(t)
	c, log := fetchtest.Client(t, s.clock)
	var sources []*watttime.Source
	for range 20 { // each site with an account of its own of the same user
		sources = append(sources, s.source(t, c, watttime.Config{}))
	}
	all := func() {
		var wg sync.WaitGroup
		for _, source := range sources {
			wg.Go(func() {
				if _, err := source.Latest(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	all()
	if s.logins != 1 || s.calls["/v3/forecast"] != 1 {
		t.Errorf("%d logins and %d calls for 20 sites", s.logins, s.calls["/v3/forecast"])
	}
	s.clock.Advance(24 * time.Minute)
	all()
	if s.logins != 1 {
		t.Errorf("%d logins before the token's time", s.logins)
	}
	s.clock.Advance(10 * time.Minute)
	all()
	if s.logins != 2 {
		t.Errorf("%d logins after it", s.logins)
	}
	fetchtest.Hidden(t, log.String())
}

func TestATokenThatIsRefusedIsRenewedOnceForAll(t *testing.T) {
	s := start(t)
	s.covered["SPP_TX"], s.covered["PJM_NJ"] = true, true
	c, log := fetchtest.Client(t, s.clock)
	var sources []*watttime.Source
	for _, region := range []string{"CAISO_NORTH", "SPP_TX", "PJM_NJ"} {
		sources = append(sources, s.source(t, c, watttime.Config{Region: region}))
	}
	if _, err := sources[0].Latest(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	clear(s.tokens) // revoked
	s.mu.Unlock()
	s.clock.Advance(6 * time.Minute)
	var wg sync.WaitGroup
	for _, source := range sources {
		wg.Go(func() {
			if _, err := source.Latest(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.logins != 2 {
		t.Errorf("%d logins", s.logins)
	}
	if log.Count("failed") != 0 {
		t.Errorf("%s", log)
	}
}

func TestATokenThatIsRefusedAgainEndsInBackoffAndNotInALoginLoop(t *testing.T) {
	s := start(t)
	var refused atomic.Int64
	s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		refused.Add(1)
		w.WriteHeader(401)
		fmt.Fprint(w, "Jwt is expired")
		return true
	}
	c, _ := fetchtest.Client(t, s.clock)
	source := s.source(t, c, watttime.Config{})
	for range 360 {
		_, err := source.Latest(t.Context())
		e := reason(t, err)
		if e.Permanent || e.Reason != v1alpha1.ReasonSignalUnauthorized && e.Reason != v1alpha1.ReasonSignalRateLimited {
			t.Fatalf("%+v", e)
		}
		s.clock.Advance(10 * time.Second)
	}
	if s.logins > 40 || refused.Load() > 80 {
		t.Errorf("%d logins and %d refusals in an hour", s.logins, refused.Load())
	}
}

func TestARefusedLoginIsPermanentAndStopsAllCalls(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"plain": func(w http.ResponseWriter) { w.WriteHeader(403); fmt.Fprint(w, "Forbidden") },
		"page": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(403)
			fmt.Fprint(w, "<html>CloudFront</html>")
		},
		"JSON": func(w http.ResponseWriter) {
			fetchtest.JSON(w, 401, `{"error":"bad password of `+fetchtest.Secret+`"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.badLogin = answer
			c, log := fetchtest.Client(t, s.clock)
			for _, region := range []string{"CAISO_NORTH", "SPP_TX", "CAISO_NORTH"} {
				_, err := s.source(t, c, watttime.Config{Region: region}).Latest(t.Context())
				e := reason(t, err)
				if e.Reason != v1alpha1.ReasonSignalUnauthorized || !e.Permanent || e.Region != region || e.Endpoint != "login" {
					t.Errorf("%+v", e)
				}
				fetchtest.Hidden(t, err.Error())
			}
			if s.logins != 1 {
				t.Errorf("%d logins", s.logins)
			}
			if log.Count("failed") != 1 {
				t.Errorf("%s", log)
			}
			fetchtest.Hidden(t, log.String())
		})
	}
}

// Case B2.
func TestARegionOutsideThePlanIsNamedAndLeavesTheOthersAlone(t *testing.T) {
	s := start(t)
	c, log := fetchtest.Client(t, s.clock)
	account := s.account(t, c)
	pjm := s.source(t, c, watttime.Config{Account: account, Region: "PJM_NJ"})
	caiso := s.source(t, c, watttime.Config{Account: account, Region: "CAISO_NORTH"})
	for range 100 {
		_, err := pjm.Latest(t.Context())
		e := reason(t, err)
		if e.Reason != v1alpha1.ReasonSignalNotCovered || !e.Permanent || !strings.Contains(err.Error(), "region PJM_NJ") ||
			!strings.Contains(err.Error(), "plan") || !strings.Contains(err.Error(), "CAISO_NORTH") {
			t.Fatalf("%v", err)
		}
		if _, err := caiso.Latest(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.clock.Advance(10 * time.Second)
	}
	refused := 0
	for _, q := range s.queries {
		if q.Get("region") == "PJM_NJ" {
			refused++
		}
	}
	if refused != 1 || s.logins != 1 {
		t.Errorf("%d calls for the refused region, %d logins", refused, s.logins)
	}
	if log.Count("failed") != 1 {
		t.Errorf("%s", log)
	}
	// The refusal is this endpoint's only.
	if _, err := s.source(t, c, watttime.Config{Account: account, Region: "PJM_NJ", Signal: watttime.Index}).Latest(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := watttime.New(watttime.Config{Account: account}); err == nil {
		t.Error("there is a default region")
	}
}

func TestTheRegionOfAPlaceIsAskedMonthly(t *testing.T) {
	s := start(t)
	c, _ := fetchtest.Client(t, s.clock)
	lat, lon, zero := 38.5, -121.5, 0.0
	source := s.source(t, c, watttime.Config{Latitude: &lat, Longitude: &lon})
	for range 35 {
		r, err := source.Latest(t.Context())
		if err != nil || r.Region != "CAISO_NORTH" {
			t.Fatalf("%+v, %v", r, err)
		}
		s.clock.Advance(24 * time.Hour)
	}
	if n := s.calls["/v3/region-from-loc"]; n != 2 {
		t.Errorf("asked %d times in 35 days", n)
	}
	_, err := s.source(t, c, watttime.Config{Latitude: &zero, Longitude: &zero}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalNotCovered || !e.Permanent || !strings.Contains(e.Error(), "0,0") {
		t.Errorf("%v", e)
	}
}

func TestALimitOfDataCallsLeavesTheLoginAlone(t *testing.T) {
	s := start(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		fetchtest.JSON(w, 429, `{"error":"Rate limit exceeded","msg":"3000 per 5 minutes"}`)
		return true
	}
	c, log := fetchtest.Client(t, s.clock)
	source := s.source(t, c, watttime.Config{})
	begin := s.clock.Now()
	for s.clock.Now().Sub(begin) < time.Hour {
		_, err := source.Latest(t.Context())
		if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalRateLimited || e.Permanent {
			t.Fatalf("%v", e)
		}
		s.clock.Advance(10 * time.Second)
	}
	if n := s.calls["/v3/forecast"]; n > 12 {
		t.Errorf("%d calls in an hour of 429", n)
	}
	if log.Count("failed") != 1 {
		t.Errorf("%s", log)
	}
}

func TestAnswersVaryWithoutHarm(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want float64 // NaN for no value
	}{
		"model absent, warnings as strings": {`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":100}],"meta":{"units":"lbs_co2_per_mwh","warnings":["late"]}}`, 45.359237},
		"model as string":                   {`{"data":[{"point_time":"2026-03-01T12:00:00+00:00","value":1048.41}],"meta":{"units":"lbs_co2_per_mwh","model":"2025-01-01","warnings":null}}`, 475.550776},
		"warnings as object":                {`{"data":[{"point_time":"2026-03-01T17:45:00+05:45","value":0}],"meta":{"units":"lbs_co2_per_mwh","model":null,"warnings":{"message":"x"}}}`, 0},
		"null":                              {`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":null}],"meta":{"units":"lbs_co2_per_mwh"}}`, math.NaN()},
		"absent":                            {`{"data":[{"point_time":"2026-03-01T12:00:00Z"}],"meta":{"units":"lbs_co2_per_mwh"}}`, math.NaN()},
		"negative":                          {`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":-1}],"meta":{"units":"lbs_co2_per_mwh"}}`, math.NaN()},
		"unsorted and twice":                {`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":1},{"point_time":"2026-03-01T11:55:00Z","value":2},{"point_time":"2026-03-01T12:00:00Z","value":100}],"meta":{"units":"lbs_co2_per_mwh"}}`, 45.359237},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.answer = func(w http.ResponseWriter, _ *http.Request) bool { fetchtest.JSON(w, 200, c.body); return true }
			cl, _ := fetchtest.Client(t, s.clock)
			r, err := s.source(t, cl, watttime.Config{}).Latest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if math.IsNaN(c.want) != (r.Value == nil) || r.Value != nil && math.Abs(*r.Value-c.want) > 1e-6 {
				t.Errorf("%+v", r)
			}
			if !r.PointTime.Equal(t0.Truncate(5*time.Minute)) || r.Validate() != nil {
				t.Errorf("%+v, %v", r, r.Validate())
			}
		})
	}
}

func TestAnswersThatCannotBeRightAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want v1alpha1.Reason
	}{
		"no meta":           {`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":100}]}`, v1alpha1.ReasonSignalBadAnswer},
		"no unit":           {`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":100}],"meta":{}}`, v1alpha1.ReasonSignalBadAnswer},
		"another region":    {`{"data":[],"meta":{"region":"DE","units":"lbs_co2_per_mwh"}}`, v1alpha1.ReasonSignalBadAnswer},
		"another signal":    {`{"data":[],"meta":{"signal_type":"co2_aoer","units":"lbs_co2_per_mwh"}}`, v1alpha1.ReasonSignalBadAnswer},
		"time without zone": {`{"data":[{"point_time":"2026-03-01T12:00:00","value":100}],"meta":{"units":"lbs_co2_per_mwh"}}`, v1alpha1.ReasonSignalBadAnswer},
		"absurd period":     {`{"data":[],"meta":{"units":"lbs_co2_per_mwh","data_point_period_seconds":1e300}}`, v1alpha1.ReasonSignalBadAnswer},
		"no points":         {`{"data":[],"meta":{"units":"lbs_co2_per_mwh"}}`, v1alpha1.ReasonSignalNoData},
		"data is null":      {`{"data":null,"meta":{"units":"lbs_co2_per_mwh"}}`, v1alpha1.ReasonSignalNoData},
		"value as text":     {`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":"100"}],"meta":{"units":"lbs_co2_per_mwh"}}`, v1alpha1.ReasonSignalBadAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.answer = func(w http.ResponseWriter, _ *http.Request) bool { fetchtest.JSON(w, 200, c.body); return true }
			cl, _ := fetchtest.Client(t, s.clock)
			_, err := s.source(t, cl, watttime.Config{}).Latest(t.Context())
			if e := reason(t, err); e.Reason != c.want || e.Permanent {
				t.Errorf("%v", e)
			}
		})
	}
}

func TestBrokenServersOfDataAreSurvived(t *testing.T) {
	fetchtest.Survives(t, t0, func(ctx context.Context, c *fetch.Client, base string) error {
		login := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/login" {
				fetchtest.JSON(w, 200, `{"token":"`+fetchtest.Secret+`"}`)
				return
			}
			// One host for both, so the broken one is passed through.
			proxy(w, r, base)
		})
		return ask(ctx, c, login)
	}, "connection cut", "slow body", "huge body", "redirect to another host")
}

func TestBrokenServersOfLoginsAreSurvived(t *testing.T) {
	fetchtest.Survives(t, t0, ask, "page with 403")
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
