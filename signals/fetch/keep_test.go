package fetch_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/signals/fetch"
)

func TestALateProviderIsAskedAFewTimesPerPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 5 * time.Minute
		var calls atomic.Int64
		begin := time.Now()
		c, _ := client(t, func(*http.Request) (int, http.Header, string) { calls.Add(1); return 200, nil, "1" })
		decode := func(a fetch.Answer) (fetch.Result[time.Time], error) {
			point := a.Received.Add(-12 * time.Minute).Truncate(period) // published seven minutes late
			return fetch.Result[time.Time]{Value: point, Point: point, Period: period}, nil
		}
		var points []time.Time
		for time.Since(begin) < 2*time.Hour {
			p, err := fetch.Get(t.Context(), c, question("a"), decode)
			if err != nil {
				t.Fatal(err)
			}
			if len(points) == 0 || p.After(points[len(points)-1]) {
				points = append(points, p)
			}
			time.Sleep(10 * time.Second)
		}
		if len(points) < 23 {
			t.Errorf("saw %d of 24 points", len(points))
		}
		if n := calls.Load(); n > 4*24 {
			t.Errorf("%d calls in 24 periods", n)
		}
	})
}

func TestAnAnswerThatDidNotChangeIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full, same atomic.Int64
		c, _ := client(t, func(r *http.Request) (int, http.Header, string) {
			if r.Header.Get("If-None-Match") == `"v1"` {
				same.Add(1)
				return 304, nil, ""
			}
			full.Add(1)
			return 200, http.Header{"Etag": {`"v1"`}}, "body"
		})
		point := time.Now()
		for range 60 {
			got, err := fetch.Get(t.Context(), c, question("a"), func(a fetch.Answer) (fetch.Result[string], error) {
				return fetch.Result[string]{Value: string(a.Body), Point: point, Period: 5 * time.Minute}, nil
			})
			if err != nil || got != "body" {
				t.Fatalf("%q, %v", got, err)
			}
			time.Sleep(time.Minute)
		}
		if full.Load() != 1 || same.Load() < 5 {
			t.Errorf("%d whole answers and %d short ones", full.Load(), same.Load())
		}
	})
}

func TestQuestionsThatNobodyAsksAnyMoreAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := client(t, func(r *http.Request) (int, http.Header, string) {
			if strings.Contains(r.URL.RawQuery, "bad") {
				return 404, nil, `{}`
			}
			return 200, nil, "1"
		})
		for i := range 2000 {
			_, _ = fetch.Get(t.Context(), c, question(fmt.Sprint(i)), text(5*time.Minute))
			_, _ = fetch.Get(t.Context(), c, question(fmt.Sprint("bad", i)), text(5*time.Minute))
			time.Sleep(time.Minute)
		}
		entries, states, _ := c.Sizes()
		if entries > 100 || states > 3000 {
			t.Errorf("%d answers and %d failures are kept", entries, states)
		}
	})
}

func TestMetricsCountCallsFailuresAndReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		status := 200
		c, err := fetch.New(fetch.Config{Registerer: reg, Tries: 1, Transport: wire(func(*http.Request) (int, http.Header, string) { return status, nil, "1" })})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fetch.Get(t.Context(), c, question("a"), text(time.Hour))
		_, _ = fetch.Get(t.Context(), c, question("a"), text(time.Hour))
		status = 404
		_, _ = fetch.Get(t.Context(), c, question("b"), text(time.Hour))
		got := gathered(t, reg)
		for name, want := range map[string]float64{
			"girassol_signal_provider_failures_total provider=test reason=SignalRefused": 1,
			"girassol_signal_provider_requests_total code=200 provider=test":             1,
			"girassol_signal_provider_requests_total code=404 provider=test":             1,
			"girassol_signal_provider_reused_total provider=test":                        1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v, among %v", name, got[name], want, got)
			}
		}
		if _, err := fetch.New(fetch.Config{Registerer: reg}); err == nil {
			t.Error("the same metrics were registered twice")
		}
		c.Close()
		if left := gathered(t, reg); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func gathered(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue()
		}
	}
	return out
}

func TestARemarkIsLoggedOnce(t *testing.T) {
	c, log := client(t, nil)
	for range 3 {
		c.Note("test", "a", "this field\nends in May")
	}
	if log.Count("this field ends in May") != 1 {
		t.Errorf("%s", log)
	}
}
