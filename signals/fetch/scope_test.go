package fetch_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/fetch/fetchtest"
)

func TestAServersFaultHoldsForAllQuestionsOfItsScopeAndForNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		c, log := client(t, func(r *http.Request) (int, http.Header, string) {
			if r.URL.Query().Get("region") == "b" {
				return 200, nil, "1"
			}
			calls.Add(1)
			return 500, nil, ""
		})
		for _, span := range []string{"", "&from=1", "&from=2"} {
			r := question("a")
			r.URL += span
			_, err := fetch.Get(t.Context(), c, r, text(time.Hour))
			if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalUnreachable {
				t.Errorf("%v", e)
			}
		}
		if n := calls.Load(); n != 3 || log.Count("failed") != 1 {
			t.Errorf("%d calls, want the three tries of the first question\n%s", n, log)
		}
		if _, err := fetch.Get(t.Context(), c, question("b"), text(time.Hour)); err != nil {
			t.Error(err)
		}
	})
}

func TestARefusedOrEmptyAnswerHoldsForItsQuestionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		c, log := client(t, func(r *http.Request) (int, http.Header, string) {
			calls.Add(1)
			if r.URL.Query().Get("from") == "1" {
				return 400, nil, `{"error":"too long"}`
			}
			return 200, nil, "1"
		})
		bad := question("a")
		bad.URL += "&from=1"
		for range 5 {
			if _, err := fetch.Get(t.Context(), c, bad, text(time.Hour)); !reason(t, err).Permanent {
				t.Errorf("%v", err)
			}
			if _, err := fetch.Get(t.Context(), c, question("a"), text(time.Hour)); err != nil {
				t.Error(err)
			}
		}
		if calls.Load() != 2 {
			t.Errorf("%d calls\n%s", calls.Load(), log)
		}
	})
}

func TestAServerThatAsksForTimeIsGivenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		c, _ := client(t, func(*http.Request) (int, http.Header, string) {
			calls.Add(1)
			return 503, http.Header{"Retry-After": {"600"}}, ""
		})
		begin := time.Now()
		for time.Since(begin) < 590*time.Second {
			_, err := fetch.Get(t.Context(), c, question("a"), text(time.Minute))
			if e := reason(t, err); e.RetryAt.Sub(begin) < 600*time.Second {
				t.Fatalf("to be asked again after %s", e.RetryAt.Sub(begin))
			}
			time.Sleep(time.Second)
		}
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

func TestAClockThatIsSetBackKeepsNoAnswer(t *testing.T) {
	calls := 0
	url := fetchtest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		fetchtest.JSON(w, 200, "1")
	})
	clock := fetchtest.NewClock(t0)
	c, _ := fetchtest.Client(t, clock)
	r := question("a")
	r.URL = url
	for _, back := range []time.Duration{0, -time.Minute, -24 * time.Hour} {
		clock.Advance(back)
		if _, err := fetch.Get(t.Context(), c, r, text(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 2 {
		t.Errorf("%d calls, want one and another after a day back", calls)
	}
}

func TestAnAnswerThatIsTooLongIsNotReadInPart(t *testing.T) {
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	r := question("a")
	r.URL = fetchtest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fetchtest.JSON(w, 200, "[1]"+strings.Repeat(" ", 5<<20))
	})
	_, err := fetch.Get(t.Context(), c, r, text(time.Hour))
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalBadAnswer || !strings.Contains(e.Error(), "bytes") {
		t.Errorf("%v", e)
	}
}
