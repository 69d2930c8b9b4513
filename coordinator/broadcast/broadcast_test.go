package broadcast

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"girassol.dev/api/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEventsArriveInOrderWithAWakeUp(t *testing.T) {
	m := mini(t)
	c := client(t, m.Addr())
	sub := c.Subscribe(t.Context(), events.Stream("demo"))
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := publisher(t, c, 7)
	p.Publish(events.Event{Type: events.MembershipChanged, Site: "lisboa", Reason: "Requested", Federation: "other", Term: 1, Sequence: 99})
	p.Publish(committed(0))
	got := newReader(t, c).read(2)
	if e := got[0]; e.Federation != "demo" || e.Term != 7 || e.Sequence != 1 || e.Site != "lisboa" {
		t.Errorf("first event is %+v", e)
	}
	if e := got[1]; e.Sequence != 2 || e.Version == nil || *e.Version != 0 {
		t.Errorf("second event is %+v", e)
	}
	entries, err := c.XRange(t.Context(), events.Stream("demo"), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		msg, err := sub.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if msg.Payload != entry.ID {
			t.Errorf("wake-up says %s, the entry is %s", msg.Payload, entry.ID)
		}
	}
	if err := closeWithin(t, p, time.Minute); err != nil {
		t.Error(err)
	}
	if s := p.Status(); s.State != Connected || s.Published != 2 || s.Pending != 0 || s.Message != "" {
		t.Errorf("status is %+v", s)
	}
}

func TestNothingIsMissedWhileRedisIsDead(t *testing.T) {
	for _, appendOnly := range []string{"yes", "no"} {
		t.Run("appendonly "+appendOnly, func(t *testing.T) {
			s := newRedisServer(t)
			s.start(appendOnly)
			c := s.client()
			p := publisher(t, c, 1)
			r := newReader(t, c)
			for v := range uint64(10) {
				p.Publish(committed(v))
			}
			r.wantVersions(0, 4) // the other five are in Redis only when it dies
			waitFor(t, p, func(s Status) bool { return s.Pending == 0 })
			s.kill()
			waitFor(t, p, func(s Status) bool { return s.State == Disconnected && s.Message != "" })
			for v := uint64(10); v < 110; v++ {
				p.Publish(committed(v))
			}
			if s := p.Status(); s.Pending != 100 {
				t.Errorf("%d events wait, want 100", s.Pending)
			}
			s.start(appendOnly)
			r.wantVersions(5, 109)
			waitFor(t, p, func(s Status) bool { return s.State == Connected && s.Pending == 0 })
		})
	}
}

func TestCommitsOfBeforeARestartAreAnnounced(t *testing.T) {
	c := client(t, mini(t).Addr())
	first := publisher(t, c, 1)
	for v := range uint64(3) {
		first.Publish(committed(v))
	}
	// More than a page of other events lies over the last commit.
	for range page + 10 {
		first.Publish(events.Event{Type: events.RoundVoid})
	}
	if err := closeWithin(t, first, time.Minute); err != nil {
		t.Fatal(err)
	}
	foreign, err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: events.Stream("demo"), Values: []string{"not", "ours"}}).Result()
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(t, c)
	r.wantVersions(0, 2)
	r.read(page + 10)
	r.last = foreign

	second := publisher(t, c, 2)
	if err := second.Resync(t.Context(), func(after *uint64) []events.Event { return versions(after, 5) }); err != nil {
		t.Fatal(err)
	}
	second.Publish(committed(6))
	r.wantVersions(3, 6)
}

func TestResyncOfAnEmptyStreamAnnouncesAll(t *testing.T) {
	c := client(t, mini(t).Addr())
	p := publisher(t, c, 1)
	if err := p.Resync(t.Context(), func(after *uint64) []events.Event {
		if after != nil {
			t.Errorf("the empty stream has version %d", *after)
		}
		return versions(after, 2)
	}); err != nil {
		t.Fatal(err)
	}
	newReader(t, c).wantVersions(0, 2)
}

func TestResyncIsMadeUpForOnceRedisIsBack(t *testing.T) {
	addr := unused(t)
	c := client(t, addr)
	p := publisher(t, c, 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// By the time Redis answers the log has version 4 too, which was published.
	if err := p.Resync(ctx, func(after *uint64) []events.Event { return versions(after, 4) }); err == nil {
		t.Fatal("Resync without Redis says it is done")
	}
	p.Publish(committed(4))
	p.Publish(committed(5))
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr(addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	newReader(t, c).wantVersions(0, 5)
}

func TestFullOutboxDropsTheOldestAndSaysSo(t *testing.T) {
	p := newPublisher(client(t, unused(t)), "demo", 1, testKey, discard)
	p.outboxLength = 3
	for v := range uint64(5) {
		p.Publish(committed(v))
	}
	if s := p.Status(); s.Pending != 3 || s.Dropped != 2 || !strings.Contains(s.Message, "2 events were dropped") {
		t.Errorf("status is %+v", s)
	}
	next, _, _ := p.head()
	e, err := events.Parse(next.text)
	if err != nil || *e.Version != 2 || e.Sequence != 3 {
		t.Errorf("the oldest left is %+v (%v): readers must see the gap", e, err)
	}
}

func TestCloseSaysWhatIsLeft(t *testing.T) {
	p := publisher(t, client(t, unused(t)), 1)
	p.Publish(committed(0))
	p.Publish(committed(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Close(ctx); err == nil || !strings.Contains(err.Error(), "2 events were not published") {
		t.Errorf("got %v", err)
	}
	p.Publish(committed(2))
	if s := p.Status(); s.Dropped != 1 {
		t.Errorf("an event after the end: %+v", s)
	}
}

func TestCloseFlushes(t *testing.T) {
	c := client(t, mini(t).Addr())
	p := publisher(t, c, 1)
	for v := range uint64(200) {
		p.Publish(committed(v))
	}
	if err := closeWithin(t, p, time.Minute); err != nil {
		t.Fatal(err)
	}
	newReader(t, c).wantVersions(0, 199)
}

func TestWithoutRedisAllIsForgotten(t *testing.T) {
	p := New(nil, "demo", 1, testKey, discard, nil)
	p.Publish(committed(0))
	if err := p.Resync(t.Context(), func(*uint64) []events.Event { panic("asked") }); err != nil {
		t.Error(err)
	}
	if s := p.Status(); s.State != Disabled || s.Pending != 0 {
		t.Errorf("status is %+v", s)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStreamIsTrimmed(t *testing.T) {
	s := newRedisServer(t)
	s.start("no")
	c := s.client()
	p := publisher(t, c, 1)
	for v := range uint64(streamLength + 2000) {
		p.Publish(committed(v))
	}
	if err := closeWithin(t, p, time.Minute); err != nil {
		t.Fatal(err)
	}
	n, err := c.XLen(t.Context(), events.Stream("demo")).Result()
	if err != nil || n < streamLength || n > streamLength+200 {
		t.Errorf("the stream has %d entries (%v), want about %d", n, err, streamLength)
	}
}

func TestMetricsAreOfTheFederation(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	p := New(client(t, mini(t).Addr()), "demo", 1, testKey, discard, registry)
	p.Publish(committed(0))
	if err := closeWithin(t, p, time.Minute); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		if l := m.GetLabel(); len(l) != 1 || l[0].GetName() != "federation" || l[0].GetValue() != "demo" {
			t.Errorf("%s has labels %v", f.GetName(), l)
		}
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	want := map[string]float64{
		"girassol_events_published_total": 1, "girassol_events_dropped_total": 0,
		"girassol_events_pending": 0, "girassol_events_connected": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestStreamIDsCompareAsNumbers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"9-0", "10-0", true}, {"10-0", "9-0", false}, {"5-9", "5-10", true}, {"5-10", "5-10", false}, {"x", "5-1", false}} {
		if got := olderID(c.a, c.b); got != c.want {
			t.Errorf("%s older than %s: %v", c.a, c.b, got)
		}
	}
	if !olderID(fmt.Sprint(uint64(1)<<62)+"-1", strconv.FormatUint(1<<63, 10)+"-0") {
		t.Error("large ids")
	}
}
