package electricitymaps

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/fetch/fetchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 3, 1, 12, 20, 0, 0, time.UTC)

// serve answers as the reference says, for the zone DE of the right token.
func serve(t testing.TB, calls *int, answer func(w http.ResponseWriter, r *http.Request) bool) string {
	return fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		*calls++
		if r.Header.Get("auth-token") != fetchtest.Secret {
			fetchtest.JSON(w, 401, `{"error":"Invalid auth-token `+r.Header.Get("auth-token")+`"}`)
			return
		}
		if answer != nil && answer(w, r) {
			return
		}
		q := r.URL.Query()
		if zone := q.Get("zone"); zone != "DE" && q.Get("lat") == "" {
			fetchtest.JSON(w, 403, `{"error":"Your token has no access to zone `+zone+`"}`)
			return
		}
		factor := q.Get("emissionFactorType")
		switch r.URL.Path {
		case "/v3/carbon-intensity/latest":
			fetchtest.JSON(w, 200, fmt.Sprintf(`{"zone":"DE","carbonIntensity":302,"datetime":"2026-03-01T12:00:00.000Z","updatedAt":"2026-03-01T11:50:00.000Z","createdAt":"2026-02-26T12:00:00.000Z","emissionFactorType":%q,"isEstimated":true,"estimationMethod":"TIME_SLICER_AVERAGE"}`, factor))
		case "/v3/carbon-intensity/past-range":
			from, _ := time.Parse(time.RFC3339, q.Get("start"))
			to, _ := time.Parse(time.RFC3339, q.Get("end"))
			if to.Sub(from) > 10*24*time.Hour {
				fetchtest.JSON(w, 400, `{"error":"range too long"}`)
				return
			}
			var points []string
			for at := from; !at.After(to); at = at.Add(time.Hour) { // both ends
				points = append(points, fmt.Sprintf(`{"zone":"DE","carbonIntensity":%d,"datetime":%q,"emissionFactorType":%q,"isEstimated":false}`,
					100+at.Hour(), at.Format(time.RFC3339), factor))
			}
			fetchtest.JSON(w, 200, `{"zone":"DE","data":[`+strings.Join(points, ",")+`]}`)
		case "/v3/carbon-intensity/forecast":
			fetchtest.JSON(w, 200, `{"zone":"DE","forecast":[{"carbonIntensity":250,"datetime":"2026-03-01T14:00:00Z"},{"carbonIntensity":null,"datetime":"2026-03-01T13:00:00Z"},{"carbonIntensity":0,"datetime":"2026-03-01T12:00:00Z"}],"updatedAt":"2026-03-01T12:10:00Z"}`)
		default:
			fetchtest.JSON(w, 404, `{"error":"no such path"}`)
		}
	})
}

func source(t testing.TB, c *fetch.Client, base string, config Config) *Source {
	t.Helper()
	config.Client, config.BaseURL = c, base
	if config.Token == nil {
		config.Token = fetch.Value(fetchtest.Secret)
	}
	if config.Zone == "" && config.Latitude == nil {
		config.Zone = "DE"
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func reason(t *testing.T, err error) *signals.ProviderError {
	t.Helper()
	var e *signals.ProviderError
	if !errors.As(err, &e) {
		t.Fatalf("got %T %v, want a ProviderError", err, err)
	}
	return e
}

func TestAnEstimateIsAnAverageThatSaysSo(t *testing.T) {
	calls := 0
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	s := source(t, c, serve(t, &calls, nil), Config{Factor: Direct})
	for range 20 {
		r, err := s.Latest(t.Context())
		if err != nil || r.Kind != signals.Average || r.Unit != signals.GramsPerKWh || *r.Value != 302 || r.Quality != signals.Estimated ||
			r.Model != "direct" || r.Period != time.Hour || r.Region != "DE" || !r.PointTime.Equal(t0.Truncate(time.Hour)) || r.Validate() != nil {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

func TestHistoryComesInPiecesOfTenDays(t *testing.T) {
	calls := 0
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	s := source(t, c, serve(t, &calls, nil), Config{})
	from := t0.Add(-25 * 24 * time.Hour).Truncate(time.Hour)
	got, err := s.History(t.Context(), from, from.Add(24*24*time.Hour))
	if err != nil || len(got) != 24*24 || calls != 3 {
		t.Fatalf("%d points in %d calls, %v", len(got), calls, err)
	}
	for i, r := range got {
		if !r.PointTime.Equal(from.Add(time.Duration(i)*time.Hour)) || *r.Value != float64(100+r.PointTime.Hour()) || r.Quality != signals.Good {
			t.Fatalf("%d: %+v", i, r)
		}
	}
}

func TestAForecastIsSortedAndItsNullsAreNoZeros(t *testing.T) {
	calls := 0
	clock := fetchtest.NewClock(t0)
	c, _ := fetchtest.Client(t, clock)
	gone := false
	s := source(t, c, serve(t, &calls, func(w http.ResponseWriter, _ *http.Request) bool {
		if gone {
			fetchtest.JSON(w, 200, `{"zone":"DE","forecast":[],"updatedAt":"2026-03-01T13:10:00Z"}`)
		}
		return gone
	}), Config{})
	f, err := s.Forecast(t.Context())
	if err != nil || len(f.Points) != 3 || *f.Points[0].Value != 0 || f.Points[1].Value != nil || *f.Points[2].Value != 250 ||
		f.Validate() != nil || !f.GeneratedAt.Equal(time.Date(2026, 3, 1, 12, 10, 0, 0, time.UTC)) {
		t.Fatalf("%+v, %v", f, err)
	}
	gone = true
	clock.Set(t0.Add(2 * time.Hour))
	if f, err = s.Forecast(t.Context()); err == nil || len(f.Points) != 3 {
		t.Errorf("%d points, %v", len(f.Points), err)
	}
	clock.Set(t0.Add(3 * time.Hour))
	if f, err = s.Forecast(t.Context()); reason(t, err).Reason != v1alpha1.ReasonSignalNoData || len(f.Points) != 0 {
		t.Errorf("%d points, %v", len(f.Points), err)
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	calls := 0
	base := serve(t, &calls, nil)
	c, log := fetchtest.Client(t, fetchtest.NewClock(t0))
	_, err := source(t, c, base, Config{Zone: "PL"}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalNotCovered || !e.Permanent || !strings.Contains(e.Error(), "plan") || !strings.Contains(e.Error(), "PL") {
		t.Errorf("%v", e)
	}
	if _, err := source(t, c, base, Config{}).Latest(t.Context()); err != nil {
		t.Errorf("the covered zone suffers: %v", err)
	}
	_, err = source(t, c, base, Config{Token: fetch.Value("wrong-token-1")}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalUnauthorized || !e.Permanent || strings.Contains(e.Error()+log.String(), "wrong-token-1") {
		t.Errorf("%v\n%s", e, log)
	}
}

func TestValuesOfOtherZonesAndFactorsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want v1alpha1.Reason
	}{
		"zone":      {`{"zone":"PL","carbonIntensity":1,"datetime":"2026-03-01T12:00:00Z"}`, v1alpha1.ReasonSignalBadAnswer},
		"factor":    {`{"zone":"DE","carbonIntensity":1,"datetime":"2026-03-01T12:00:00Z","emissionFactorType":"direct"}`, v1alpha1.ReasonSignalBadAnswer},
		"naive":     {`{"zone":"DE","carbonIntensity":1,"datetime":"2026-03-01T12:00:00"}`, v1alpha1.ReasonSignalBadAnswer},
		"zone only": {`{"zone":"DE"}`, v1alpha1.ReasonSignalNoData},
		"text":      {`{"zone":"DE","carbonIntensity":"1","datetime":"2026-03-01T12:00:00Z"}`, v1alpha1.ReasonSignalBadAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			cl, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
			_, err := source(t, cl, serve(t, &calls, func(w http.ResponseWriter, _ *http.Request) bool {
				fetchtest.JSON(w, 200, c.body)
				return true
			}), Config{}).Latest(t.Context())
			if e := reason(t, err); e.Reason != c.want || e.Permanent {
				t.Errorf("%v", e)
			}
		})
	}
	calls := 0
	cl, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	r, err := source(t, cl, serve(t, &calls, func(w http.ResponseWriter, _ *http.Request) bool {
		fetchtest.JSON(w, 200, `{"zone":"DE","carbonIntensity":null,"datetime":"2026-03-01T13:00:00Z"}`)
		return true
	}), Config{}).Latest(t.Context())
	if err != nil || r.Value != nil {
		t.Errorf("null is %+v, %v", r, err)
	}
}

func TestAPlaceFindsItsZone(t *testing.T) {
	calls := 0
	lat, lon := 52.5, 13.4
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	r, err := source(t, c, serve(t, &calls, nil), Config{Latitude: &lat, Longitude: &lon}).Latest(t.Context())
	if err != nil || r.Region != "DE" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestConfigurationsThatCannotBeRightAreRefused(t *testing.T) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	token, lat := fetch.Value("x"), 91.0
	for name, config := range map[string]Config{
		"no client":  {Token: token, Zone: "DE"},
		"no token":   {Client: c, Zone: "DE"},
		"no zone":    {Client: c, Token: token},
		"half place": {Client: c, Token: token, Latitude: &lat},
		"no place":   {Client: c, Token: token, Latitude: &lat, Longitude: &lat},
		"factor":     {Client: c, Token: token, Zone: "DE", Factor: "marginal"},
		"period":     {Client: c, Token: token, Zone: "DE", Period: time.Minute},
		"horizon":    {Client: c, Token: token, Zone: "DE", HorizonHours: 25},
		"base":       {Client: c, Token: token, Zone: "DE", BaseURL: "ftp://x"},
	} {
		if _, err := New(config); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestBrokenServersAreSurvived(t *testing.T) {
	fetchtest.Survives(t, t0, func(ctx context.Context, c *fetch.Client, base string) error {
		s, err := New(Config{Client: c, Token: fetch.Value(fetchtest.Secret), BaseURL: base, Zone: "DE"})
		if err != nil {
			return err
		}
		_, err = s.Latest(ctx)
		return err
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"zone":"DE","carbonIntensity":302,"datetime":"2026-03-01T12:00:00.000Z","emissionFactorType":"lifecycle","isEstimated":true}`))
	f.Add([]byte(`{"zone":"DE","data":[{"carbonIntensity":1,"datetime":"2026-03-01T12:00:00Z"}],"history":[{"datetime":"2026-03-01T11:00:00Z"}]}`))
	f.Add([]byte(`{"zone":"DE","forecast":[{"carbonIntensity":1,"datetime":"2026-03-01T12:00:00Z"},{"datetime":"2026-03-01T12:30:00Z"}],"updatedAt":"2026-03-01T12:00:00Z"}`))
	s := &Source{config: Config{Zone: "DE", Factor: Lifecycle, Period: time.Hour}, zone: "DE"}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := s.decodeLatest(body, t0); err == nil && r.Validate() != nil {
			t.Fatal(r.Validate())
		}
		rs, err := s.decodeHistory(body, t0)
		for i, r := range rs {
			if err != nil || r.Validate() != nil || i > 0 && !rs[i-1].PointTime.Before(r.PointTime) {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if f, err := s.decodeForecast(body); err == nil && (f.Validate() != nil || len(f.Points) == 0) {
			t.Fatal(f.Validate())
		}
	})
}
