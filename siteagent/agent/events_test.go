package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	"girassol.dev/internal/algorithm"
)

// keyOf is a key that a test names by a letter: "c" is the coordinator's.
func keyOf(letter string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte(letter), ed25519.SeedSize))
}

func publicOf(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// announcer writes events as a coordinator does.
type announcer struct {
	t   *testing.T
	srv *miniredis.Miniredis
}

func (a announcer) announce(e events.Event) { a.t.Helper(); a.signed("c", e) }

// signed writes an event by the key of that letter; of federation lm if it says none.
func (a announcer) signed(letter string, e events.Event) {
	a.t.Helper()
	if e.Federation == "" {
		e.Federation = "lm"
	}
	b, err := json.Marshal(e)
	must(a.t, err)
	a.raw("*", events.Sign(keyOf(letter), e.Federation, e.Term, e.Sequence, string(b))...)
}

func (a announcer) raw(id string, values ...string) {
	a.t.Helper()
	stream := events.Stream("lm")
	id, err := a.srv.XAdd(stream, id, values)
	must(a.t, err)
	a.srv.Publish(stream, id)
}

// listener is one run of a reader.
type listener struct {
	t      *testing.T
	reader *eventReader
	counts *prometheus.Registry
	got    chan events.Event
	stop   func()
}

func listen(t *testing.T, address, path string) *listener {
	t.Helper()
	l := deaf(t, address, path)
	l.reader.keys.set(publicOf(keyOf("c")))
	return l
}

// deaf is a listener that no coordinator has given a key yet.
func deaf(t *testing.T, address, path string) *listener {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second})
	cfg := Config{RetryInitial: time.Millisecond, RetryMax: 5 * time.Millisecond}
	b := cfg.newBackOff()
	l := &listener{t: t, counts: prometheus.NewRegistry(), got: make(chan events.Event, 100)}
	l.reader = &eventReader{
		redis: client, federation: "lm", path: path, keys: newEventKey(), backoff: b.NextBackOff, reset: b.Reset,
		handle:  func(e events.Event) { l.got <- e },
		metrics: newMetrics(l.counts, "lm", "porto", func() (uint64, uint64) { return 0, 0 }),
		log:     slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { l.reader.run(ctx) })
	var once sync.Once
	l.stop = func() {
		once.Do(func() {
			cancel()
			group.Wait()
			_ = client.Close()
		})
	}
	t.Cleanup(l.stop)
	return l
}

// refused are the counters of events without effect that are not zero.
func (l *listener) refused() map[string]int {
	l.t.Helper()
	families, err := l.counts.Gather()
	must(l.t, err)
	out := map[string]int{}
	for _, f := range families {
		if f.GetName() != "girassol_agent_events_refused_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if n := m.GetCounter().GetValue(); label.GetName() == "reason" && n > 0 {
					out[label.GetValue()] = int(n)
				}
			}
		}
	}
	return out
}

// missed is the counter of events that were trimmed.
func (l *listener) missed() float64 {
	l.t.Helper()
	families, err := l.counts.Gather()
	must(l.t, err)
	for _, f := range families {
		if f.GetName() == "girassol_agent_events_missed_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	l.t.Fatal("no counter of missed events")
	return 0
}

// next waits for so many events and returns their sequences.
func (l *listener) next(n int) []uint64 {
	l.t.Helper()
	var out []uint64
	for len(out) < n {
		select {
		case e := <-l.got:
			out = append(out, e.Sequence)
		case <-time.After(2 * time.Minute):
			l.t.Fatalf("got %v, waited in vain for %d events", out, n)
		}
	}
	return out
}

func event(term, sequence uint64) events.Event {
	return events.Event{Type: events.RoundCommitted, Term: term, Sequence: sequence, Round: sequence}
}

func TestEventsAreReadOnceAndFromTheLastPlaceOn(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	path := filepath.Join(t.TempDir(), "events.json")
	a.announce(event(1, 1))
	a.announce(event(1, 2))
	l := listen(t, srv.Addr(), path)
	if got := l.next(2); !slices.Equal(got, []uint64{1, 2}) {
		t.Fatalf("sequences %v", got)
	}
	a.announce(event(1, 2)) // written twice
	a.raw("*", events.Field, "garbage")
	a.announce(events.Event{Type: events.Shutdown, Federation: "vision", Term: 9, Sequence: 9})
	a.announce(event(1, 3))
	if got := l.next(1); !slices.Equal(got, []uint64{3}) {
		t.Fatalf("sequences %v", got)
	}
	l.stop()
	a.announce(event(1, 4)) // while the agent is away
	a.announce(event(2, 1)) // by the coordinator's next incarnation
	a.announce(event(1, 9)) // by the one that was fenced
	a.announce(event(2, 2))
	l = listen(t, srv.Addr(), path)
	if got := l.next(3); !slices.Equal(got, []uint64{4, 1, 2}) {
		t.Fatalf("sequences %v", got)
	}
	l.stop()
	if n := l.missed(); n != 0 {
		t.Fatalf("%g events missed", n)
	}
}

func TestTrimmedEventsAreCounted(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	a.announce(event(1, 1))
	a.announce(event(1, 5))
	l := listen(t, srv.Addr(), filepath.Join(t.TempDir(), "events.json"))
	l.next(2)
	l.stop()
	if n := l.missed(); n != 3 {
		t.Fatalf("%g events missed, want 3", n)
	}
}

func TestEventsComeAfterRedisWasGone(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	a.announce(event(1, 1))
	l := listen(t, srv.Addr(), filepath.Join(t.TempDir(), "events.json"))
	l.next(1)
	srv.Close()
	must(t, srv.Restart())
	a.announce(event(1, 2))
	if got := l.next(1); !slices.Equal(got, []uint64{2}) {
		t.Fatalf("sequences %v", got)
	}
}

func TestAnEventEndsTheRoundThatItIsAbout(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	a.announce(events.Event{Type: events.RoundStopped, Term: 1, Sequence: 1, Round: 4, UnixMilli: 1}) // long ago
	client := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	launch(t, c, "", &person{t: t}, func(cfg *Config) { cfg.Redis = client })
	c.waitReady(0)
	c.tell(c.grant(4, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 1 })
	stop := events.Event{Type: events.RoundStopped, Term: 1, Round: 4, UnixMilli: time.Now().Add(time.Minute).UnixMilli()}
	for i, site := range []string{"lisbon", "porto"} {
		stop.Sequence, stop.Site = uint64(i+2), site
		a.announce(stop)
	}
	if u := c.waitPushes(1)[0].header; u.GetRound() != 4 || u.GetSteps() < 2 {
		t.Fatalf("header %v", u)
	}
}

func TestADeadRedisDisturbsNoRound(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	launch(t, c, "", &person{t: t}, func(cfg *Config) { cfg.Redis = client })
	c.waitReady(0)
	c.tell(c.grant(1, 2, long))
	c.waitPushes(1)
}

func TestADamagedPlaceInTheStreamStartsOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.json")
	log := slog.New(slog.DiscardHandler)
	must(t, saveCursor(path, eventCursor{ID: "5-0", Key: "k", Trusted: "4-0", Term: 2, Sequence: 7}))
	if c := loadCursor(path, log); c != (eventCursor{ID: "5-0", Key: "k", Trusted: "4-0", Term: 2, Sequence: 7}) {
		t.Fatalf("cursor %+v", c)
	}
	damagePlace(t, path)
	if c := loadCursor(path, log); c != (eventCursor{}) {
		t.Fatalf("cursor %+v", c)
	}
}

func damagePlace(t *testing.T, path string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(`{"id":`), 0o600))
}
