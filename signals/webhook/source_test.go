package webhook_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals"
	"girassol.dev/signals/webhook"
)

var (
	_ signals.Source     = (*webhook.Source)(nil)
	_ signals.Forecaster = (*webhook.Source)(nil)
)

// points are data of kind "observed" or "forecast" whose values begin at the given
// minutes after t0.
func points(kind string, minutes, generated int, values ...string) string {
	var out []string
	for i, v := range values {
		out = append(out, fmt.Sprintf(`{"start":%q,"duration_s":300,"value":%s}`, stamp(time.Duration(minutes+5*i)*time.Minute), v))
	}
	return body(signalpush.Type("energy.signal."+kind), fmt.Sprintf(`{"site":"lisboa","kind":"marginal","unit":"gCO2/kWh","points":[%s],"generated_at":%q}`,
		strings.Join(out, ","), stamp(time.Duration(generated)*time.Minute)))
}

func TestTheLatestReading(t *testing.T) {
	for name, c := range map[string]struct {
		pushed []string
		after  time.Duration
		want   string // "" for none
	}{
		"nothing":                         {nil, 0, ""},
		"one":                             {[]string{points("observed", 0, 0, "1")}, 0, "1 at 12:00 ok"},
		"the newest that has begun":       {[]string{points("observed", -10, 0, "1", "2", "3")}, 0, "3 at 12:00 ok"},
		"a little ahead":                  {[]string{points("observed", 4, 0, "1")}, 0, "1 at 12:04 ok"},
		"null is a reading without value": {[]string{points("observed", 0, 0, "null")}, 0, "none at 12:00 ok"},
		"stale, and nothing else":         {[]string{points("observed", 0, 0, "1")}, time.Hour, "1 at 12:00 ok"},
		"stale, and a forecast":           {[]string{points("observed", 0, 0, "1"), points("forecast", 0, 0, "5", "6", "7", "8", "9")}, 16 * time.Minute, "8 at 12:15 forecast"},
		"fresh, and a forecast":           {[]string{points("observed", 0, 0, "1"), points("forecast", 0, 0, "5", "6", "7", "8", "9")}, 14 * time.Minute, "1 at 12:00 ok"},
		"a forecast only":                 {[]string{points("forecast", 0, 0, "5", "6")}, 5 * time.Minute, "6 at 12:05 forecast"},
		"a forecast that has run out":     {[]string{points("forecast", 0, 0, "5", "6")}, 10 * time.Minute, ""},
		"a forecast that has not begun":   {[]string{points("forecast", 5, 0, "5", "6")}, 0, ""},
		"a forecast that is too old":      {[]string{points("forecast", 0, -48*60, "5", "6")}, time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			for _, p := range c.pushed {
				r.want(202, signalpush.Stored, p)
			}
			r.clock.advance(c.after)
			for range 2 { // and after a restart
				got, err := r.h.Source("", webhook.Target{Site: "lisboa"}, signals.Marginal).Latest(t.Context())
				switch {
				case c.want == "":
					if !errors.Is(err, webhook.ErrNothing) || !strings.Contains(err.Error(), "site lisboa") {
						t.Errorf("%+v %v", got, err)
					}
				case err != nil || fmt.Sprintf("%s at %s %s", number(got.Value), got.PointTime.Format("15:04"), got.Quality) != c.want || got.Validate() != nil:
					t.Errorf("%+v %v, want %s", got, err, c.want)
				}
				r.start()
			}
			for _, other := range []*webhook.Source{
				r.h.Source("", webhook.Target{Site: "porto"}, signals.Marginal), r.h.Source("", webhook.Target{Region: "lisboa"}, signals.Marginal),
				r.h.Source("", webhook.Target{Site: "lisboa"}, signals.Average), r.h.Source("grid", webhook.Target{Site: "lisboa"}, signals.Marginal)} {
				if got, err := other.Latest(t.Context()); err == nil {
					t.Errorf("somebody else's reading: %+v", got)
				}
			}
		})
	}
}

func TestAReadingEndsWithItsValidity(t *testing.T) {
	r := newRig(t, nil)
	r.want(202, signalpush.Stored, strings.Replace(observed("1", 0), `"site"`, `"valid_until":"`+stamp(time.Minute)+`","site"`, 1))
	s := r.h.Source("meter", webhook.Target{Site: "lisboa"}, signals.Marginal)
	if _, err := s.Latest(t.Context()); err != nil {
		t.Error(err)
	}
	r.clock.advance(time.Minute)
	if got, err := s.Latest(t.Context()); err == nil {
		t.Errorf("%+v", got)
	}
}

func TestReadingsAreCopies(t *testing.T) {
	r := newRig(t, nil)
	r.want(202, signalpush.Stored, observed("1", 0))
	s := r.h.Source("meter", webhook.Target{Site: "lisboa"}, signals.Marginal)
	got, _ := s.Latest(t.Context())
	*got.Value = 99
	if again, _ := s.Latest(t.Context()); *again.Value != 1 {
		t.Error("a reader changed what others read")
	}
}

func TestAForecastIsTheNewestOne(t *testing.T) {
	r := newRig(t, nil)
	s := r.h.Source("", webhook.Target{Site: "lisboa"}, signals.Marginal)
	if _, err := s.Forecast(t.Context()); !errors.Is(err, webhook.ErrNothing) {
		t.Error(err)
	}
	r.want(202, signalpush.Stored, points("forecast", 0, -60, "1", "2"))
	r.want(202, signalpush.Stored, points("forecast", 0, 0, "3", "null", "5"))
	r.want(200, signalpush.Superseded, points("forecast", 0, -30, "7", "8"))
	f, err := s.Forecast(t.Context())
	if err != nil || f.Validate() != nil || len(f.Points) != 3 || *f.Points[0].Value != 3 || f.Points[1].Value != nil || f.Source != "meter" || f.Region != "lisboa" {
		t.Errorf("%+v %v", f, err)
	}
	r.clock.advance(15 * time.Minute)
	if f, err := s.Forecast(t.Context()); err == nil {
		t.Errorf("it has run out: %+v", f)
	}
}

func TestPartsOfAForecastAreJoined(t *testing.T) {
	r := newRig(t, nil)
	part := func(series string, generated time.Duration, minutes ...int) webhook.Message {
		m := webhook.Message{Type: webhook.TypeForecast, Target: webhook.Target{Site: "lisboa"}, GeneratedAt: t0.Add(generated),
			Series: series, Kind: signals.Price, Unit: signals.EurosPerMWh}
		for _, minute := range minutes {
			v := generated.Seconds()
			m.Points = append(m.Points, webhook.Point{Start: t0.Add(time.Duration(minute) * time.Minute), Period: 30 * time.Minute, Value: &v})
		}
		return m
	}
	push := func(m webhook.Message) {
		t.Helper()
		if _, err := r.h.Push(t.Context(), "meter", []webhook.Message{m}); err != nil {
			t.Fatal(err)
		}
	}
	push(part("today", -3*time.Second, 0, 30, 60))
	push(part("tomorrow", -2*time.Second, 90))
	push(part("change", -time.Second, 45))
	want := func(text string) {
		t.Helper()
		f, err := r.h.Source("", webhook.Target{Site: "lisboa"}, signals.Price).Forecast(t.Context())
		got := ""
		for _, p := range f.Points {
			got += fmt.Sprintf("%s=%s ", p.Start.Format("15:04"), number(p.Value))
		}
		if err != nil || f.Validate() != nil || strings.TrimSpace(got) != text {
			t.Errorf("%s %v, want %s", got, err, text)
		}
	}
	want("12:00=-3 12:45=-1 13:30=-2")
	push(part("change", 0)) // withdrawn
	want("12:00=-3 12:30=-3 13:00=-3 13:30=-2")
}
