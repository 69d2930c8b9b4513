package fetch_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
