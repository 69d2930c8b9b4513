package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
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

var t0 = time.Date(2026, 3, 1, 12, 7, 30, 0, time.UTC)

func vector(values ...string) string {
	var series []string
	for i, v := range values {
		series = append(series, fmt.Sprintf(`{"metric":{"replica":"%d"},"value":[%d.781,%q]}`, i, t0.Unix(), v))
	}
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(series, ",") + `]}}`
}

func source(t testing.TB, c *fetch.Client, base string, config Config) *Source {
	t.Helper()
	config.Client, config.BaseURL, config.Query, config.Region = c, base, "grid_intensity", "lab"
	if config.Kind == "" {
		config.Kind, config.Unit = signals.Average, signals.GramsPerKWh
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func answers(t testing.TB, status int, body string) (*fetch.Client, string) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	return c, fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) { fetchtest.JSON(w, status, body) })
}

func reason(t *testing.T, err error) *signals.ProviderError {
	t.Helper()
	var e *signals.ProviderError
	if !errors.As(err, &e) {
		t.Fatalf("got %T %v, want a ProviderError", err, err)
	}
	return e
}

func TestTheValueOfAPeriodCountsOnce(t *testing.T) {
	clock := fetchtest.NewClock(t0)
	c, _ := fetchtest.Client(t, clock)
	calls := 0
	base := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		if r.URL.Query().Get("query") != "grid_intensity" || r.URL.Path != "/prefix/api/v1/query" {
			t.Errorf("asked %s", r.URL)
		}
		fetchtest.JSON(w, 200, strings.ReplaceAll(vector("12.5"), fmt.Sprint(t0.Unix()), fmt.Sprint(clock.Now().Unix())))
	})
	s := source(t, c, base+"/prefix/", Config{})
	points := map[time.Time]bool{}
	for clock.Now().Before(t0.Add(time.Hour)) {
		r, err := s.Latest(t.Context())
		if err != nil || *r.Value != 12.5 || r.Period != 5*time.Minute || r.Region != "lab" || r.Validate() != nil {
			t.Fatalf("%+v, %v", r, err)
		}
		points[r.PointTime] = true
		clock.Advance(10 * time.Second)
	}
	if len(points) != 13 || calls != 13 {
		t.Errorf("%d points in %d calls, want 13", len(points), calls)
	}
}

func TestNoNumberIsNoValue(t *testing.T) {
	for _, v := range []string{"NaN", "+Inf", "-Inf", "1e999", "-7"} {
		c, base := answers(t, 200, vector(v))
		r, err := source(t, c, base, Config{}).Latest(t.Context())
		if err != nil || r.Value != nil || r.Validate() != nil {
			t.Errorf("%s: %+v, %v", v, r, err)
		}
	}
	c, base := answers(t, 200, vector("-7"))
	if r, err := source(t, c, base, Config{Kind: signals.Price, Unit: signals.EurosPerMWh}).Latest(t.Context()); err != nil || *r.Value != -7 {
		t.Errorf("a negative price: %+v, %v", r, err)
	}
	c, base = answers(t, 200, vector("0"))
	if r, err := source(t, c, base, Config{}).Latest(t.Context()); err != nil || r.Value == nil || *r.Value != 0 {
		t.Errorf("zero: %+v, %v", r, err)
	}
	c, base = answers(t, 200, vector("1000"))
	if r, err := source(t, c, base, Config{Kind: signals.Marginal, Unit: signals.PoundsPerMWh}).Latest(t.Context()); err != nil || r.Unit != signals.GramsPerKWh || int(*r.Value) != 453 {
		t.Errorf("pounds: %+v, %v", r, err)
	}
}

func TestOneSeriesIsRequired(t *testing.T) {
	c, base := answers(t, 200, vector("1", "2"))
	_, err := source(t, c, base, Config{}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalBadAnswer || e.Permanent || !strings.Contains(e.Error(), "2 series") {
		t.Errorf("%v", e)
	}
	c, base = answers(t, 200, vector())
	_, err = source(t, c, base, Config{}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalNoData {
		t.Errorf("%v", e)
	}
	c, base = answers(t, 200, `{"status":"success","data":{"resultType":"scalar","result":[1772366850,"3"]}}`)
	if r, err := source(t, c, base, Config{}).Latest(t.Context()); err != nil || *r.Value != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestHistoryIsTheRangeAtTheBeginningsOfPeriods(t *testing.T) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	calls := 0
	base := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		q := r.URL.Query()
		from, _ := strconv.ParseFloat(q.Get("start"), 64)
		to, _ := strconv.ParseFloat(q.Get("end"), 64)
		step, _ := strconv.ParseFloat(q.Get("step"), 64)
		if step < 1 || (to-from)/step > 11000 {
			fetchtest.JSON(w, 400, `{"status":"error","errorType":"bad_data","error":"exceeded maximum resolution of 11,000 points per timeseries"}`)
			return
		}
		var values []string
		for at := from; at <= to; at += step {
			if int(at)%600 == 0 { // every other sample is missing
				values = append(values, fmt.Sprintf(`[%.3f,"%d"]`, at, int(at)%86400))
			}
		}
		fetchtest.JSON(w, 200, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[`+strings.Join(values, ",")+`]}]}}`)
	})
	s := source(t, c, base, Config{})
	got, err := s.History(t.Context(), t0.Add(-60*24*time.Hour), t0)
	if err != nil || calls != 2 || len(got) != 60*144 {
		t.Fatalf("%d points in %d calls, %v", len(got), calls, err)
	}
	for i, r := range got {
		if r.PointTime.Unix()%600 != 0 || i > 0 && r.PointTime.Sub(got[i-1].PointTime) != 10*time.Minute || r.PointTime.Before(t0.Add(-60*24*time.Hour)) {
			t.Fatalf("%+v", r)
		}
	}
	c2, base2 := answers(t, 200, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	if got, err := source(t, c2, base2, Config{}).History(t.Context(), t0.Add(-time.Hour), t0); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestErrorsOfTheServerAreShown(t *testing.T) {
	for status, want := range map[int]struct {
		reason    v1alpha1.Reason
		permanent bool
	}{
		200: {v1alpha1.ReasonSignalBadAnswer, false},
		400: {v1alpha1.ReasonSignalRefused, true},
		422: {v1alpha1.ReasonSignalRefused, true},
		401: {v1alpha1.ReasonSignalUnauthorized, true},
		403: {v1alpha1.ReasonSignalUnauthorized, true},
		503: {v1alpha1.ReasonSignalUnreachable, false},
	} {
		c, base := answers(t, status, `{"status":"error","errorType":"bad_data","error":"1:7: parse error: unexpected end"}`)
		_, err := source(t, c, base, Config{}).Latest(t.Context())
		if e := reason(t, err); e.Reason != want.reason || e.Permanent != want.permanent || !strings.Contains(e.Error(), "unexpected end") {
			t.Errorf("%d: %v", status, e)
		}
	}
}

func TestCredentialsAreSentOverSecureLinksOnly(t *testing.T) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	base := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+fetchtest.Secret {
			t.Error("no token")
		}
		fetchtest.JSON(w, 200, vector("1"))
	})
	auth := fetch.HeaderAuth("Authorization", "Bearer ", fetch.Value(fetchtest.Secret))
	if _, err := source(t, c, base, Config{Auth: auth}).Latest(t.Context()); err != nil {
		t.Error(err)
	}
	_, err := source(t, c, "http://prometheus.invalid:9090", Config{Auth: auth}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalUnauthorized || !strings.Contains(e.Error(), "https") {
		t.Errorf("%v", e)
	}
}

func TestConfigurationsThatCannotBeRightAreRefused(t *testing.T) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	good := Config{Client: c, BaseURL: "http://p:9090", Query: "q", Kind: signals.Average, Unit: signals.GramsPerKWh, Region: "r"}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"client": func(c *Config) { c.Client = nil }, "base": func(c *Config) { c.BaseURL = "" }, "userinfo": func(c *Config) { c.BaseURL = "http://a:b@p" },
		"query": func(c *Config) { c.Query = "" }, "region": func(c *Config) { c.Region = "" }, "unit": func(c *Config) { c.Unit = signals.Percent },
		"period": func(c *Config) { c.Period = time.Millisecond },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestBrokenServersAreSurvived(t *testing.T) {
	fetchtest.Survives(t, t0, func(ctx context.Context, c *fetch.Client, base string) error {
		s, err := New(Config{Client: c, BaseURL: base, Query: "q", Kind: signals.Average, Unit: signals.GramsPerKWh, Region: "r",
			Auth: fetch.BasicAuth(fetch.Value(fetchtest.Secret), fetch.Value(fetchtest.Secret))})
		if err != nil {
			return err
		}
		_, err = s.Latest(ctx)
		return err
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(vector("1")))
	f.Add([]byte(`{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"NaN"],[2.5,"+Inf"],[3,"4"]]}]}}`))
	f.Add([]byte(`{"status":"success","data":{"resultType":"scalar","result":[1772366850,"3"]}}`))
	s := &Source{config: Config{Kind: signals.Average, Unit: signals.PoundsPerMWh, Region: "r", Period: time.Minute}}
	f.Fuzz(func(t *testing.T, body []byte) {
		samples, err := decode(body)
		for _, v := range samples {
			if r := s.reading(v, t0); err != nil || r.Validate() != nil {
				t.Fatalf("%+v, %v, %v", r, err, r.Validate())
			}
		}
	})
}
