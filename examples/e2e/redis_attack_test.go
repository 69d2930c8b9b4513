package e2e

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
)

// Whoever has Redis in hand forges stops of every round and the coordinator's end, and
// writes the coordinator's own events again: the site trains all its steps, and only
// the coordinator's own word of its end is believed. Coordinator and agent come to
// Redis as the users that girassol redis acl makes.
func TestAnAttackerInRedisStopsNothing(t *testing.T) {
	t.Parallel()
	const steps = 600
	addr := freeAddr(t)
	startRedis(t, t.TempDir(), addr)
	c := newCluster(t, spec{algorithm: "DiLoCo", sites: 1, rounds: "localSteps: 600, collectSeconds: 60, minSites: 1, total: 4", redis: "redis://" + addr})
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer admin.Close()
	flags := makeUsers(t, c, admin)
	c.agentFlags = flags["agents"]
	c.startCoordinator(flags["coordinator"]...)
	c.startAgent(0)
	c.until("published to Redis", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetEvents().GetState() == "Connected" && s.GetEvents().GetPublished() > 0
	})
	ctx, stop := context.WithCancel(t.Context())
	attacked := make(chan int)
	go func() { attacked <- attack(ctx, admin) }()
	c.until("made four versions", func(s *coordinatorv1.FederationStatus) bool { return s.GetVersion() >= 4 })
	stop()
	if n := <-attacked; n < 10 {
		t.Fatalf("only %d forged entries were written", n)
	}
	log := filepath.Join(c.dir, "agent-a.log")
	const believed = "coordinator announces its shutdown"
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "event without effect") || strings.Contains(string(text), believed) {
		t.Errorf("the agent's log has nothing of forged events, or has believed one: %v", err)
	}
	c.coord.signal(syscall.SIGTERM)
	if code := c.coord.wait(); code != 0 {
		t.Errorf("coordinator ended with code %d", code)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(log)
		if err == nil && strings.Contains(string(text), believed) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the coordinator's own event was not believed")
		}
	}
	c.agents["a"].kill()
	manifests := c.verify()
	for _, m := range manifests {
		for _, member := range m.Members {
			if member.Steps != steps {
				t.Errorf("version %d: %s has %d steps of %d", m.Version, member.Member, member.Steps, steps)
			}
		}
	}
	if len(manifests) != 4 {
		t.Errorf("%d versions", len(manifests))
	}
}

// attack writes until ctx ends and says how often it could.
func attack(ctx context.Context, client *redis.Client) (n int) {
	stream := events.Stream("e2e")
	_, key, _ := ed25519.GenerateKey(nil)
	for ctx.Err() == nil {
		entries, _ := client.XRevRangeN(ctx, stream, "+", "-", 4).Result()
		for _, kind := range []events.Type{events.RoundStopped, events.RoundVoid, events.RoundCommitted, events.Shutdown} {
			for round := uint64(1); round <= 5; round++ {
				e := events.Event{Type: kind, Federation: "e2e", Term: 1 << 40, Sequence: uint64(n + 1), Round: round, UnixMilli: time.Now().Add(time.Hour).UnixMilli(), Reason: "Completed"}
				b, _ := json.Marshal(e)
				values := events.Sign(key, "e2e", e.Term, e.Sequence, string(b))
				switch {
				case n%3 == 1:
					values = values[:2]
				case n%3 == 2 && len(entries) > 0: // the true key's name and signature
					values[3], _ = entries[0].Values[events.KeyField].(string)
					values[5], _ = entries[0].Values[events.SignatureField].(string)
				}
				id, err := client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: values}).Result()
				if err == nil {
					n++
					client.Publish(ctx, stream, id)
				}
			}
		}
		for _, e := range entries { // once more
			client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: e.Values})
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return n
}

// makeUsers has girassol redis acl make the federation's users, and returns the flags
// of each program.
func makeUsers(t *testing.T, c *cluster, admin *redis.Client) map[string][]string {
	t.Helper()
	flags := map[string][]string{}
	args := []string{"redis", "acl", "--federation", "e2e"}
	for _, who := range []string{"coordinator", "agents"} {
		c.write(who+".password", "planted-"+who+"\n")
		file := filepath.Join(c.dir, who+".password")
		args = append(args, "--"+who+"-password-file", file)
		flags[who] = []string{"--redis-username", "girassol-e2e-" + who, "--redis-password-file", file}
	}
	out, err := exec.CommandContext(t.Context(), cli, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var words []any
		for _, w := range strings.Fields(line) {
			words = append(words, w)
		}
		if err := admin.Do(t.Context(), words...).Err(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return flags
}
