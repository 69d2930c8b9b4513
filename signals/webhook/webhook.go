// Package webhook takes pushed energy signals: POST /v1/signals with a Standard
// Webhooks signature, as JSON or CloudEvents 1.0.
//
// It owns who may speak for what, that a message counts once, that the newest
// generation wins over the latest arrival, and what is remembered of it over a
// restart. It must not know what is decided from signals, nor how a listener is
// made. What the bodies look like is in package api/signalpush.
//
// In binary CloudEvents the attributes are headers that no signature covers: use
// them over TLS that ends here, or use the structured form.
package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals"
)

// Decoder reads bodies of a sender that speaks another language than package
// signalpush, such as an OpenADR server. Messages need not be checked.
type Decoder interface {
	Decode(body []byte, now time.Time) ([]Message, error)
}

// Sender is a source of messages and what it may speak for.
type Sender struct {
	// Name of the source; a metric label and part of what is stored.
	Name string
	// SecretFiles hold Standard Webhooks secrets, one "whsec_…" a line; all are
	// good at the same time. A file that changes is read anew; one that goes away
	// or is emptied withdraws its secrets; one that cannot be read keeps them.
	SecretFiles []string
	// BearerFiles hold tokens, one a line, at least 16 bytes, for senders that
	// cannot sign. They are read anew like SecretFiles.
	BearerFiles []string
	// Secrets and Bearers are more of both, one a line, where they are in no files.
	Secrets, Bearers []byte
	// Unsigned takes messages without either, from loopback only and not through
	// a proxy.
	Unsigned bool
	// Sites and Regions that it may speak for.
	Sites, Regions []string
	// PerMinute requests it may make, and Burst at once. Defaults 120 and 60.
	PerMinute, Burst int
	// Decoder may be nil, for package signalpush.
	Decoder Decoder
}

// Config of a Handler.
type Config struct {
	// Federation is a metric label and log field.
	Federation string
	Senders    []Sender
	// Sink may be nil, when Sources are all that is wanted.
	Sink Sink
	// Store may be nil: what was pushed is then forgotten with the process.
	Store Store
	// Clock in which signatures age and messages expire. Default Real.
	Clock signals.Clock
	// BodyTimeout for a whole body, in real time. Default 10 s.
	BodyTimeout time.Duration
	// StoreTimeout for the calls of one request to the Store. Default 5 s.
	StoreTimeout time.Duration
	// InFlight requests at most; others are asked to come again. Default 256.
	InFlight int
	// MaxCurtailment is how long a curtailment without an end holds. Default 4 h.
	MaxCurtailment time.Duration
	// MaxOverride is the longest override. Default 7 days.
	MaxOverride time.Duration
	// MaxForecastAge is how long after its generation a forecast stands in for a
	// reading. Default 48 h.
	MaxForecastAge time.Duration
	// AllowedOrigins of CloudEvents senders that ask by OPTIONS. Empty allows all:
	// a delivery needs a signature anyway.
	AllowedOrigins []string
	Log            *slog.Logger
	// Registerer of the metrics; may be nil.
	Registerer prometheus.Registerer
}

// Handler serves the endpoint. It starts no goroutines.
type Handler struct {
	config  Config
	senders map[string]*sender
	order   []*sender
	slots   chan struct{}
	metrics *metrics

	restoring sync.Mutex
	restored  bool

	mu      sync.Mutex
	streams map[string]map[string]held // by source and stream
}

// sender is a Sender at work.
type sender struct {
	Sender
	log     *slog.Logger
	secrets *secretFiles
	bearers *bearerFiles
	bucket  *bucket
	// one request at a time, so that what was seen stays so until it is stored.
	accepting sync.Mutex
}

// held is a stream's newest message.
type held struct {
	source   string
	received time.Time
	m        Message
}

// New checks the configuration, reads the secrets and gives the sink what the
// store has kept. If the store does not answer, that comes with the first request
// after it does.
func New(ctx context.Context, c Config) (*Handler, error) {
	c.defaults()
	h := &Handler{config: c, senders: map[string]*sender{}, slots: make(chan struct{}, c.InFlight), streams: map[string]map[string]held{}}
	for _, s := range c.Senders {
		run, err := h.sender(s)
		if err != nil {
			return nil, fmt.Errorf("webhook: source %q: %w", s.Name, err)
		}
		h.senders[s.Name] = run
		h.order = append(h.order, run)
	}
	if err := h.distinct(); err != nil {
		return nil, err
	}
	h.metrics = newMetrics(c.Federation, h.order)
	loading, cancel := context.WithTimeout(ctx, c.StoreTimeout)
	defer cancel()
	if err := h.ready(loading); err != nil {
		// Training must not wait for a store; messages do.
		c.Log.Error("what was pushed before cannot be read, nothing is taken until it can", "federation", c.Federation, "error", err)
	}
	if c.Registerer != nil {
		if err := h.metrics.register(c.Registerer); err != nil {
			return nil, fmt.Errorf("webhook: register metrics: %w", err)
		}
	}
	return h, nil
}

// Close takes the metrics back.
func (h *Handler) Close() {
	if h.config.Registerer != nil {
		h.metrics.unregister(h.config.Registerer)
	}
}

func (c *Config) defaults() {
	if c.Store == nil {
		c.Store = newMemory()
	}
	if c.Clock == nil {
		c.Clock = signals.Real{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		to    *time.Duration
		value time.Duration
	}{
		{&c.BodyTimeout, 10 * time.Second}, {&c.StoreTimeout, 5 * time.Second}, {&c.MaxCurtailment, 4 * time.Hour},
		{&c.MaxOverride, 7 * 24 * time.Hour}, {&c.MaxForecastAge, 48 * time.Hour},
	} {
		if *d.to <= 0 {
			*d.to = d.value
		}
	}
	if c.InFlight <= 0 {
		c.InFlight = 256
	}
}

func (h *Handler) sender(s Sender) (*sender, error) {
	switch {
	case !sourceName(s.Name):
		return nil, errors.New("a name has 1 to 63 letters, digits, '-', '_' and '.', and starts with none of the latter")
	case h.senders[s.Name] != nil:
		return nil, errors.New("it is there twice")
	case len(s.Sites)+len(s.Regions) == 0:
		return nil, errors.New("it may speak for no site and no region")
	case len(s.SecretFiles)+len(s.BearerFiles)+len(s.Secrets)+len(s.Bearers) == 0 && !s.Unsigned:
		return nil, errors.New("it has no secret to be known by")
	}
	for _, n := range append(append([]string{}, s.Sites...), s.Regions...) {
		if n == "" {
			return nil, errors.New("a site or region without a name")
		}
		if err := name("site or region", n); err != nil {
			return nil, err
		}
	}
	if s.PerMinute <= 0 {
		s.PerMinute = 120
	}
	if s.Burst <= 0 {
		s.Burst = 60
	}
	run := &sender{Sender: s, log: h.config.Log.With("federation", h.config.Federation, "source", s.Name)}
	run.bucket = newBucket(s.PerMinute, s.Burst, h.config.Clock.Now())
	var err error
	if run.secrets, err = openSecrets(s.SecretFiles, s.Secrets); err != nil {
		return nil, err
	}
	run.bearers, err = openBearers(s.BearerFiles, s.Bearers)
	run.Secrets, run.Bearers = nil, nil // no copy that could be printed
	return run, err
}

// distinct refuses a key that two sources share: nobody could tell who speaks.
func (h *Handler) distinct() error {
	for i, a := range h.order {
		for _, b := range h.order[:i] {
			if a.secrets.shares(b.secrets) || a.bearers.shares(b.bearers) {
				return fmt.Errorf("webhook: sources %s and %s have the same secret: give each its own", b.Name, a.Name)
			}
		}
	}
	return nil
}

// sourceName accepts names that are safe as a file's, in a header and as a label.
func sourceName(s string) bool {
	if s == "" || len(s) > 63 || strings.ContainsAny(s[:1], "-_.") {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
		default:
			return false
		}
	}
	return true
}

// ready says whether what the store has kept is known; if not, it tries again.
// Before, nothing can be put in order.
func (h *Handler) ready(ctx context.Context) error {
	h.restoring.Lock()
	defer h.restoring.Unlock()
	if h.restored {
		return nil
	}
	if err := h.restore(ctx); err != nil {
		return err
	}
	h.restored = true
	return nil
}

// restore takes over what the store has kept. A message that cannot be read is
// left out: its sender will send it again.
func (h *Handler) restore(ctx context.Context) error {
	entries, err := h.config.Store.Load(ctx)
	if err != nil && entries == nil {
		return err
	}
	if err != nil {
		h.config.Log.Error("what was pushed before could not all be read", "federation", h.config.Federation, "error", err)
	}
	sort.SliceStable(entries, func(i, j int) bool { return entries[i].GeneratedAt.Before(entries[j].GeneratedAt) })
	now := h.config.Clock.Now()
	for _, e := range entries {
		s := h.senders[e.Source]
		var m Message
		if s == nil {
			continue
		}
		if err := json.Unmarshal(e.Message, &m); err != nil || m.check() != nil || m.stream() != e.Stream {
			s.log.Error("a message that was pushed before is damaged and left out", "stream", e.Stream, "error", err)
			continue
		}
		if !s.mayTarget(m.Target) {
			continue
		}
		kept := held{source: e.Source, received: e.Received, m: m}
		h.hold(e.Stream, kept)
		if !m.expired(now) {
			h.tell(kept)
		}
	}
	return nil
}

func (h *Handler) hold(stream string, kept held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams[kept.source] == nil {
		h.streams[kept.source] = map[string]held{}
	}
	h.streams[kept.source][stream] = kept
}

// tell gives a message to the sink.
func (h *Handler) tell(kept held) {
	if h.config.Sink == nil {
		return
	}
	m := kept.m
	switch m.Type {
	case TypeObserved:
		for _, r := range m.readings(kept.source, kept.received) {
			h.config.Sink.Reading(m.Target, r)
		}
	case TypeForecast:
		h.config.Sink.Forecast(m.Target, m.Series, m.forecast(kept.source))
	case TypeCurtailment:
		c := *m.Curtailment
		c.Target, c.Source, c.Demands = m.Target, kept.source, slices.Clone(c.Demands)
		h.config.Sink.Curtailment(c)
	case TypeOverride:
		o := *m.Override
		o.Target, o.Source = m.Target, kept.source
		h.config.Sink.Override(o)
	}
}

func (s *sender) mayTarget(t Target) bool {
	allowed, wanted := s.Sites, t.Site
	if wanted == "" {
		allowed, wanted = s.Regions, t.Region
	}
	for _, a := range allowed {
		if a == wanted {
			return true
		}
	}
	return false
}

var _ http.Handler = (*Handler)(nil)

// Path that the handler is to be mounted at.
const Path = signalpush.Path
