// Package broadcast owns how a coordinator's announcements reach Redis: in
// order, signed, kept in memory while Redis is away, never in the way of a round.
// The key that signs is its, too.
//
// It must not know what the events mean to their readers, nor read them: agents
// have their own reader. See girassol.dev/api/events for names and forms.
//
// # Delivery
//
// Every event is added to the federation's stream at least once and in order of
// (Term, Sequence). An XADD whose answer was lost is repeated, and so is what a
// restarted Redis has forgotten, so that readers may see an event twice: they
// skip what is not after their last (Term, Sequence). A gap in Sequence means
// that the outbox was full and its oldest events were dropped.
package broadcast

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"girassol.dev/api/events"
)

// The states of a Publisher, as coordinatorv1.EventsStatus has them.
const (
	Connected    = "Connected"
	Disconnected = "Disconnected"
	// Disabled: there is no Redis to publish to.
	Disabled = "Disabled"
)

const (
	// streamLength is about how many events the stream keeps for readers that were
	// away; Redis trims it by whole nodes.
	streamLength = 4096
	// outboxLength is how many events wait in memory while Redis is away.
	outboxLength = 1 << 16
	// checkInterval is how often an idle Publisher looks whether Redis is there and
	// still has what it was given.
	checkInterval = 5 * time.Second
	// callTimeout of one exchange with Redis.
	callTimeout = 5 * time.Second
)

// Publisher publishes one federation's events. Its methods are safe for
// concurrent use.
type Publisher struct {
	client        redis.UniversalClient
	federation    string
	stream        string
	term          uint64
	key           ed25519.PrivateKey
	log           *slog.Logger
	outboxLength  int
	checkInterval time.Duration

	wake   chan struct{} // capacity 1
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	outbox []item
	// again are encoded events that go before the outbox: those of Resync and those
	// that Redis has lost.
	again   []payload
	closing bool
	status  Status
	// next is the index of the next event given to Publish, from 1.
	next uint64
	// firstCommit is the first version that was given to Publish: older ones are
	// Resync's.
	firstCommit *uint64
	resync      *resync
	// resynced is how many events Resync has put before those of Publish; their
	// sequence follows.
	resynced uint64

	// kept are the newest events that Redis has acknowledged; only run touches them.
	kept []record
}

type item struct {
	event events.Event
	index uint64
}

// payload is an event as it goes out, under the sequence that it is signed with.
type payload struct {
	sequence uint64
	text     string
}

type record struct {
	id string
	payload
}

// Status of a Publisher.
type Status struct {
	State string
	// Message says what is wrong; empty when nothing is.
	Message string
	// Published events since the start, Pending ones not yet in Redis, and Dropped
	// ones that the outbox had no room for.
	Published, Pending, Dropped uint64
}

// New starts a Publisher for an incarnation (term) of a federation's
// coordinator. It does not wait for Redis. A nil client makes a disabled one
// that takes events and forgets them; log and the key that signs, see Key, must be
// set, registerer may be nil.
// The client stays the caller's to close, after Close.
func New(client redis.UniversalClient, federation string, term uint64, key ed25519.PrivateKey, log *slog.Logger, registerer prometheus.Registerer) *Publisher {
	p := newPublisher(client, federation, term, key, log)
	if registerer != nil {
		p.register(registerer)
	}
	p.start()
	return p
}

func newPublisher(client redis.UniversalClient, federation string, term uint64, key ed25519.PrivateKey, log *slog.Logger) *Publisher {
	p := &Publisher{
		client: client, federation: federation, stream: events.Stream(federation), term: term, key: key,
		log:          log.With("federation", federation),
		outboxLength: outboxLength, checkInterval: checkInterval,
		wake: make(chan struct{}, 1), done: make(chan struct{}), next: 1,
		status: Status{State: Disconnected, Message: "not yet connected"},
	}
	if client == nil {
		p.status = Status{State: Disabled, Message: "no Redis is configured"}
	}
	return p
}

func (p *Publisher) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if p.client == nil {
		close(p.done)
		return
	}
	go p.run(ctx)
}

// Publish takes an event and returns at once; it never fails. Federation, Term
// and Sequence are filled in.
func (p *Publisher) Publish(e events.Event) {
	if p.client == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		p.status.Dropped++
		p.log.Warn("event after the end dropped", "type", e.Type, "round", e.Round)
		return
	}
	if makesVersion(e) && p.firstCommit == nil {
		p.firstCommit = new(*e.Version)
	}
	if len(p.outbox) >= p.outboxLength {
		if p.status.Dropped == 0 {
			p.log.Error("outbox of events is full, dropping the oldest", "events", len(p.outbox), "redis", p.status.Message)
		}
		p.outbox = p.outbox[1:]
		p.status.Dropped++
	}
	p.outbox = append(p.outbox, item{e, p.next})
	p.next++
	p.signal()
}

func (p *Publisher) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Status is the state as of now.
func (p *Publisher) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Pending = uint64(p.pending())
	if s.Dropped > 0 && s.State != Disabled {
		lost := fmt.Sprintf("%d events were dropped: the outbox was full", s.Dropped)
		if s.Message != "" {
			lost = s.Message + "; " + lost
		}
		s.Message = lost
	}
	return s
}

func (p *Publisher) pending() int { return len(p.again) + len(p.outbox) }

// Close takes no more events and publishes those that wait, until ctx ends. It
// fails when some are left, and says how many.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	p.signal()
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	p.cancel()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.pending(); n > 0 {
		return fmt.Errorf("broadcast: federation %s: %d events were not published: %s", p.federation, n, p.status.Message)
	}
	return nil
}

func (p *Publisher) register(r prometheus.Registerer) {
	r = prometheus.WrapRegistererWith(prometheus.Labels{"federation": p.federation}, r)
	counter := func(name, help string, value func(Status) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(p.Status())) })
	}
	gauge := func(name, help string, value func(Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(p.Status()) })
	}
	r.MustRegister(
		counter("girassol_events_published_total", "Events that Redis has acknowledged.", func(s Status) uint64 { return s.Published }),
		counter("girassol_events_dropped_total", "Events dropped because the outbox was full.", func(s Status) uint64 { return s.Dropped }),
		gauge("girassol_events_pending", "Events that wait for Redis.", func(s Status) float64 { return float64(s.Pending) }),
		gauge("girassol_events_connected", "1 while Redis answers.", func(s Status) float64 {
			if s.State == Connected {
				return 1
			}
			return 0
		}),
	)
}
