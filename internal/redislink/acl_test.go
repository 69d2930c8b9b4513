package redislink

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"girassol.dev/api/events"
)

func TestACLNamesOneFederationOnly(t *testing.T) {
	for _, bad := range []string{"", "*", "a*", "a b", "A", "a:b", "a\nACL SETUSER x", "-a", strings.Repeat("a", 254)} {
		if _, err := ACL(bad, CoordinatorPlaceholder, AgentsPlaceholder); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	lines, err := ACL("lm", CoordinatorPlaceholder, AgentsPlaceholder)
	if err != nil || strings.Count(lines, "\n") != 2 || strings.Count(lines, "ACL SETUSER ") != 2 {
		t.Errorf("%q, %v", lines, err)
	}
	if _, err := PasswordHash([]byte("\n")); err == nil {
		t.Error("an empty password is taken")
	}
}

// users are clients of a Redis with the users of two federations.
func users(t *testing.T) (coordinator, agents redis.UniversalClient) {
	t.Helper()
	addr := "127.0.0.1:" + serve(t)
	admin := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = admin.Close() })
	dir := t.TempDir()
	hash := map[string]string{}
	for _, who := range []string{"coordinator", "agents"} {
		content := []byte("the password of " + who + "\n")
		if err := os.WriteFile(filepath.Join(dir, who), content, 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if hash[who], err = PasswordHash(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, federation := range []string{"lm", "vision"} {
		lines, err := ACL(federation, hash["coordinator"], hash["agents"])
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(lines) {
			if err := admin.Do(t.Context(), words(line)...).Err(); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	open := func(who string) redis.UniversalClient {
		c, err := Connect(Options{URL: "redis://" + addr, Username: User("lm", who), PasswordFile: filepath.Join(dir, who)}, discard)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	return open("coordinator"), open("agents")
}

func words(line string) []any {
	var out []any
	for _, w := range strings.Fields(line) {
		out = append(out, w)
	}
	return out
}

func TestALinePastedAsItIsMakesNoUserWithAKnownPassword(t *testing.T) {
	admin := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + serve(t)})
	defer admin.Close()
	lines, err := ACL("lm", CoordinatorPlaceholder, AgentsPlaceholder)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(lines) {
		if err := admin.Do(t.Context(), words(line)...).Err(); err == nil {
			t.Errorf("%s is taken", line)
		}
	}
}

func TestAFederationsUsersCanDoWhatTheyNeedAndNothingElse(t *testing.T) {
	coordinator, agents := users(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	own, other := events.Stream("lm"), events.Stream("vision")
	add := func(c redis.UniversalClient, stream string) error {
		return c.XAdd(ctx, &redis.XAddArgs{Stream: stream, MaxLen: 10, Approx: true, Values: []string{"event", "x"}}).Err()
	}
	read := func(c redis.UniversalClient, stream string) error {
		err := c.XRead(ctx, &redis.XReadArgs{Streams: []string{stream, "0-0"}, Count: 10, Block: -1}).Err()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	}
	listen := func(c redis.UniversalClient, channel string) error {
		sub := c.Subscribe(ctx, channel)
		defer sub.Close()
		_, err := sub.ReceiveTimeout(ctx, 10*time.Second)
		return err
	}
	last := func(c redis.UniversalClient, stream string) error {
		return c.XRevRangeN(ctx, stream, "+", "-", 1).Err()
	}
	for _, c := range []struct {
		what string
		err  error
		may  bool
	}{
		{"the coordinator adds", add(coordinator, own), true},
		{"the coordinator wakes up", coordinator.Publish(ctx, own, "1").Err(), true},
		{"the coordinator reads back", last(coordinator, own), true},
		{"the coordinator pings", coordinator.Ping(ctx).Err(), true},
		{"agents read", read(agents, own), true},
		{"agents see the end", last(agents, own), true},
		{"agents listen", listen(agents, own), true},
		{"agents ping", agents.Ping(ctx).Err(), true},
		{"agents add", add(agents, own), false},
		{"agents publish", agents.Publish(ctx, own, "1").Err(), false},
		{"agents delete", agents.Del(ctx, own).Err(), false},
		{"agents trim", agents.XTrimMaxLen(ctx, own, 0).Err(), false},
		{"the coordinator deletes", coordinator.Del(ctx, own).Err(), false},
		{"agents add to another's", add(agents, other), false},
		{"agents read another's", read(agents, other), false},
		{"agents listen to another's", listen(agents, other), false},
		{"agents see another's end", last(agents, other), false},
		{"the coordinator adds to another's", add(coordinator, other), false},
		{"the coordinator publishes on another's", coordinator.Publish(ctx, other, "1").Err(), false},
		{"the coordinator reads another's", last(coordinator, other), false},
		{"the coordinator sets a key", coordinator.Set(ctx, "x", "y", 0).Err(), false},
		{"agents look for keys", agents.Keys(ctx, "*").Err(), false},
		{"agents configure", agents.ConfigGet(ctx, "*").Err(), false},
		{"agents make a user", agents.Do(ctx, "ACL", "SETUSER", "x", "on").Err(), false},
		{"the coordinator makes a user", coordinator.Do(ctx, "ACL", "SETUSER", "x", "on").Err(), false},
		{"the coordinator runs a script", coordinator.Eval(ctx, "return 1", nil).Err(), false},
		{"the coordinator flushes", coordinator.FlushAll(ctx).Err(), false},
	} {
		refused := c.err != nil && strings.Contains(c.err.Error(), "NOPERM")
		if c.may && c.err != nil || !c.may && !refused {
			t.Errorf("%s: %v", c.what, c.err)
		}
	}
}
