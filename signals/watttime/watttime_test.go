package watttime_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch/fetchtest"
	"girassol.dev/signals/watttime"
)

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
