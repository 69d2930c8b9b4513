package fetch_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/fetch"
)

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
