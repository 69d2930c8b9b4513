package fetch

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/signals"
)

// Config of a Client; the zero value is fine.
type Config struct {
	// Clock in which answers age and waits are waited. Default Real. Deadlines
	// of calls are in real time.
	Clock signals.Clock
	// Transport carries the calls. Default one like http.DefaultTransport.
	Transport http.RoundTripper
	Log       *slog.Logger
	// Registerer of the metrics; may be nil.
	Registerer prometheus.Registerer
	// Random gives numbers in [0,1) for jitter; it is called concurrently.
	// Default math/rand.
	Random func() float64
	// Timeout of one call, in real time. Default 8 s.
	Timeout time.Duration
	// Tries of one question while the provider was well before. Default 3.
	Tries int
	// MaxBody is the largest answer in bytes. Default 4 MiB: a month of
	// five-minute points has one and a half.
	MaxBody int64
	// UserAgent of the calls. Default "girassol".
	UserAgent string
}

// Client is shared by all providers of a process. It is safe for concurrent use.
type Client struct {
	config Config
	http   *http.Client
	log    *slog.Logger

	requests, failures *prometheus.CounterVec
	reused             *prometheus.CounterVec

	mu      sync.Mutex
	buckets map[string]*bucket
	entries map[string]*entry
	states  map[string]*state
	flights map[string]*flight
	noted   map[string]bool
	swept   time.Time
}

// entry is the last good answer to a question.
type entry struct {
	value              any
	point              time.Time
	period             time.Duration
	until              time.Time
	late               int // answers in a row without a newer point
	etag, lastModified string
}

// state is a failure that lasts: of a question, a scope or an account.
type state struct {
	err     *signals.ProviderError
	until   time.Time // before it the same question gets the same error
	backoff *backoff.ExponentialBackOff
	logged  map[string]bool
	count   int
	seen    time.Time
}

// New makes a client.
func New(c Config) (*Client, error) {
	if c.Clock == nil {
		c.Clock = signals.Real{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Timeout <= 0 {
		c.Timeout = 8 * time.Second
	}
	if c.Tries <= 0 {
		c.Tries = 3
	}
	if c.MaxBody <= 0 {
		c.MaxBody = 4 << 20
	}
	if c.UserAgent == "" {
		c.UserAgent = "girassol"
	}
	if c.Transport == nil {
		t, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			return nil, errors.New("fetch: http.DefaultTransport was replaced; give a transport")
		}
		t = t.Clone()
		t.MaxIdleConnsPerHost = 4
		t.MaxResponseHeaderBytes = 64 << 10
		c.Transport = t
	}
	client := &Client{
		config: c, log: c.Log,
		http:    &http.Client{Transport: c.Transport, CheckRedirect: sameHost},
		buckets: map[string]*bucket{}, entries: map[string]*entry{}, states: map[string]*state{},
		flights: map[string]*flight{}, noted: map[string]bool{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_signal_provider_requests_total",
			Help: "Calls to providers of signals by HTTP status, \"timeout\" or \"error\"."}, []string{"provider", "code"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_signal_provider_failures_total",
			Help: "Questions to providers of signals that were called for and got no values, by reason."}, []string{"provider", "reason"}),
		reused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_signal_provider_reused_total",
			Help: "Questions to providers of signals that were answered without a call."}, []string{"provider"}),
	}
	if c.Registerer != nil {
		for _, m := range []prometheus.Collector{client.requests, client.failures, client.reused} {
			if err := c.Registerer.Register(m); err != nil {
				return nil, fmt.Errorf("fetch: register metrics: %w", err)
			}
		}
	}
	return client, nil
}

// Close closes idle connections and takes the metrics back.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	if c.config.Registerer != nil {
		for _, m := range []prometheus.Collector{c.requests, c.failures, c.reused} {
			c.config.Registerer.Unregister(m)
		}
	}
}

// Clock that the client's answers age in.
func (c *Client) Clock() signals.Clock { return c.config.Clock }

// mostNotes are told apart.
const mostNotes = 256

// Note logs what a provider remarked, each text once.
func (c *Client) Note(provider, region, text string) {
	text = excerpt([]byte(text))
	c.mu.Lock()
	key := provider + "|" + region + "|" + text
	fresh := !c.noted[key] && len(c.noted) < mostNotes
	if fresh {
		c.noted[key] = true
	}
	c.mu.Unlock()
	if fresh {
		c.log.Info("provider of signals remarks", "provider", provider, "region", region, "remark", text)
	}
}

// errRedirect refuses to carry a question, and credentials in headers that the
// library does not know, to another host.
var errRedirect = errors.New("redirects to another host, which is not followed")

func sameHost(r *http.Request, via []*http.Request) error {
	if first := via[0].URL; r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
		return errRedirect
	}
	if len(via) > 3 {
		return errors.New("redirects in circles")
	}
	return nil
}

// jitter spreads waits by a fifth to both sides.
func (c *Client) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*c.config.Random()))
}

// sweep forgets what nobody asks for any more; the lock is held.
func (c *Client) sweep(now time.Time) {
	if now.Sub(c.swept) < time.Minute && !now.Before(c.swept) {
		return
	}
	c.swept = now
	for k, e := range c.entries {
		if kept := time.Hour + e.period; e.until.Before(now) && (e.period == 0 || now.Sub(e.until) > kept) {
			delete(c.entries, k)
		}
	}
	for k, s := range c.states {
		if s.until.Before(now) && now.Sub(s.seen) > 24*time.Hour {
			delete(c.states, k)
		}
	}
}
