package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/fetch/fetchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// wire answers calls in the process, so that tests can run in a bubble of time.
type wire func(*http.Request) (status int, header http.Header, body string)

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	status, header, body := w(r)
	if status == 0 { // hangs
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if header == nil {
		header = http.Header{}
	}
	if header.Get("Content-Type") == "" {
		header.Set("Content-Type", "application/json")
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func client(t *testing.T, w wire) (*fetch.Client, *fetchtest.Log) {
	t.Helper()
	log := &fetchtest.Log{}
	c, err := fetch.New(fetch.Config{Transport: w, Log: slog.New(slog.NewJSONHandler(log, nil)),
		Random: func() float64 { return 0.5 }})
	if err != nil {
		t.Fatal(err)
	}
	return c, log
}

func question(region string) fetch.Request {
	return fetch.Request{Provider: "test", Region: region, Endpoint: "now", URL: "https://provider.test/now?region=" + region, Period: time.Hour}
}

// text asks and takes the body as the value of the hour that now lies in.
func text(period time.Duration) func(fetch.Answer) (fetch.Result[string], error) {
	return func(a fetch.Answer) (fetch.Result[string], error) {
		return fetch.Result[string]{Value: string(a.Body), Point: a.Received.Truncate(max(period, 1)), Period: period}, nil
	}
}

func reason(t *testing.T, err error) *signals.ProviderError {
	t.Helper()
	var e *signals.ProviderError
	if !errors.As(err, &e) {
		t.Fatalf("got %T %v, want a ProviderError", err, err)
	}
	return e
}

// Case B12.
func TestTwentySitesOfOneRegionMakeOneCallPerPeriodAndFewWhileItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, ill atomic.Int64
		c, log := client(t, func(*http.Request) (int, http.Header, string) {
			calls.Add(1)
			if ill.Load() != 0 {
				return 500, nil, `{"error":"try later"}`
			}
			return 200, nil, "1"
		})
		hour := func() (errs int64) {
			calls.Store(0)
			var bad atomic.Int64
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					for range 360 {
						if _, err := fetch.Get(t.Context(), c, question("a"), text(time.Hour)); err != nil {
							bad.Add(1)
						}
						time.Sleep(10 * time.Second)
					}
				})
			}
			wg.Wait()
			return bad.Load()
		}
		if bad := hour(); bad != 0 || calls.Load() > 2 {
			t.Errorf("%d calls and %d errors in a good hour, want one call", calls.Load(), bad)
		}
		hour() // starts within a period and ends within one
		if calls.Load() > 2 {
			t.Errorf("%d calls in another good hour", calls.Load())
		}
		ill.Store(1)
		time.Sleep(time.Hour)
		bad := hour()
		if bad != 20*360 {
			t.Errorf("%d errors, want all %d", bad, 20*360)
		}
		if n := calls.Load(); n < 5 || n > 15 {
			t.Errorf("%d calls in a bad hour, want a backoff's dozen", n)
		}
		if n := log.Count("provider of signals failed"); n != 1 {
			t.Errorf("the failure was logged %d times:\n%s", n, log)
		}
		ill.Store(0)
		hour()
		if log.Count("provider of signals recovered") != 1 {
			t.Errorf("recovery was not logged once:\n%s", log)
		}
	})
}

func TestAFailingProviderIsAskedForEverAtMostAQuarterHourApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last time.Time
		var widest time.Duration
		c, _ := client(t, func(*http.Request) (int, http.Header, string) {
			if !last.IsZero() {
				widest = max(widest, time.Since(last))
			}
			last = time.Now()
			return 503, nil, ""
		})
		for range 2 * 24 * 60 * 6 {
			_, err := fetch.Get(t.Context(), c, question("a"), text(time.Hour))
			if e := reason(t, err); e.Permanent || e.Reason != v1alpha1.ReasonSignalUnreachable || e.RetryAt.IsZero() {
				t.Fatalf("%+v", e)
			}
			time.Sleep(10 * time.Second)
		}
		if since := time.Since(last); since > 19*time.Minute || widest > 19*time.Minute {
			t.Errorf("last asked %s ago, widest gap %s", since, widest)
		}
	})
}

func TestAHangingProviderDelaysNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := client(t, func(r *http.Request) (int, http.Header, string) {
			if r.URL.Query().Get("region") == "hangs" {
				return 0, nil, ""
			}
			return 200, nil, "1"
		})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				_, err := fetch.Get(t.Context(), c, question("hangs"), text(time.Hour))
				if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalUnreachable || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
			})
		}
		synctest.Wait()
		begin := time.Now()
		if _, err := fetch.Get(t.Context(), c, question("well"), text(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d >= time.Second {
			t.Errorf("another region waited %s", d)
		}
		wg.Wait()
		if d := time.Since(begin); d > 9*time.Second {
			t.Errorf("the hanging one was waited for %s", d)
		}
	})
}

func TestACallerThatLeavesTakesNobodyAlongAndTheLastEndsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		release := make(chan struct{})
		c, log := client(t, func(r *http.Request) (int, http.Header, string) {
			select {
			case <-release:
				return 200, nil, "1"
			case <-r.Context().Done():
				ended <- r.Context().Err()
				return 0, nil, ""
			}
		})
		short, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := fetch.Get(short, c, question("a"), text(time.Hour))
			left <- err
		}()
		stayed := make(chan error, 1)
		go func() {
			_, err := fetch.Get(t.Context(), c, question("a"), text(time.Hour))
			stayed <- err
		}()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		close(release)
		if err := <-stayed; err != nil {
			t.Errorf("the one who stayed got %v", err)
		}

		release = make(chan struct{})
		only, leave := context.WithCancel(t.Context())
		go func() {
			_, err := fetch.Get(only, c, question("b"), text(time.Hour))
			left <- err
		}()
		synctest.Wait()
		leave()
		<-left
		if err := <-ended; err == nil {
			t.Error("the call went on without anybody")
		}
		synctest.Wait()
		if log.Count("failed") != 0 {
			t.Errorf("leaving was logged as a failure:\n%s", log)
		}
	})
}

func TestACallersDeadlineCountsAsTheProvidersFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		c, _ := client(t, func(*http.Request) (int, http.Header, string) { calls.Add(1); return 0, nil, "" })
		for range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := fetch.Get(ctx, c, question("a"), text(time.Hour))
			cancel()
			if reason(t, err).Reason != v1alpha1.ReasonSignalUnreachable {
				t.Errorf("%v", err)
			}
			time.Sleep(10 * time.Second)
		}
		if n := calls.Load(); n > 12 {
			t.Errorf("a provider that is too slow was called %d times in ten minutes", n)
		}
	})
}

func TestTransientFaultsAreTriedAgainWithinOneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		c, log := client(t, func(*http.Request) (int, http.Header, string) {
			if calls.Add(1) < 3 {
				return 502, http.Header{"Content-Type": {"text/html"}}, "<html>"
			}
			return 200, nil, "1"
		})
		if _, err := fetch.Get(t.Context(), c, question("a"), text(time.Hour)); err != nil || calls.Load() != 3 {
			t.Errorf("%v after %d calls", err, calls.Load())
		}
		if log.String() != "" {
			t.Errorf("logged %s", log)
		}
	})
}

func TestRetryAfterSilencesTheHostForAllRegions(t *testing.T) {
	for _, c := range []struct {
		name   string
		header func() string
		want   time.Duration
	}{
		{"seconds", func() string { return "120" }, 120 * time.Second},
		{"date", func() string { return time.Now().Add(10 * time.Minute).UTC().Format(http.TimeFormat) }, 10 * time.Minute},
		{"absent", func() string { return "" }, 30 * time.Second},
		{"nonsense", func() string { return "soon" }, 30 * time.Second},
		{"past", func() string { return "Sun, 06 Nov 1994 08:49:37 GMT" }, 30 * time.Second},
		{"negative", func() string { return "-5" }, 30 * time.Second},
		{"for ever", func() string { return "99999999999999999999" }, 6 * time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				cl, log := client(t, func(*http.Request) (int, http.Header, string) {
					if calls.Add(1) == 1 {
						return 429, http.Header{"Retry-After": {c.header()}}, `{"error":"x","msg":"too many"}`
					}
					return 200, nil, "1"
				})
				begin := time.Now()
				_, err := fetch.Get(t.Context(), cl, question("a"), text(time.Hour))
				e := reason(t, err)
				if e.Reason != v1alpha1.ReasonSignalRateLimited || e.Permanent || e.Status != 429 {
					t.Fatalf("%+v", e)
				}
				if wait := e.RetryAt.Sub(begin); wait < c.want-time.Second || wait > c.want*5/4 {
					t.Errorf("silent for %s, want %s", wait, c.want)
				}
				time.Sleep(c.want - 2*time.Second)
				_, err = fetch.Get(t.Context(), cl, question("b"), text(time.Hour))
				if reason(t, err).Reason != v1alpha1.ReasonSignalRateLimited || calls.Load() != 1 {
					t.Errorf("another region called in the silence: %v", err)
				}
				other := question("c")
				other.URL = "https://elsewhere.test/"
				if _, err := fetch.Get(t.Context(), cl, other, text(time.Hour)); err != nil {
					t.Errorf("another host is silenced, too: %v", err)
				}
				time.Sleep(time.Until(e.RetryAt) + time.Second)
				if _, err = fetch.Get(t.Context(), cl, question("b"), text(time.Hour)); err != nil {
					t.Error(err)
				}
				if log.Count("failed") != 1 {
					t.Errorf("%s", log)
				}
			})
		})
	}
}

func TestCallsAreSpacedByTheHostsLimitAndFailRatherThanWaitLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		c, _ := client(t, func(*http.Request) (int, http.Header, string) { calls.Add(1); return 200, nil, "1" })
		ask := func(i int, bucket string) error {
			r := question(fmt.Sprint(i))
			r.Limit, r.Bucket = fetch.Limit{Every: 2 * time.Second, Burst: 3}, bucket
			_, err := fetch.Get(t.Context(), c, r, text(time.Hour))
			return err
		}
		begin := time.Now()
		errs := make(chan error, 10)
		for i := range 10 {
			go func() { errs <- ask(i, "") }()
		}
		limited := 0
		for range 10 {
			if err := <-errs; err != nil {
				e := reason(t, err)
				if e.Reason != v1alpha1.ReasonSignalRateLimited || !e.RetryAt.After(begin) {
					t.Errorf("%+v", e)
				}
				limited++
			}
		}
		if d := time.Since(begin); limited != 5 || calls.Load() != 5 || d != 4*time.Second {
			t.Errorf("%d calls and %d refusals in %s, want 3 at once, 2 by the fourth second", calls.Load(), limited, d)
		}
		if err := ask(100, "provider.test#login"); err != nil {
			t.Errorf("another bucket of the host is empty, too: %v", err)
		}
		time.Sleep(time.Minute)
		if err := ask(7, ""); err != nil {
			t.Error(err)
		}
	})
}

func TestPermanentRefusalsAreAskedAgainHourlyOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		c, log := client(t, func(r *http.Request) (int, http.Header, string) {
			if r.URL.Query().Get("region") == "open" {
				return 200, nil, "1"
			}
			calls.Add(1)
			return 403, nil, `{"error":"Invalid scope","message":"only the small plan"}`
		})
		for range 12 * 360 {
			_, err := fetch.Get(t.Context(), c, question("closed"), text(time.Hour))
			e := reason(t, err)
			if !e.Permanent || e.Reason != v1alpha1.ReasonSignalNotCovered || !strings.Contains(e.Error(), "closed") ||
				!strings.Contains(e.Error(), "only the small plan") {
				t.Fatalf("%v", e)
			}
			if _, err := fetch.Get(t.Context(), c, question("open"), text(time.Hour)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if n := calls.Load(); n < 10 || n > 16 {
			t.Errorf("%d calls in twelve hours", n)
		}
		if log.Count("failed") != 1 {
			t.Errorf("%s", log)
		}
	})
}

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
