package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"girassol.dev/signals/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var then = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func digestOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// commitOf is a commit of one delivery and one entry.
func commitOf(source, id, stream string, generated, at time.Time) webhook.Commit {
	return webhook.Commit{Source: source, At: at, Deliveries: []webhook.Delivery{{ID: id, Digest: digestOf(id)}},
		Entries: []webhook.Entry{{Source: source, Stream: stream, Received: at, GeneratedAt: generated,
			Message: json.RawMessage(fmt.Sprintf(`{"generated":%d}`, generated.Unix()))}}}
}

func openPushed(t *testing.T, dir string, retention time.Duration) *PushedFiles {
	t.Helper()
	f, err := OpenPushedFiles(dir, retention)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// stores are both, each with a way to restart it and to let time pass.
func stores(t *testing.T, test func(t *testing.T, restart func() webhook.Store, pass func(time.Duration))) {
	t.Run("files", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "pushed")
		test(t, func() webhook.Store { return openPushed(t, dir, 0) }, func(time.Duration) {})
	})
	t.Run("redis", func(t *testing.T) {
		server := miniredis.RunT(t)
		test(t, func() webhook.Store {
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			t.Cleanup(func() { client.Close() })
			r, err := NewPushedRedis(client, "girassol:demo:pushed", 0)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}, server.FastForward)
	})
}

func seen(t *testing.T, s webhook.Store, source, id string, now time.Time) bool {
	t.Helper()
	digest, ok, err := s.Seen(t.Context(), source, id, now)
	if err != nil || ok && digest != digestOf(id) {
		t.Fatalf("%q %v %v", digest, ok, err)
	}
	return ok
}

func entries(t *testing.T, s webhook.Store) []string {
	t.Helper()
	loaded, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range loaded {
		out = append(out, fmt.Sprintf("%s %s %s %s %s", e.Source, e.Stream, e.Received.Format("15:04"), e.GeneratedAt.Format("15:04"), e.Message))
	}
	slices.Sort(out)
	return out
}

func TestDeliveriesAreRememberedOverARestart(t *testing.T) {
	stores(t, func(t *testing.T, restart func() webhook.Store, pass func(time.Duration)) {
		s := restart()
		if seen(t, s, "meter", "a", then) {
			t.Error("seen before it came")
		}
		if err := s.Commit(t.Context(), commitOf("meter", "a", "s", then, then)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if !seen(t, s, "meter", "a", then) || seen(t, s, "grid", "a", then) || seen(t, s, "meter", "b", then) {
				t.Error("not what was committed")
			}
			s = restart()
		}
		pass(PushedRetention - time.Minute)
		if !seen(t, s, "meter", "a", then.Add(PushedRetention-time.Minute)) {
			t.Error("forgotten too early")
		}
		pass(2 * time.Minute)
		if seen(t, s, "meter", "a", then.Add(PushedRetention+time.Minute)) {
			t.Error("not forgotten")
		}
	})
}

func TestTheNewestMessageOfAStreamIsKept(t *testing.T) {
	stores(t, func(t *testing.T, restart func() webhook.Store, _ func(time.Duration)) {
		s := restart()
		if got := entries(t, s); len(got) != 0 {
			t.Errorf("%v", got)
		}
		for i, c := range []webhook.Commit{
			commitOf("meter", "a", "site lisboa\nobserved", then, then),
			commitOf("meter", "b", "site lisboa\nobserved", then.Add(time.Minute), then.Add(time.Hour)),
			commitOf("meter", "c", "site porto\nobserved", then, then),
			commitOf("grid", "a", "site lisboa\nobserved", then, then),
			{Source: "meter", At: then, Deliveries: []webhook.Delivery{{ID: "d", Digest: digestOf("d")}}, Drop: []string{"site porto\nobserved", "never there"}},
		} {
			if err := s.Commit(t.Context(), c); err != nil {
				t.Fatal(i, err)
			}
		}
		want := []string{
			"grid site lisboa\nobserved 12:00 12:00 " + fmt.Sprintf(`{"generated":%d}`, then.Unix()),
			"meter site lisboa\nobserved 13:00 12:01 " + fmt.Sprintf(`{"generated":%d}`, then.Add(time.Minute).Unix()),
		}
		if got := entries(t, restart()); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if !seen(t, s, "meter", "d", then) {
			t.Error("a commit without entries was not remembered")
		}
	})
}

func TestAMinuteIsNoRetention(t *testing.T) {
	if _, err := OpenPushedFiles(t.TempDir(), time.Minute); err == nil {
		t.Error("accepted")
	}
	if _, err := NewPushedRedis(nil, "p", time.Minute); err == nil {
		t.Error("accepted")
	}
	if _, err := NewPushedRedis(nil, "", 0); err == nil {
		t.Error("accepted no prefix")
	}
}

func TestALogCutShortByACrashLosesItsLastLineOnly(t *testing.T) {
	dir := t.TempDir()
	f := openPushed(t, dir, 0)
	for _, id := range []string{"a", "b"} {
		if err := f.Commit(t.Context(), commitOf("meter", id, "s", then, then)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "meter", logName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 1; cut < len(whole)/2; cut += 29 {
		if err := os.WriteFile(path, whole[:len(whole)-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		f := openPushed(t, dir, 0)
		if !seen(t, f, "meter", "a", then) || seen(t, f, "meter", "b", then) {
			t.Fatalf("cut by %d", cut)
		}
		if err := f.Commit(t.Context(), commitOf("meter", "c", "s", then, then)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f = openPushed(t, dir, 0)
		if !seen(t, f, "meter", "a", then) || seen(t, f, "meter", "b", then) || !seen(t, f, "meter", "c", then) {
			t.Fatalf("cut by %d, then added to", cut)
		}
		f.Close()
	}
	// Garbage inside is passed over.
	if err := os.WriteFile(path, []byte("\x00garbage\n"+strings.Repeat("x", 5000)+"\n"+string(whole)), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := openPushed(t, dir, 0); !seen(t, f, "meter", "a", then) || !seen(t, f, "meter", "b", then) {
		t.Error("good lines were lost")
	}
}

func TestTheLogDoesNotGrowForEver(t *testing.T) {
	dir := t.TempDir()
	f := openPushed(t, dir, 24*time.Hour)
	at := then
	for i := range 40 {
		c := webhook.Commit{Source: "meter", At: at}
		for j := range 100 {
			id := fmt.Sprint(i, "/", j)
			c.Deliveries = append(c.Deliveries, webhook.Delivery{ID: id, Digest: digestOf(id)})
		}
		if err := f.Commit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		at = at.Add(6 * time.Hour)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "meter", logName))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(raw), "\n"); n > 2*500+spare+100 {
		t.Errorf("%d lines for 500 deliveries of the last day", n)
	}
	if len(f.sources["meter"].seen) > 2*500+spare+100 {
		t.Errorf("%d deliveries in memory", len(f.sources["meter"].seen))
	}
	if !seen(t, f, "meter", "39/99", at) || seen(t, f, "meter", "0/0", at) {
		t.Error("the wrong ones were forgotten")
	}
}

func TestDamagedMessagesAreNamedAndTheOthersLoaded(t *testing.T) {
	dir := t.TempDir()
	f := openPushed(t, dir, 0)
	for _, stream := range []string{"good", "bad"} {
		if err := f.Commit(t.Context(), commitOf("meter", stream, stream, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	bad, good := filepath.Join(dir, "meter", entryFile("bad")), filepath.Join(dir, "meter", entryFile("good"))
	other, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"cut short": `{"version":1,"sour`, "other version": `{"version":2}`, "another's": string(other), "empty": ""} {
		if err := os.WriteFile(bad, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := f.Load(t.Context())
		if err == nil || !strings.Contains(err.Error(), bad) || len(got) != 1 || got[0].Stream != "good" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestDamageInRedisIsNamedAndTheOthersLoaded(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DialerRetries: 1})
	defer client.Close()
	r, err := NewPushedRedis(client, "p", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(t.Context(), commitOf("meter", "a", "good", then, then)); err != nil {
		t.Fatal(err)
	}
	good := server.HGet(r.streams(), field("meter", "good"))
	for name, content := range map[string]string{"short": "x", "cut": good[:40], "another's": good, "other version": strings.Replace(good, `"version":1`, `"version":2`, 1)} {
		server.HSet(r.streams(), field("meter", "bad"), content)
		got, err := r.Load(t.Context())
		if err == nil || !strings.Contains(err.Error(), "bad") || len(got) != 1 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	server.Close()
	if got, err := r.Load(t.Context()); err == nil || got != nil {
		t.Errorf("without a Redis: %v, %v", got, err)
	}
	if _, _, err := r.Seen(t.Context(), "meter", "a", then); err == nil {
		t.Error("no error without a Redis")
	}
	if err := r.Commit(t.Context(), commitOf("meter", "a", "good", then, then)); err == nil {
		t.Error("no error without a Redis")
	}
}

func TestAnotherProcessCannotPutAnOlderMessageIntoRedis(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	r, err := NewPushedRedis(client, "p", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, generated := range []time.Time{then.Add(time.Second), then, then.Add(-10 * 365 * 24 * time.Hour)} {
		if err := r.Commit(t.Context(), commitOf("meter", generated.String(), "s", generated, then)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.Load(t.Context())
	if err != nil || len(got) != 1 || !got[0].GeneratedAt.Equal(then.Add(time.Second)) {
		t.Errorf("%+v %v", got, err)
	}
}

func TestSourcesWithNamesThatEscapeAreRefused(t *testing.T) {
	f := openPushed(t, t.TempDir(), 0)
	for _, source := range []string{"", "..", "a/b", ".hidden"} {
		if err := f.Commit(t.Context(), commitOf(source, "a", "s", then, then)); err == nil {
			t.Errorf("%q was accepted", source)
		}
		if _, _, err := f.Seen(t.Context(), source, "a", then); err == nil {
			t.Errorf("%q was accepted", source)
		}
	}
	c := commitOf("meter", "a", "s", then, then)
	c.Deliveries[0].Digest = "short"
	if err := f.Commit(t.Context(), c); err == nil {
		t.Error("a digest that breaks the log was accepted")
	}
}

func TestSourcesCommitConcurrently(t *testing.T) {
	stores(t, func(t *testing.T, restart func() webhook.Store, _ func(time.Duration)) {
		s := restart()
		var wg sync.WaitGroup
		for _, source := range []string{"a", "b", "c", "d"} {
			wg.Go(func() {
				for i := range 5 {
					if err := s.Commit(context.Background(), commitOf(source, fmt.Sprint(i), "s", then.Add(time.Duration(i)), then)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		s = restart()
		for _, source := range []string{"a", "b", "c", "d"} {
			for i := range 5 {
				if !seen(t, s, source, fmt.Sprint(i), then) {
					t.Errorf("%s %d was lost", source, i)
				}
			}
		}
		if got := entries(t, s); len(got) != 4 {
			t.Errorf("%v", got)
		}
	})
}

func FuzzDeliveryLine(f *testing.F) {
	f.Add(line(shorten("a"), delivery{digestOf("b"), then.Unix()}))
	f.Add("1 2 3\n")
	f.Fuzz(func(t *testing.T, s string) {
		id, d, ok := parseLine(s)
		if !ok {
			return
		}
		if id2, d2, ok := parseLine(line(id, d)); !ok || id2 != id || d2 != d {
			t.Errorf("%q became %q", s, line(id, d))
		}
	})
}
