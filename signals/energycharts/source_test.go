package energycharts

import (
	"context"
	"encoding/json"
	"errors"
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

var t0 = time.Date(2026, 3, 1, 12, 5, 0, 0, time.UTC)

// day answers with quarter hours of a day in Berlin; slot i has share i and light
// i%4-1, but every tenth is null.
func day(t testing.TB, at time.Time, substitute bool) (signal, share []byte, slots int) {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skipf("no time zones on this machine: %v", err)
	}
	local := at.In(berlin)
	begin := time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, berlin)
	end := time.Date(local.Year(), local.Month(), local.Day()+1, 0, 0, 0, 0, berlin)
	var seconds []int64
	var values, lights []*float64
	for at := begin; at.Before(end); at = at.Add(quarter) {
		i := len(seconds)
		v, l := float64(i), float64(i%4-1)
		seconds = append(seconds, at.Unix())
		if i%10 == 9 {
			values, lights = append(values, nil), append(lights, nil)
			continue
		}
		values, lights = append(values, &v), append(lights, &l)
	}
	signal, err = json.Marshal(map[string]any{"unix_seconds": seconds, "share": values, "signal": lights, "substitute": substitute, "deprecated": false})
	if err != nil {
		t.Fatal(err)
	}
	share, err = json.Marshal(map[string]any{"unix_seconds": seconds, "ren_share": values, "solar_share": values, "substitute": substitute, "deprecated": true})
	if err != nil {
		t.Fatal(err)
	}
	return signal, share, len(seconds)
}

func serve(t testing.TB, signal, share []byte, calls *int) string {
	return fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		*calls++
		q := r.URL.Query()
		switch {
		case q.Get("country") != "de":
			fetchtest.JSON(w, 422, `{"detail":[{"loc":["query","country"],"msg":"value is not a valid enumeration member"}]}`)
		case r.URL.Path == "/signal":
			fetchtest.JSON(w, 200, string(signal))
		case r.URL.Path == "/ren_share_forecast":
			fetchtest.JSON(w, 200, string(share))
		default:
			fetchtest.JSON(w, 404, `{"detail":"Not Found"}`)
		}
	})
}

func source(t testing.TB, c *fetch.Client, base string, config Config) *Source {
	t.Helper()
	config.Client, config.BaseURL = c, base
	if config.Country == "" {
		config.Country = "de"
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

func TestShareAndLightOfTheMomentAreToldApart(t *testing.T) {
	signal, share, _ := day(t, t0, false)
	calls := 0
	base := serve(t, signal, share, &calls)
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	slot := 13 * 4 // 12:00Z is 13:00 in Berlin
	r, err := source(t, c, base, Config{}).Latest(t.Context())
	if err != nil || r.Kind != signals.RenewableShare || r.Unit != signals.Percent || *r.Value != float64(slot) || r.Period != quarter ||
		!r.PointTime.Equal(t0.Truncate(quarter)) || r.Quality != signals.Good || r.Region != "de" || r.Validate() != nil {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = source(t, c, base, Config{Kind: signals.TrafficLight, PostalCode: "79110"}).Latest(t.Context())
	if err != nil || r.Kind != signals.TrafficLight || r.Unit != signals.Level || *r.Value != float64(slot%4-1) || r.Region != "de-79110" || r.Validate() != nil {
		t.Errorf("%+v, %v", r, err)
	}
	light := source(t, c, base, Config{Kind: signals.TrafficLight})
	if r, err = light.Latest(t.Context()); err != nil || *r.Value != -1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestGuessesFromThePastAreEstimated(t *testing.T) {
	signal, share, _ := day(t, t0, true)
	calls := 0
	c, log := fetchtest.Client(t, fetchtest.NewClock(t0))
	s := source(t, c, serve(t, signal, share, &calls), Config{})
	if r, err := s.Latest(t.Context()); err != nil || r.Quality != signals.Estimated {
		t.Errorf("%+v, %v", r, err)
	}
	if f, err := s.Forecast(t.Context()); err != nil || f.Quality != signals.Estimated {
		t.Errorf("%+v, %v", f, err)
	}
	if log.Count("deprecated") != 1 {
		t.Errorf("%s", log)
	}
}

func TestDaysOf92And100QuarterHoursAreReadWhole(t *testing.T) {
	for slots, at := range map[int]time.Time{
		92:  time.Date(2026, 3, 29, 10, 0, 0, 0, time.UTC),
		96:  time.Date(2026, 3, 30, 10, 0, 0, 0, time.UTC),
		100: time.Date(2026, 10, 25, 10, 0, 0, 0, time.UTC),
	} {
		signal, share, n := day(t, at, false)
		if n != slots {
			t.Fatalf("%d slots on %s", n, at)
		}
		calls := 0
		clock := fetchtest.NewClock(at)
		c, _ := fetchtest.Client(t, clock)
		s := source(t, c, serve(t, signal, share, &calls), Config{})
		begin := at.Add(-13 * time.Hour).Truncate(24 * time.Hour)
		clock.Set(at.Add(20 * time.Hour))
		got, err := s.History(t.Context(), begin.Add(-24*time.Hour), begin.Add(72*time.Hour))
		if err != nil || len(got) != slots {
			t.Fatalf("%d slots, want %d, %v", len(got), slots, err)
		}
		for i, r := range got {
			if i > 0 && r.PointTime.Sub(got[i-1].PointTime) != quarter || r.Period != quarter || (r.Value == nil) != (i%10 == 9) || r.Value != nil && *r.Value != float64(i) {
				t.Fatalf("%d: %+v", i, r)
			}
		}
	}
}

func TestForecastsLeaveNullsOutAndEndWithTheirData(t *testing.T) {
	signal, share, _ := day(t, t0, false)
	for _, kind := range []signals.Kind{signals.RenewableShare, signals.TrafficLight} {
		calls := 0
		clock := fetchtest.NewClock(t0)
		c, _ := fetchtest.Client(t, clock)
		s := source(t, c, serve(t, signal, share, &calls), Config{Kind: kind})
		f, err := s.Forecast(t.Context())
		if err != nil || f.Kind != kind || f.Validate() != nil || !f.Points[0].Start.Equal(t0.Truncate(quarter)) {
			t.Fatalf("%+v, %v, %v", f, err, f.Validate())
		}
		// 44 slots are left, of which 4 have no value.
		if len(f.Points) != 40 {
			t.Errorf("%d points", len(f.Points))
		}
		clock.Set(t0.Add(12 * time.Hour))
		if f, err := s.Forecast(t.Context()); reason(t, err).Reason != v1alpha1.ReasonSignalNoData || len(f.Points) != 0 {
			t.Errorf("%d points of the past, %v", len(f.Points), err)
		}
	}
}

func TestGapsStayGapsAndOrderDoesNotMatter(t *testing.T) {
	s := &Source{kind: signals.RenewableShare, unit: signals.Percent, region: "de"}
	c, err := s.decodeSignal([]byte(`{"unix_seconds":[1772370000,1772366400,null,1772367300],"share":[130.5,0,5,2],"signal":[0,1,2,2]}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.readings(c, t0)
	if err != nil || len(got.readings) != 3 || *got.readings[0].Value != 0 || *got.readings[2].Value != 130.5 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, r := range got.readings {
		if r.Period != quarter {
			t.Errorf("%+v", r)
		}
	}
}

func TestAnswersThatCannotBeRightAreRefused(t *testing.T) {
	for body, want := range map[string]v1alpha1.Reason{
		`{"unix_seconds":[1,2],"share":[1]}`:             v1alpha1.ReasonSignalBadAnswer,
		`{"unix_seconds":[-1],"share":[1]}`:              v1alpha1.ReasonSignalBadAnswer,
		`{"unix_seconds":[999999999999999],"share":[1]}`: v1alpha1.ReasonSignalBadAnswer,
		`{"unix_seconds":["2026-03-01"],"share":[1]}`:    v1alpha1.ReasonSignalBadAnswer,
		`{"unix_seconds":[],"share":[]}`:                 v1alpha1.ReasonSignalNoData,
		`{"unix_seconds":[null],"share":[null]}`:         v1alpha1.ReasonSignalNoData,
		`{"substitute":false}`:                           v1alpha1.ReasonSignalNoData,
	} {
		calls := 0
		c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
		_, err := source(t, c, serve(t, []byte(body), nil, &calls), Config{}).Latest(t.Context())
		if e := reason(t, err); e.Reason != want || e.Permanent {
			t.Errorf("%s: %v", body, e)
		}
	}
	calls := 0
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	_, err := source(t, c, serve(t, nil, nil, &calls), Config{Country: "xx"}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalRefused || !e.Permanent || !strings.Contains(e.Error(), "xx") {
		t.Errorf("%v", e)
	}
}

func TestOneCallPerQuarterHour(t *testing.T) {
	signal, share, _ := day(t, t0, false)
	calls := 0
	clock := fetchtest.NewClock(t0)
	c, _ := fetchtest.Client(t, clock)
	base := serve(t, signal, share, &calls)
	for clock.Now().Before(t0.Add(4 * time.Hour)) {
		for range 3 {
			if _, err := source(t, c, base, Config{}).Latest(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		clock.Advance(20 * time.Second)
	}
	if calls > 17 {
		t.Errorf("%d calls in 16 quarter hours", calls)
	}
}

func TestConfigurationsThatCannotBeRightAreRefused(t *testing.T) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	for _, config := range []Config{{Country: "de"}, {Client: c}, {Client: c, Country: "DE"}, {Client: c, Country: "de", PostalCode: "1"},
		{Client: c, Country: "fr", PostalCode: "75001"}, {Client: c, Country: "de", Kind: signals.Marginal}, {Client: c, Country: "de", BaseURL: "x"}} {
		if _, err := New(config); err == nil {
			t.Errorf("%+v was taken", config)
		}
	}
}

func TestBrokenServersAreSurvived(t *testing.T) {
	fetchtest.Survives(t, t0, func(ctx context.Context, c *fetch.Client, base string) error {
		s, err := New(Config{Client: c, BaseURL: base, Country: "de"})
		if err != nil {
			return err
		}
		_, err = s.Forecast(ctx)
		return err
	}, "refusal that repeats the question", "refusal that repeats the question far behind",
		"refusal that repeats the question escaped")
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"unix_seconds":[1772366400,1772367300],"share":[1,null],"signal":[2,-1],"substitute":true}`), true)
	f.Add([]byte(`{"unix_seconds":[1772366400,null],"ren_share":[1,2],"deprecated":true}`), false)
	f.Fuzz(func(t *testing.T, body []byte, light bool) {
		s := &Source{kind: signals.RenewableShare, unit: signals.Percent, region: "de"}
		if light {
			s.kind, s.unit = signals.TrafficLight, signals.Level
		}
		for _, decode := range []func([]byte) (columns, error){s.decodeSignal, decodeShare} {
			c, err := decode(body)
			if err != nil {
				continue
			}
			got, err := s.readings(c, t0)
			for i, r := range got.readings {
				if err != nil || r.Validate() != nil || i > 0 && !got.readings[i-1].PointTime.Before(r.PointTime) {
					t.Fatalf("%+v, %v, %v", r, err, r.Validate())
				}
			}
		}
	})
}
