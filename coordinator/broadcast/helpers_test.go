package broadcast

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"girassol.dev/api/events"
	"girassol.dev/internal/redislink"
)

// redisServer is a real Redis that can be killed and started again.
type redisServer struct {
	t         *testing.T
	dir, port string
	cmd       *exec.Cmd
}

func newRedisServer(t *testing.T) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("no redis-server in PATH: install it to run this test against the real thing")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	s := &redisServer{t: t, dir: t.TempDir(), port: port}
	t.Cleanup(s.kill)
	return s
}

func (s *redisServer) start(appendOnly string) {
	s.t.Helper()
	cmd := exec.Command("redis-server", "--port", s.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", appendOnly, "--dir", s.dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.cmd = cmd
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "Ready to accept connections") {
			go func() {
				for lines.Scan() {
				}
			}()
			return
		}
	}
	s.t.Fatal("redis-server ended before it was ready")
}

func (s *redisServer) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *redisServer) client() redis.UniversalClient { return client(s.t, "127.0.0.1:"+s.port) }

func client(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	c, err := redislink.Connect(redislink.Options{URL: "redis://" + addr}, discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var discard = slog.New(slog.DiscardHandler)

var testKey = keyOf("k")

func keyOf(letter string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte(letter), ed25519.SeedSize))
}

// encoded is an event's JSON as it goes out.
func encoded(t *testing.T, e events.Event) string {
	t.Helper()
	e.Federation = "demo"
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// publisher of a test checks Redis often.
func publisher(t *testing.T, c redis.UniversalClient, term uint64) *Publisher {
	t.Helper()
	p := newPublisher(c, "demo", term, testKey, discard)
	p.checkInterval = 20 * time.Millisecond
	p.start()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ctx)
	})
	return p
}

func committed(version uint64) events.Event {
	return events.Event{Type: events.RoundCommitted, Round: version, Version: &version, UnixMilli: 1}
}

func versions(after *uint64, to uint64) []events.Event {
	var out []events.Event
	from := uint64(0)
	if after != nil {
		from = *after + 1
	}
	for v := from; v <= to; v++ {
		out = append(out, committed(v))
	}
	return out
}

// reader does what an agent does: it blocks for what follows its last id, and
// skips what is not after the last (Term, Sequence).
type reader struct {
	t              *testing.T
	client         redis.UniversalClient
	last           string
	term, sequence uint64
}

func newReader(t *testing.T, c redis.UniversalClient) *reader {
	return &reader{t: t, client: c, last: "0"}
}

// read returns the next n events that are new.
func (r *reader) read(n int) []events.Event {
	r.t.Helper()
	var out []events.Event
	for len(out) < n {
		streams, err := r.client.XRead(r.t.Context(), &redis.XReadArgs{Streams: []string{events.Stream("demo"), r.last}, Count: int64(n - len(out)), Block: 500 * time.Millisecond}).Result()
		if r.t.Context().Err() != nil {
			r.t.Fatal("no more events")
		}
		if err != nil {
			continue // away, or nothing yet
		}
		for _, m := range streams[0].Messages {
			r.last = m.ID
			e, err := events.Verify(testKey.Public().(ed25519.PublicKey), "demo", m.Values)
			if err != nil {
				continue // an agent does not believe it
			}
			if e.Term < r.term || (e.Term == r.term && e.Sequence <= r.sequence) {
				continue
			}
			if e.Term == r.term && e.Sequence != r.sequence+1 {
				r.t.Errorf("sequence %d follows %d", e.Sequence, r.sequence)
			}
			r.term, r.sequence = e.Term, e.Sequence
			out = append(out, e)
		}
	}
	return out
}

func (r *reader) wantVersions(from, to uint64) {
	r.t.Helper()
	for i, e := range r.read(int(to - from + 1)) {
		if e.Version == nil || *e.Version != from+uint64(i) {
			r.t.Fatalf("event %d is %+v, want version %d", i, e, from+uint64(i))
		}
	}
}

func mini(t *testing.T) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func closeWithin(t *testing.T, p *Publisher, d time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return p.Close(ctx)
}

// waitFor waits for a state that only time with a real Redis brings about.
func waitFor(t *testing.T, p *Publisher, ok func(Status) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok(p.Status()) {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("status stays %+v", p.Status())
		}
	}
}

// unused is an address that nobody listens on.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
