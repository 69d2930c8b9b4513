package neso

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
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

var t0 = time.Date(2026, 3, 1, 12, 10, 0, 0, time.UTC)

// slotJSON of one half hour; a negative actual is null, none is left out.
func slotJSON(from time.Time, forecast int, actual string) string {
	if actual != "" {
		actual = `,"actual":` + actual
	}
	return fmt.Sprintf(`{"from":%q,"to":%q,"intensity":{"forecast":%d%s,"index":"low"}}`,
		from.Format(minutes), from.Add(halfHour).Format(minutes), forecast, actual)
}

var stampForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\dZ$`)

// serve answers as the API does: with the slot before the time asked for at its
// beginning, in any order, regions without measurements and in three shapes.
func serve(t testing.TB, clock *fetchtest.Clock, calls *int) string {
	return fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		*calls++
		now := clock.Now().Truncate(halfHour)
		path, regional := strings.CutPrefix(r.URL.Path, "/regional")
		parts := strings.Split(strings.Trim(path, "/"), "/")
		wrap := `{"data":[%s]}`
		if regional {
			wrap = `{"data":{"regionid":13,"shortname":"London","data":[%s]}}`
			if parts[0] != "intensity" {
				fetchtest.JSON(w, 200, fmt.Sprintf(`{"data":[{"regionid":13,"dnoregion":"UKPN London","shortname":"London","data":[%s]}]}`, slotJSON(now, 80, "")))
				return
			}
		}
		if len(parts) == 1 {
			fetchtest.JSON(w, 200, fmt.Sprintf(wrap, slotJSON(now, 120, "118")))
			return
		}
		if !stampForm.MatchString(parts[1]) {
			fetchtest.JSON(w, 400, `{"error":{"code":"400 Bad Request","message":"Please enter a valid date in ISO8601 format YYYY-MM-DDThh:mmZ"}}`)
			return
		}
		from, _ := time.Parse(minutes, parts[1])
		to := from.Add(48 * time.Hour)
		if parts[2] != "fw48h" {
			if !stampForm.MatchString(parts[2]) {
				fetchtest.JSON(w, 400, `{"error":{"code":"400 Bad Request","message":"Please enter a valid date"}}`)
				return
			}
			if to, _ = time.Parse(minutes, parts[2]); to.Sub(from) > 14*24*time.Hour {
				fetchtest.JSON(w, 400, `{"error":{"code":"400 Bad Request","message":"The maximum duration is 14 days"}}`)
				return
			}
		}
		var slots []string
		for at := from.Add(-1).Truncate(halfHour); at.Before(to); at = at.Add(halfHour) {
			actual := fmt.Sprint(100 + at.Hour())
			switch {
			case regional:
				actual = ""
			case at.Equal(now): // a first guess, as the reading of the moment has it
				actual = "118"
			case !at.Before(now.Add(-90 * time.Minute)): // measured later
				actual = "null"
			}
			slots = append([]string{slotJSON(at, 200+at.Hour(), actual)}, slots...) // newest first
		}
		fetchtest.JSON(w, 200, fmt.Sprintf(wrap, strings.Join(slots, ",")))
	})
}

func source(t testing.TB, c Config) *Source {
	t.Helper()
	s, err := New(c)
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

func TestTheNationIsMeasuredAndRegionsAreForecast(t *testing.T) {
	clock, calls := fetchtest.NewClock(t0), 0
	c, _ := fetchtest.Client(t, clock)
	base := serve(t, clock, &calls)
	r, err := source(t, Config{Client: c, BaseURL: base}).Latest(t.Context())
	if err != nil || *r.Value != 118 || r.Quality != signals.Good || r.Region != "GB" || r.Period != halfHour || r.Kind != signals.Average ||
		!r.PointTime.Equal(t0.Truncate(halfHour)) || r.Validate() != nil {
		t.Errorf("%+v, %v", r, err)
	}
	for _, config := range []Config{{RegionID: 13}, {Postcode: "rg10"}} {
		config.Client, config.BaseURL = c, base
		r, err := source(t, config).Latest(t.Context())
		if err != nil || *r.Value != 80 || r.Quality != signals.Forecasted {
			t.Errorf("%+v, %v", r, err)
		}
	}
	_, err = source(t, Config{Client: c, BaseURL: base, RegionID: 12}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalBadAnswer {
		t.Errorf("another region's values were taken: %v", e)
	}
}

func TestSlotsThatAreNotMeasuredYetAreForecasts(t *testing.T) {
	clock, calls := fetchtest.NewClock(t0), 0
	c, _ := fetchtest.Client(t, clock)
	s := source(t, Config{Client: c, BaseURL: serve(t, clock, &calls)})
	from := t0.Truncate(halfHour).Add(-30 * 24 * time.Hour)
	got, err := s.History(t.Context(), from, t0)
	if err != nil || calls != 3 || len(got) != 30*48+1 {
		t.Fatalf("%d slots in %d calls, %v", len(got), calls, err)
	}
	for i, r := range got {
		late := i >= len(got)-4 && i < len(got)-1
		if !r.PointTime.Equal(from.Add(time.Duration(i)*halfHour)) || late != (r.Quality == signals.Forecasted) ||
			!late && i < len(got)-1 && *r.Value != float64(100+r.PointTime.Hour()) || late && *r.Value != float64(200+r.PointTime.Hour()) {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	// The measurements come later.
	clock.Advance(2 * time.Hour)
	got, err = s.History(t.Context(), t0.Add(-2*time.Hour), t0)
	if err != nil || got[len(got)-1].Quality != signals.Good {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAForecastBeginsWithThePresentSlot(t *testing.T) {
	for _, config := range []Config{{}, {RegionID: 13}} {
		for _, at := range []time.Time{t0, t0.Truncate(halfHour)} {
			clock, calls := fetchtest.NewClock(at), 0
			c, _ := fetchtest.Client(t, clock)
			config.Client, config.BaseURL = c, serve(t, clock, &calls)
			f, err := source(t, config).Forecast(t.Context())
			if err != nil || f.Validate() != nil || !f.Points[0].Start.Equal(t0.Truncate(halfHour)) || len(f.Points) != 96 {
				t.Fatalf("%d points from %v, %v %v", len(f.Points), f.Points, err, f.Validate())
			}
			if want := float64(200 + 12); *f.Points[0].Value != want {
				t.Errorf("the present slot is %v instead of its forecast %v", *f.Points[0].Value, want)
			}
		}
	}
}

// Case B9.
func TestAForecastThatHasRunOutLeavesTheLastUntilItsEnd(t *testing.T) {
	for _, body := range []string{`{}`, `{"data":[]}`, ``, `{"data":null}`, `{"data":{"regionid":13,"data":[]}}`} {
		t.Run(body, func(t *testing.T) {
			clock, calls := fetchtest.NewClock(t0), 0
			c, log := fetchtest.Client(t, clock)
			full := serve(t, clock, &calls)
			base := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
				fetchtest.JSON(w, 200, body)
			})
			s := source(t, Config{Client: c, BaseURL: full})
			if _, err := s.Forecast(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.base = base
			for clock.Now().Before(t0.Add(47 * time.Hour)) {
				clock.Advance(30 * time.Minute)
				f, err := s.Forecast(t.Context())
				if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalNoData || e.Permanent {
					t.Fatalf("%v", e)
				}
				if _, ok := f.At(clock.Now()); !ok {
					t.Fatalf("nothing known at %s", clock.Now())
				}
			}
			clock.Advance(2 * time.Hour)
			if f, err := s.Forecast(t.Context()); err == nil || len(f.Points) != 0 {
				t.Errorf("%d points after the end, %v", len(f.Points), err)
			}
			if n := log.Count("provider of signals failed"); n != 1 {
				t.Errorf("logged %d times:\n%s", n, log)
			}
		})
	}
}

func TestErrorsInAnyStatusAreErrors(t *testing.T) {
	for status, want := range map[int]v1alpha1.Reason{200: v1alpha1.ReasonSignalBadAnswer, 400: v1alpha1.ReasonSignalRefused, 500: v1alpha1.ReasonSignalUnreachable} {
		c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
		base := fetchtest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
			fetchtest.JSON(w, status, `{"error":{"code":"400 Bad Request","message":"Please enter a valid date"}}`)
		})
		_, err := source(t, Config{Client: c, BaseURL: base}).Latest(t.Context())
		if e := reason(t, err); e.Reason != want || !strings.Contains(e.Error(), "Please enter a valid date") {
			t.Errorf("%d: %v", status, e)
		}
	}
}

func TestSlotsWithoutIntensityAreNotZero(t *testing.T) {
	for body, omitted := range map[string]bool{
		`{"data":[{"from":"2026-03-01T12:00Z","to":"2026-03-01T12:30Z"}]}`:                                                true,
		`{"data":[{"from":"2026-03-01T12:00Z","to":"2026-03-01T12:30Z","intensity":{"forecast":null,"actual":null}}]}`:    false,
		`{"data":[{"from":"2026-03-01T12:00Z","to":"2026-03-01T12:30Z","intensity":{}}]}`:                                 false,
		`{"data":[{"from":"2026-03-01T12:00Z","to":"2026-03-01T12:30Z","intensity":{"forecast":-5,"index":"very low"}}]}`: false,
	} {
		c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
		base := fetchtest.Serve(t, func(w http.ResponseWriter, _ *http.Request) { fetchtest.JSON(w, 200, body) })
		r, err := source(t, Config{Client: c, BaseURL: base}).Latest(t.Context())
		if err != nil || r.Value != nil || r.Omitted != omitted || r.Validate() != nil {
			t.Errorf("%s: %+v, %v", body, r, err)
		}
	}
	for _, body := range []string{
		`{"data":[{"from":"2026-03-01T12:00","to":"2026-03-01T12:30Z","intensity":{"forecast":1}}]}`,
		`{"data":[{"from":"2026-03-01T12:00Z","to":"2026-03-01T12:00Z","intensity":{"forecast":1}}]}`,
		`{"data":[{"data":[{"data":[{"data":[]}]}]}]}`, `{"data":7}`,
	} {
		c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
		base := fetchtest.Serve(t, func(w http.ResponseWriter, _ *http.Request) { fetchtest.JSON(w, 200, body) })
		_, err := source(t, Config{Client: c, BaseURL: base}).Latest(t.Context())
		if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalBadAnswer {
			t.Errorf("%s: %v", body, e)
		}
	}
}

func TestTheDayTheClocksChangeIsAnOrdinaryDay(t *testing.T) {
	// London changes on 29 March 2026 at 01:00Z and on 25 October at 01:00Z; slots
	// are UTC.
	for _, day := range []time.Time{time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC), time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC)} {
		clock, calls := fetchtest.NewClock(day.Add(72*time.Hour)), 0
		c, _ := fetchtest.Client(t, clock)
		london, err := time.LoadLocation("Europe/London")
		if err != nil {
			t.Skipf("no time zones on this machine: %v", err)
		}
		local := day.In(london)
		next := time.Date(local.Year(), local.Month(), local.Day()+1, 0, 0, 0, 0, london)
		begin := time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, london)
		got, err := source(t, Config{Client: c, BaseURL: serve(t, clock, &calls)}).History(t.Context(), begin, next)
		if want := int(next.Sub(begin) / halfHour); err != nil || len(got) != want || want == 48 {
			t.Errorf("%d slots, want %d, %v", len(got), want, err)
		}
	}
}

func TestARecordedForecastIsReadWhole(t *testing.T) {
	path := filepath.Join("..", "..", "..", "shared", "traces", "gb_neso_forecast_2023-05-04T1230Z.csv")
	file, err := os.Open(path)
	if err != nil {
		t.Skipf("no traces beside the checkout: %v", err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var slots []string
	for _, row := range rows[1:] {
		from, err := time.Parse(minutes, row[0])
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, fmt.Sprintf(`{"from":%q,"to":%q,"intensity":{"forecast":%s,"actual":null}}`, row[0], from.Add(halfHour).Format(minutes), row[1]))
	}
	c, _ := fetchtest.Client(t, fetchtest.NewClock(time.Date(2023, 5, 4, 12, 31, 0, 0, time.UTC)))
	base := fetchtest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fetchtest.JSON(w, 200, `{"data":[`+strings.Join(slots, ",")+`]}`)
	})
	f, err := source(t, Config{Client: c, BaseURL: base}).Forecast(t.Context())
	if err != nil || len(f.Points) != 96 || *f.Points[0].Value != 11 || f.Validate() != nil {
		t.Errorf("%d points, %v", len(f.Points), err)
	}
}

func TestConfigurationsThatCannotBeRightAreRefused(t *testing.T) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	for _, config := range []Config{{}, {Client: c, RegionID: 18}, {Client: c, RegionID: -1}, {Client: c, RegionID: 1, Postcode: "RG10"},
		{Client: c, Postcode: "RG10 1AA"}, {Client: c, Postcode: "../x"}, {Client: c, BaseURL: "x"}} {
		if _, err := New(config); err == nil {
			t.Errorf("%+v was taken", config)
		}
	}
}

func TestBrokenServersAreSurvived(t *testing.T) {
	ask := func(call func(*Source, context.Context) error) {
		fetchtest.Survives(t, t0, func(ctx context.Context, c *fetch.Client, base string) error {
			s, err := New(Config{Client: c, BaseURL: base})
			if err != nil {
				return err
			}
			return call(s, ctx)
		}, "refusal that repeats the question", "refusal that repeats the question far behind",
			"refusal that repeats the question escaped")
	}
	ask(func(s *Source, ctx context.Context) error { _, err := s.Latest(ctx); return err })
	ask(func(s *Source, ctx context.Context) error { _, err := s.Forecast(ctx); return err })
	ask(func(s *Source, ctx context.Context) error {
		_, err := s.History(ctx, t0.Add(-time.Hour), t0)
		return err
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"data":[`+slotJSON(t0, 1, "null")+`,`+slotJSON(t0.Add(-halfHour), 2, "0")+`]}`), true)
	f.Add([]byte(`{"data":{"regionid":13,"data":[`+slotJSON(t0, 1, "")+`]}}`), false)
	f.Add([]byte(`{"data":[{"regionid":13,"data":[`+slotJSON(t0, 1, "")+`]}],"error":null}`), false)
	s := &Source{region: "GB-13", id: 13}
	f.Fuzz(func(t *testing.T, body []byte, expected bool) {
		rs, err := s.decode(body, expected, t0)
		for i, r := range rs {
			if err != nil || r.Validate() != nil || i > 0 && !rs[i-1].PointTime.Before(r.PointTime) {
				t.Fatalf("%+v, %v, %v", r, err, r.Validate())
			}
		}
	})
}
