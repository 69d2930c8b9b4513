package webhooksig

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// trip answers requests without a network.
type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, retryAfter string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}
	if retryAfter != "" {
		r.Header.Set("Retry-After", retryAfter)
	}
	return r
}

func TestADeliveryIsTriedAgainWithTheSameIDAndAFreshTimestamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := secret(t, 'k')
		var at []time.Time
		answers := []func() (*http.Response, error){
			func() (*http.Response, error) { return nil, errors.New("connection refused") },
			func() (*http.Response, error) { return answer(503, ""), nil },
			func() (*http.Response, error) { return answer(429, "20"), nil },
			func() (*http.Response, error) { return answer(202, ""), nil },
		}
		p := Post{URL: "http://127.0.0.1/", Secrets: []Secret{k}, ID: "msg_1", ContentType: "application/json", Body: []byte("{}"),
			Client: &http.Client{Transport: trip(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				if s, err := Verify(r.Header, []Secret{k}, body, time.Now()); err != nil || s.ID != "msg_1" {
					t.Errorf("%v %v", s, err)
				}
				at = append(at, time.Now())
				return answers[len(at)-1]()
			})}}
		r, err := p.Do(t.Context())
		if err != nil || r.Status != 202 || r.Tries != 4 {
			t.Fatalf("%+v %v", r, err)
		}
		if wait := at[3].Sub(at[2]); wait < 20*time.Second || wait > 30*time.Second {
			t.Errorf("asked to wait 20 s, waited %s", wait)
		}
		if wait := at[1].Sub(at[0]); wait < 500*time.Millisecond || wait > 1500*time.Millisecond {
			t.Errorf("the first wait was %s", wait)
		}
	})
}

func TestADeliveryEndsWithARefusalARedirectOrTheLastTry(t *testing.T) {
	for status, tries := range map[int]int{202: 1, 200: 1, 302: 1, 400: 1, 401: 1, 410: 1, 422: 1, 408: 3, 429: 3, 500: 3, 502: 3} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			r, err := Post{URL: "http://127.0.0.1/", Tries: 3, ID: "a", Client: &http.Client{
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
				Transport:     trip(func(*http.Request) (*http.Response, error) { n++; return answer(status, ""), nil }),
			}}.Do(t.Context())
			if err != nil || r.Status != status || n != tries || r.Tries != tries {
				t.Errorf("%d: %+v after %d requests, %v", status, r, n, err)
			}
		})
	}
}

func TestAnInterruptEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := Post{URL: "http://127.0.0.1/", ID: "a", Waiting: func(error, time.Duration) { cancel() },
			Client: &http.Client{Transport: trip(func(*http.Request) (*http.Response, error) { return answer(503, "3600"), nil })}}
		if r, err := p.Do(ctx); !errors.Is(err, context.Canceled) || r.Tries != 1 {
			t.Errorf("%+v %v", r, err)
		}
	})
}

func TestRetryAfterIsSecondsOrADate(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999999": 0,
		t0.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		t0.Add(-time.Hour).Format(http.TimeFormat):       0,
	} {
		if got := retryAfter(s, t0); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}
