// Package fetchtest helps to test providers of signals: a clock that jumps over
// waits, logs that are kept, and broken servers that every provider must survive.
// It must not know any provider's fields.
package fetchtest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

// Clock jumps: a timer moves it on and fires at once.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock shows t.
func NewClock(t time.Time) *Clock { return &Clock{now: t} }

// Now implements signals.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set moves the clock.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}

// Advance moves the clock by d.
func (c *Clock) Advance(d time.Duration) { c.Set(c.Now().Add(d)) }

// NewTimer implements signals.Clock.
func (c *Clock) NewTimer(d time.Duration) signals.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d > 0 {
		c.now = c.now.Add(d)
	}
	ch := make(chan time.Time, 1)
	ch <- c.now
	return fired(ch)
}

type fired chan time.Time

func (f fired) C() <-chan time.Time { return f }
func (fired) Stop() bool            { return false }

// Log keeps what is logged.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String is all that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Count of the lines that hold text.
func (l *Log) Count(text string) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// Client is a client for tests under clock, with its log. Calls take at most two
// seconds and answers at most 4 MiB.
func Client(t testing.TB, clock signals.Clock) (*fetch.Client, *Log) {
	t.Helper()
	log := &Log{}
	c, err := fetch.New(fetch.Config{Clock: clock, Log: slog.New(slog.NewJSONHandler(log, nil)),
		Timeout: 2 * time.Second, MaxBody: 4 << 20, Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, log
}

// Serve starts a local server.
func Serve(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// JSON answers with a body.
func JSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// Secret is a credential that Survives looks for where it must not be.
const Secret = "s3cr3t-Of-The-Test/+="

// Broken is a server's way to be broken and what is to be said of it.
type Broken struct {
	Name      string
	Handler   http.HandlerFunc
	Reason    v1alpha1.Reason
	Permanent bool
}

func page(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("<!DOCTYPE html><html><title>Request blocked</title></html>"))
	}
}

func json(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { JSON(w, status, body) }
}

// credential of a call, without its scheme.
func credential(r *http.Request) string {
	if token := r.Header.Get("auth-token"); token != "" {
		return token
	}
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// Brokens are the ways that all providers have in common.
func Brokens() []Broken {
	echo := func(w http.ResponseWriter, r *http.Request) {
		JSON(w, http.StatusBadRequest, fmt.Sprintf(`{"error":%q}`, "you sent "+fmt.Sprint(r.Header)+" "+r.URL.String()))
	}
	return []Broken{
		{"empty body with 200", json(200, ""), v1alpha1.ReasonSignalNoData, false},
		{"empty object with 200", json(200, " {} \n"), v1alpha1.ReasonSignalNoData, false},
		{"null with 200", json(200, "null"), v1alpha1.ReasonSignalNoData, false},
		{"partial JSON", json(200, `{"data":[{"value":1`), v1alpha1.ReasonSignalBadAnswer, false},
		{"two documents", json(200, `{"data":[]}{"data":[]}`), v1alpha1.ReasonSignalBadAnswer, false},
		{"text called JSON", json(200, "temporarily unavailable"), v1alpha1.ReasonSignalBadAnswer, false},
		{"a number", json(200, "0"), v1alpha1.ReasonSignalBadAnswer, false},
		{"page with 200", page(200), v1alpha1.ReasonSignalBadAnswer, false},
		{"page with 403", page(403), v1alpha1.ReasonSignalBadAnswer, false},
		{"page with 503", page(503), v1alpha1.ReasonSignalUnreachable, false},
		{"JSON with 500", json(500, `{"error":{"code":"500 Internal Server Error","message":"try later"}}`), v1alpha1.ReasonSignalUnreachable, false},
		{"429 without Retry-After", json(429, `{"error":"rate","msg":"too many"}`), v1alpha1.ReasonSignalRateLimited, false},
		{"429 with seconds", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			JSON(w, 429, `{"error":"rate","message":"too many"}`)
		}, v1alpha1.ReasonSignalRateLimited, false},
		{"huge body", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"data":[`))
			block := bytes.Repeat([]byte("0,"), 1<<19)
			for range 8 {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, v1alpha1.ReasonSignalBadAnswer, false},
		{"slow body", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"data":[`))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, v1alpha1.ReasonSignalUnreachable, false},
		{"connection cut", func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, v1alpha1.ReasonSignalUnreachable, false},
		{"redirect to another host", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere.invalid/?token="+Secret, http.StatusFound)
		}, v1alpha1.ReasonSignalBadAnswer, false},
		{"refusal that repeats the question", echo, v1alpha1.ReasonSignalRefused, true},
		{"refusal that repeats the question far behind", func(w http.ResponseWriter, r *http.Request) {
			// What is shown of it ends within the credential, wherever that lies.
			JSON(w, http.StatusBadRequest, `{"error":"`+strings.Repeat("x", 183)+` `+credential(r)+`"}`)
		}, v1alpha1.ReasonSignalRefused, true},
		{"refusal that repeats the question escaped", func(w http.ResponseWriter, r *http.Request) {
			var escaped strings.Builder
			for _, c := range []byte(credential(r)) {
				fmt.Fprintf(&escaped, `\u%04x`, c)
			}
			JSON(w, http.StatusBadRequest, `{"error":"`+escaped.String()+`"}`)
		}, v1alpha1.ReasonSignalRefused, true},
	}
}

// Survives puts a provider before each broken server: ask makes the provider,
// with Secret as its credentials, and one call. Exempt names ways that mean
// something else to the provider.
func Survives(t *testing.T, at time.Time, ask func(ctx context.Context, c *fetch.Client, base string) error, exempt ...string) {
	t.Helper()
	for _, b := range Brokens() {
		if slices.Contains(exempt, b.Name) {
			continue
		}
		t.Run(b.Name, func(t *testing.T) {
			log := &Log{}
			c, err := fetch.New(fetch.Config{Clock: NewClock(at), Log: slog.New(slog.NewJSONHandler(log, nil)),
				Timeout: timeout(b), MaxBody: 1 << 20, Transport: &http.Transport{DisableKeepAlives: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			err = ask(t.Context(), c, Serve(t, b.Handler))
			var e *signals.ProviderError
			if !errors.As(err, &e) {
				t.Fatalf("got %T %v, want a ProviderError", err, err)
			}
			if e.Reason != b.Reason || e.Permanent != b.Permanent {
				t.Errorf("got %s permanent=%v, want %s permanent=%v: %v", e.Reason, e.Permanent, b.Reason, b.Permanent, e)
			}
			if e.Provider == "" || e.Endpoint == "" {
				t.Errorf("names no provider or endpoint: %+v", e)
			}
			if log.Count("provider of signals failed") != 1 {
				t.Errorf("logged %d times:\n%s", log.Count("provider of signals failed"), log)
			}
			Hidden(t, err.Error()+log.String())
		})
	}
}

// timeout is short where it is waited for.
func timeout(b Broken) time.Duration {
	if b.Name == "slow body" {
		return 100 * time.Millisecond
	}
	return 10 * time.Second
}

// Hidden fails if text holds Secret in any form.
func Hidden(t testing.TB, text string) {
	t.Helper()
	for _, form := range []string{Secret, Secret[:14], base64.StdEncoding.EncodeToString([]byte(Secret + ":" + Secret))} {
		if strings.Contains(text, form) {
			t.Errorf("the credential shows in %s", text)
		}
	}
}
