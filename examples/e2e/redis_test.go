package e2e

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
)

// startRedis runs a real Redis on the cluster's address that keeps its data.
func startRedis(t *testing.T, dir, addr string) *process {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("no redis-server on this machine: install the package redis-server to run this test")
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: "redis", cmd: cmd, done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.done })
	return p
}

// Rounds go on without Redis, by the deadlines inside their grants; when it is
// back, its stream has every commit once, in order, and every agent has read it.
func TestRedisAwayForSeveralRoundsDelaysNothingAndLosesNothing(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	dir := t.TempDir()
	server := startRedis(t, dir, addr)
	c := newCluster(t, spec{algorithm: "DecoupledMomentum", sites: 2, rounds: "trainSeconds: 1, collectSeconds: 30, minSites: 2", redis: "redis://" + addr})
	c.startCoordinator()
	c.startAgent(0)
	c.startAgent(1)
	connected := c.until("published to Redis", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetVersion() >= 1 && s.GetEvents().GetState() == "Connected" && s.GetEvents().GetPending() == 0
	})
	server.kill()
	away := c.until("went on for three rounds without Redis", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetVersion() >= connected.GetVersion()+3 && s.GetEvents().GetState() == "Disconnected"
	})
	if away.GetEvents().GetPending() == 0 || away.GetEvents().GetMessage() == "" {
		t.Errorf("status says %v while Redis is away", away.GetEvents())
	}
	startRedis(t, dir, addr)
	back := c.until("published what had waited", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetEvents().GetState() == "Connected" && s.GetEvents().GetPending() == 0 && s.GetVersion() > away.GetVersion()
	})
	if back.GetRoundsVoid() != 0 {
		t.Errorf("%d rounds were void", back.GetRoundsVoid())
	}
	c.untilVersion(back.GetVersion() + 1)
	if err := c.pause(); err != nil {
		t.Fatal(err)
	}
	last := c.until("paused", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetPhase() == "Paused" && s.GetEvents().GetPending() == 0
	})
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	for v, e := range commits(t, client) {
		if *e.Version != uint64(v) {
			t.Fatalf("commit %d of the stream is of version %d", v, *e.Version)
		}
	}
	if n := len(commits(t, client)); n != int(last.GetVersion())+1 {
		t.Errorf("the stream has %d commits, the log %d", n, last.GetVersion()+1)
	}
	entries, err := client.XRevRangeN(t.Context(), events.Stream("e2e"), "+", "-", 1).Result()
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	newest := entries[0].ID
	for _, a := range []string{"a", "b"} {
		awaitCursor(t, filepath.Join(c.dir, "agent-"+a, "events.json"), newest)
	}
	c.stop()
	for _, m := range c.verify() {
		if len(m.Members) != 2 {
			t.Errorf("version %d has %d members: a round did not wait for both", m.Version, len(m.Members))
		}
	}
}

func (c *cluster) pause() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.admin.Pause(ctx, &coordinatorv1.PauseRequest{})
	return err
}

// commits are the RoundCommitted events of the stream without repetitions.
func commits(t *testing.T, client *redis.Client) []events.Event {
	t.Helper()
	entries, err := client.XRange(t.Context(), events.Stream("e2e"), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var out []events.Event
	var sequence uint64
	for _, entry := range entries {
		e, err := events.Parse(entry.Values[events.Field].(string))
		if err != nil {
			t.Fatal(err)
		}
		if e.Sequence <= sequence {
			continue // repeated after an answer that was lost
		}
		if e.Sequence != sequence+1 {
			t.Fatalf("event %d follows %d", e.Sequence, sequence)
		}
		sequence = e.Sequence
		if e.Type == events.RoundCommitted {
			out = append(out, e)
		}
	}
	return out
}

// awaitCursor waits until an agent has handled the stream up to an entry.
func awaitCursor(t *testing.T, path, id string) {
	t.Helper()
	var cursor struct{ ID string }
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &cursor) == nil && cursor.ID == id {
			return
		}
	}
	t.Errorf("%s stands at %q, the stream at %q", path, cursor.ID, id)
}
