package agent

import (
	"encoding/json"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	"girassol.dev/internal/algorithm"
)

// forge writes into lm's stream, one of each kind, what somebody could write who has
// the stream but not the coordinator's key; how many of each reason.
func (a announcer) forge(e events.Event) map[string]int {
	a.t.Helper()
	e.Federation = "lm"
	b, err := json.Marshal(e)
	must(a.t, err)
	text := string(b)
	genuine := events.Sign(keyOf("c"), "lm", 1, 1, text) // signed once, for another place
	a.raw("*", events.Field, text)
	a.signed("f", e)
	other := events.Sign(keyOf("f"), "lm", e.Term, e.Sequence, text)
	a.raw("*", events.Field, text, events.KeyField, events.KeyID(publicOf(keyOf("c"))), events.SignatureField, other[5])
	a.raw("*", genuine...)
	elsewhere := e
	elsewhere.Federation = "vision"
	a.signed("c", elsewhere)
	a.raw("*", events.Field, "{", events.KeyField, genuine[3], events.SignatureField, genuine[5])
	a.raw("*", "nothing", "of ours")
	return map[string]int{refusedUnsigned: 1, refusedOtherKey: 1, refusedForged: 2, refusedElsewhere: 1, refusedMalformed: 2}
}

func TestForgedEventsAreCountedAndHideNoTrueOne(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	l := listen(t, srv.Addr(), filepath.Join(t.TempDir(), "events.json"))
	a.announce(event(1, 1))
	l.next(1)
	want := a.forge(events.Event{Type: events.Shutdown, Term: 99, Sequence: 99})
	a.announce(event(1, 1)) // the true one of before once more
	want[refusedRepeated] = 1
	a.announce(event(1, 2))
	if got := l.next(1); !slices.Equal(got, []uint64{2}) {
		t.Fatalf("sequences %v", got)
	}
	l.stop()
	if got := l.refused(); !maps.Equal(got, want) {
		t.Errorf("refused %v, want %v", got, want)
	}
	if n := l.missed(); n != 0 {
		t.Errorf("%g events missed", n)
	}
}

func TestNothingIsBelievedBeforeACoordinatorHasGivenItsKey(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	path := filepath.Join(t.TempDir(), "events.json")
	a.announce(event(1, 1))
	l := deaf(t, srv.Addr(), path)
	l.reader.keys.set([]byte("too short"))
	select {
	case e := <-l.got:
		t.Fatalf("%+v", e)
	case <-time.After(50 * time.Millisecond): // the test cannot fail by being too short
	}
	l.reader.keys.set(publicOf(keyOf("c")))
	if got := l.next(1); !slices.Equal(got, []uint64{1}) {
		t.Fatalf("sequences %v", got)
	}
}

// A coordinator that has lost its folder has another key, and its terms begin anew;
// its events may be in Redis before the agent has a session with it.
func TestEventsOfANewKeyAreReadFromWhereTheyBeganToBeRefused(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	path := filepath.Join(t.TempDir(), "events.json")
	l := listen(t, srv.Addr(), path)
	a.announce(event(7, 1))
	l.next(1)
	a.signed("n", event(1, 1))
	a.announce(event(7, 2)) // the last of the old one
	a.signed("n", event(1, 2))
	l.next(1)
	a.signed("n", event(1, 3))
	for deadline := time.Now().Add(time.Minute); l.refused()[refusedOtherKey] < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("refused %v", l.refused())
		}
	}
	l.reader.keys.set(publicOf(keyOf("n")))
	if got := l.next(2); !slices.Equal(got, []uint64{2, 3}) { // what came before an old one's last is lost
		t.Fatalf("sequences %v", got)
	}
	l.stop()
	// Also over the agent's restart.
	a.announce(event(7, 3))
	a.signed("n", event(1, 4))
	l = deaf(t, srv.Addr(), path)
	l.reader.keys.set(publicOf(keyOf("n")))
	if got := l.next(1); !slices.Equal(got, []uint64{4}) {
		t.Fatalf("sequences %v", got)
	}
}

// An entry of the far future would hide all that comes into a stream after it was
// put right.
func TestAStreamThatWasPutRightIsReadFromItsStart(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	path := filepath.Join(t.TempDir(), "events.json")
	l := listen(t, srv.Addr(), path)
	a.announce(event(1, 1))
	l.next(1)
	a.raw("18446744073709551615-1", events.Field, "{}")
	for deadline := time.Now().Add(time.Minute); l.refused()[refusedUnsigned] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the forged entry was not read")
		}
	}
	srv.Del(events.Stream("lm"))
	a.announce(event(1, 1)) // the coordinator writes again what Redis has lost
	a.announce(event(1, 2))
	if got := l.next(1); !slices.Equal(got, []uint64{2}) {
		t.Fatalf("sequences %v", got)
	}
}

// With write access to Redis and all that is known of a round, nobody ends one; and
// the coordinator's own word still does.
func TestAForgedStopEndsNoRound(t *testing.T) {
	srv := miniredis.RunT(t)
	a := announcer{t, srv}
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	client := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	path := filepath.Join(t.TempDir(), "events.json")
	launch(t, c, "", &person{t: t}, func(cfg *Config) { cfg.Redis, cfg.CursorPath = client, path })
	c.waitReady(0)
	c.tell(c.grant(4, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 1 })
	soon := time.Now().Add(time.Minute).UnixMilli()
	for i, kind := range []events.Type{events.RoundStopped, events.RoundVoid, events.RoundCommitted, events.Shutdown} {
		a.forge(events.Event{Type: kind, Term: 1, Sequence: uint64(2 + i), Round: 4, Site: "porto", UnixMilli: soon, Reason: "Completed"})
	}
	// The next true event says that all before it was looked at.
	a.announce(events.Event{Type: events.Evaluated, Term: 1, Sequence: 2})
	for deadline := time.Now().Add(time.Minute); loadCursor(path, slog.New(slog.DiscardHandler)).Sequence != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the events were not read")
		}
	}
	c.mu.Lock()
	beats := c.members[len(c.members)-1].beats
	steps := beats[len(beats)-1].GetSteps()
	c.mu.Unlock()
	c.waitBeat("still at work", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_TRAINING && h.GetSteps() > steps
	})
	if n := len(c.waitPushes(0)); n > 0 {
		t.Fatalf("%d updates: a forged event has ended the round", n)
	}
	a.announce(events.Event{Type: events.RoundStopped, Term: 1, Sequence: 3, Round: 4, Site: "porto", UnixMilli: soon})
	if u := c.waitPushes(1)[0].header; u.GetRound() != 4 {
		t.Fatalf("header %v", u)
	}
}

func TestStreamIDsCompareAsNumbers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"9-0", "10-0", -1}, {"10-0", "9-0", 1}, {"5-9", "5-10", -1}, {"5-10", "5-10", 0}, {"18446744073709551615-1", "1-1", 1}} {
		if got := compareIDs(c.a, c.b); got != c.want {
			t.Errorf("%s with %s: %d", c.a, c.b, got)
		}
	}
}
