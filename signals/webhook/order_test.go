package webhook_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals"
	"girassol.dev/signals/webhook"
)

const (
	first  = "site lisboa: marginal 1 gCO2/kWh at 12:00 for 5m0s, ok from meter"
	second = "site lisboa: marginal 2 gCO2/kWh at 12:00 for 5m0s, ok from meter"
)

func TestARepeatedDeliveryCountsOnceOverARestartAndADay(t *testing.T) {
	r := newRig(t, nil)
	b := observed("1", 0)
	r.want(202, signalpush.Stored, b, r.id("a", b))
	r.shows(first)
	r.want(200, signalpush.Duplicate, b, r.id("a", b))
	r.shows()
	r.start()
	r.shows(first)
	r.clock.advance(25 * time.Hour)
	r.want(200, signalpush.Duplicate, b, r.id("a", b))
	r.shows()
}

func TestAnIDWithAnotherBodyIsAConflict(t *testing.T) {
	r := newRig(t, nil)
	b, other := observed("1", 0), strings.Replace(observed("1", 0), ":", ": ", 1)
	r.want(202, signalpush.Stored, b, r.id("a", b))
	got := r.want(409, signalpush.Refused, other, r.id("a", other))
	if got.Reason != "IDReused" {
		t.Errorf("%+v", got)
	}
	r.want(409, signalpush.Refused, "{", r.id("a", "{"))
	r.shows(first)
}

func TestARefusedMessageMayBeMendedUnderItsID(t *testing.T) {
	r := newRig(t, nil)
	bad, good := observed("-1", 0), observed("1", 0)
	r.want(422, signalpush.Refused, bad, r.id("a", bad))
	r.want(202, signalpush.Stored, good, r.id("a", good))
	r.shows(first)
}

func TestTheNewestGenerationWinsWhateverArrivesLast(t *testing.T) {
	r := newRig(t, nil)
	r.want(202, signalpush.Stored, observed("2", 0))
	r.want(200, signalpush.Superseded, observed("1", -time.Second))
	r.shows(second)
	r.start()
	r.want(200, signalpush.Superseded, observed("1", -time.Second))
	r.shows(second)
	// Another kind, site or type is another order.
	r.want(202, signalpush.Stored, strings.Replace(observed("1", -time.Second), "marginal", "average", 1))
	r.want(202, signalpush.Stored, strings.Replace(observed("1", -time.Second), "lisboa", "porto", 1))
	r.want(202, signalpush.Stored, strings.Replace(observed("1", -time.Second), "observed", "forecast", 1))
	r.sink.take()
	// What was generated at once replaces, so that a mistake can be mended.
	r.want(202, signalpush.Stored, observed("1", 0))
	r.shows(first)
}

func TestALateRetryAfterDaysDoesNotBringAnOldSignalBack(t *testing.T) {
	r := newRig(t, nil)
	b := observed("1", 0)
	later := func(hours time.Duration, value string) string {
		return strings.ReplaceAll(observed(value, hours*time.Hour), `"start":"`+stamp(0), `"start":"`+stamp(hours*time.Hour))
	}
	r.want(202, signalpush.Stored, b, r.id("a", b))
	r.clock.advance(9 * 24 * time.Hour) // longer than ids are kept
	r.start()
	now := later(9*24, "500")
	r.want(202, signalpush.Stored, now)
	r.sink.take()
	r.want(200, signalpush.Superseded, b, r.id("a", b))
	r.shows()
	reading, err := r.h.Source("meter", webhook.Target{Site: "lisboa"}, signals.Marginal).Latest(t.Context())
	if err != nil || *reading.Value != 500 {
		t.Errorf("%+v %v", reading, err)
	}
}

func TestWhatIsNotValidAnyMoreIsIgnored(t *testing.T) {
	r := newRig(t, nil)
	for _, b := range []string{
		strings.Replace(observed("1", -time.Hour), `"site"`, `"valid_until":"`+stamp(0)+`","site"`, 1),
		body(signalpush.CurtailmentStarted, `{"site":"lisboa","start":"2026-03-01T10:00:00Z","end":"2026-03-01T12:00:00Z"}`),
		body(signalpush.CurtailmentStarted, `{"site":"lisboa","start":"2026-03-01T07:00:00Z"}`), // begun, and its end was lost
		body(signalpush.Override, `{"site":"lisboa","action":"on","valid_until":"2026-03-01T12:00:00Z"}`),
		strings.Replace(strings.Replace(observed("1", -time.Hour), "observed", "forecast", 1), `"start":"`+stamp(0), `"start":"`+stamp(-5*time.Minute), 1),
	} {
		r.want(200, signalpush.Expired, b)
	}
	r.shows()
	if n := r.counter("girassol_webhook_ignored_total", "expired"); n != 5 {
		t.Errorf("counted %v", n)
	}
}

func TestACurtailmentThatEndedIsNotBegunAgainByALateStart(t *testing.T) {
	r := newRig(t, nil)
	started := body(signalpush.CurtailmentStarted, `{"site":"lisboa","generated_at":"2026-03-01T11:00:00Z"}`)
	ended := body(signalpush.CurtailmentEnded, `{"site":"lisboa","generated_at":"2026-03-01T11:30:00Z"}`)
	r.want(202, signalpush.Stored, ended)
	r.want(200, signalpush.Superseded, started)
	r.shows(`site lisboa: curtailment "" ended`)
	// Of one instant, the end wins in any order.
	same := strings.Replace(started, "11:00", "11:30", 1)
	r.want(200, signalpush.Superseded, same)
	r.start()
	r.shows(`site lisboa: curtailment "" ended`)
	r.want(200, signalpush.Superseded, same)
	// Others with ids of their own are independent.
	r.want(202, signalpush.Stored, strings.Replace(started, `"site"`, `"id":"b","site"`, 1))
	r.shows(`site lisboa: curtailment "b" from 11:00 to 01T15:00 limit none`)
}

func TestACurtailmentHoldsOverARestartButNotForEver(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.MaxCurtailment = time.Hour })
	r.want(202, signalpush.Stored, body(signalpush.CurtailmentStarted, `{"site":"lisboa"}`))
	line := `site lisboa: curtailment "" from 12:00 to 01T13:00 limit none`
	r.shows(line)
	r.clock.advance(time.Hour - 1)
	r.start()
	r.shows(line)
	r.clock.advance(1)
	r.start()
	r.shows()
}

func TestWhatASourceMayNotSayAnyMoreIsForgottenWithARestart(t *testing.T) {
	r := newRig(t, nil)
	r.want(202, signalpush.Stored, observed("1", 0))
	r.shows(first)
	r.change = func(c *webhook.Config) { c.Senders[0].Sites = []string{"porto"} }
	r.start()
	r.shows()
	if _, err := r.h.Source("", webhook.Target{Site: "lisboa"}, signals.Marginal).Latest(t.Context()); !errors.Is(err, webhook.ErrNothing) {
		t.Errorf("%v", err)
	}
}

func TestADamagedFileCostsItsStreamOnly(t *testing.T) {
	r := newRig(t, nil)
	r.want(202, signalpush.Stored, observed("1", 0))
	files, err := filepath.Glob(filepath.Join(r.dir, "pushed", "meter", "*.entry.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	r.want(202, signalpush.Stored, strings.Replace(observed("2", 0), "lisboa", "porto", 1))
	write(t, files[0], "{")
	r.sink.take()
	r.start()
	r.shows(strings.Replace(second, "lisboa", "porto", 1))
}

func TestSeriesAreBounded(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.Senders[0].PerMinute, c.Senders[0].Burst = 1e6, 1e6; c.Store = nil })
	end := func(i int) string {
		return body(signalpush.CurtailmentEnded, `{"site":"lisboa","id":"c`+strings.Repeat("x", i%100)+string(rune('a'+i/100))+`"}`)
	}
	for i := range 1024 {
		r.want(202, signalpush.Stored, end(i))
	}
	r.want(422, signalpush.Refused, end(1024))
	r.want(202, signalpush.Stored, end(7)) // a known one goes on
	r.want(202, signalpush.Stored, strings.Replace(end(1024), "lisboa", "porto", 1))
	r.clock.advance(9 * 24 * time.Hour) // those that ended long ago make room
	r.want(202, signalpush.Stored, end(1024))
}

// failing is a store that fails on demand.
type failing struct {
	webhook.Store
	seen, commit, load error
}

func (f *failing) Seen(ctx context.Context, source, id string, now time.Time) (string, bool, error) {
	if f.seen != nil {
		return "", false, f.seen
	}
	return f.Store.Seen(ctx, source, id, now)
}

func (f *failing) Commit(ctx context.Context, c webhook.Commit) error {
	if f.commit != nil {
		return f.commit
	}
	return f.Store.Commit(ctx, c)
}

func (f *failing) Load(ctx context.Context) ([]webhook.Entry, error) {
	if f.load != nil {
		return nil, f.load
	}
	return f.Store.Load(ctx)
}

func TestWhatCannotBeStoredIsNotTaken(t *testing.T) {
	f := &failing{}
	r := newRig(t, func(c *webhook.Config) { f.Store = c.Store; c.Store = f })
	b := observed("1", 0)
	for _, set := range []*error{&f.seen, &f.commit} {
		*set = errors.New("disk full")
		got := r.want(503, signalpush.Refused, b, r.id("a", b))
		if got.header.Get("Retry-After") != "5" || strings.Contains(got.Message, "disk") {
			t.Errorf("%+v", got)
		}
		r.shows()
		*set = nil
	}
	r.want(202, signalpush.Stored, b, r.id("a", b))
	r.shows(first)
}

func TestAStoreThatDoesNotAnswerHoldsUpMessagesAndNotTheStart(t *testing.T) {
	r := newRig(t, nil)
	r.want(202, signalpush.Stored, observed("2", 0))
	r.sink.take()
	f := &failing{load: errors.New("connection refused")}
	r.change = func(c *webhook.Config) { f.Store = c.Store; c.Store = f }
	r.start()
	r.shows()
	r.want(503, signalpush.Refused, observed("1", -time.Second))
	if _, err := r.h.Push(t.Context(), "meter", nil); err == nil {
		t.Error("pushed before anything was known")
	}
	f.load = nil
	r.want(200, signalpush.Superseded, observed("1", -time.Second))
	r.shows(second)
}

func TestWithoutAStoreADeliveryStillCountsOnce(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.Store, c.Sink = nil, nil })
	b := observed("1", 0)
	r.want(202, signalpush.Stored, b, r.id("a", b))
	r.clock.advance(24 * time.Hour)
	r.want(200, signalpush.Duplicate, b, r.id("a", b))
	r.clock.advance(time.Second)
	r.want(202, signalpush.Stored, b, r.id("a", b))
	if entries, _ := os.ReadDir(filepath.Join(r.dir, "pushed")); len(entries) != 0 {
		t.Errorf("wrote %v", entries)
	}
}

func TestConcurrentRepetitionsCountOnce(t *testing.T) {
	r := newRig(t, nil)
	b := observed("1", 0)
	requests := make([]*http.Request, 8)
	for i := range requests {
		requests[i] = r.request(b, r.id("a", b))
	}
	results := make(chan signalpush.Result, len(requests))
	for _, req := range requests {
		go func() { results <- r.do(req).Result }()
	}
	count := map[signalpush.Result]int{}
	for range requests {
		count[<-results]++
	}
	if count[signalpush.Stored] != 1 || count[signalpush.Duplicate] != 7 {
		t.Errorf("%v", count)
	}
	r.shows(first)
}

func TestPushedByAnotherWayIsOrderedTheSame(t *testing.T) {
	r := newRig(t, nil)
	one := 1.0
	m := webhook.Message{Type: webhook.TypeObserved, Target: webhook.Target{Site: "lisboa"}, GeneratedAt: t0, Kind: signals.Marginal,
		Unit: signals.GramsPerKWh, Points: []webhook.Point{{Start: t0, Period: 5 * time.Minute, Value: &one}}}
	if got, err := r.h.Push(t.Context(), "meter", []webhook.Message{m}); err != nil || got[0] != signalpush.Stored {
		t.Fatal(got, err)
	}
	r.shows(first)
	r.want(200, signalpush.Superseded, observed("2", -time.Second))
	other, bad := m, m
	other.Target.Site, bad.Unit = "berlin", signals.Percent
	for name, c := range map[string]struct {
		source string
		m      webhook.Message
	}{"unknown source": {"grid", m}, "other site": {"meter", other}, "bad unit": {"meter", bad}, "no curtailment": {"meter", webhook.Message{
		Type: webhook.TypeCurtailment, Target: m.Target, GeneratedAt: t0}}} {
		if _, err := r.h.Push(t.Context(), c.source, []webhook.Message{c.m}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	r.start()
	r.shows(first)
}
