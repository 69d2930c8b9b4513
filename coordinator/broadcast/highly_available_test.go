package broadcast

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"girassol.dev/internal/redislink"
)

// haTimeout bounds each wait for servers that find each other.
const haTimeout = 60 * time.Second

// node runs redis-server with args until the test ends, and returns its address and
// what kills it before.
func node(t *testing.T, args ...string) (addr string, kill func()) {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("no redis-server in PATH: install it to run this test against the real thing")
	}
	addr = unused(t)
	_, port, _ := net.SplitHostPort(addr)
	dir := t.TempDir()
	if args[0] == "--sentinel" {
		// A Sentinel wants a file that it can write its state to.
		file := filepath.Join(dir, "sentinel.conf")
		if err := os.WriteFile(file, []byte("port "+port+"\nbind 127.0.0.1\ndir "+dir+"\n"+args[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		args = []string{file, "--sentinel"}
	} else {
		args = append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir}, args...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout = io.Discard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cancel()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer c.Close()
	await(t, addr+" answers", func(ctx context.Context) bool { return c.Ping(ctx).Err() == nil })
	return addr, kill
}

func await(t *testing.T, what string, ok func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), haTimeout)
	defer cancel()
	for !ok(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("within %s never: %s", haTimeout, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func connect(t *testing.T, o redislink.Options) redis.UniversalClient {
	t.Helper()
	o.DialTimeout = 2 * time.Second
	c, err := redislink.Connect(o, discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestEventsGoOnAfterASentinelsFailover(t *testing.T) {
	master, kill := node(t, "--repl-diskless-sync-delay", "0")
	host, port, _ := net.SplitHostPort(master)
	replica, _ := node(t, "--replicaof", host+" "+port)
	sentinel, _ := node(t, "--sentinel", fmt.Sprintf("sentinel monitor girassol %s %s 1\nsentinel down-after-milliseconds girassol 500\nsentinel failover-timeout girassol 3000\n", host, port))
	watch := redis.NewClient(&redis.Options{Addr: replica, MaxRetries: -1})
	defer watch.Close()
	await(t, "the replica follows", func(ctx context.Context) bool {
		s, _ := watch.Info(ctx, "replication").Result()
		return strings.Contains(s, "master_link_status:up")
	})
	s := redis.NewSentinelClient(&redis.Options{Addr: sentinel, MaxRetries: -1})
	defer s.Close()
	await(t, "the Sentinel knows the replica", func(ctx context.Context) bool {
		m, err := s.Replicas(ctx, "girassol").Result()
		return err == nil && len(m) == 1 && m[0]["master-link-status"] == "ok"
	})
	o := redislink.Options{Addresses: []string{sentinel}, MasterName: "girassol"}
	p := publisher(t, connect(t, o), 1)
	r := newReader(t, connect(t, o))
	for v := range uint64(5) {
		p.Publish(committed(v))
	}
	r.wantVersions(0, 4)
	kill()
	for v := uint64(5); v < 10; v++ {
		p.Publish(committed(v))
	}
	r.wantVersions(5, 9)
	if addr, err := s.GetMasterAddrByName(t.Context(), "girassol").Result(); err != nil || net.JoinHostPort(addr[0], addr[1]) != replica {
		t.Errorf("the master is %v, %v: nothing failed over", addr, err)
	}
}

func TestEventsGoThroughACluster(t *testing.T) {
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("no redis-cli in PATH: install it to run this test against a real Cluster")
	}
	var nodes []string
	for range 3 {
		_, bus, _ := net.SplitHostPort(unused(t))
		addr, _ := node(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000")
		nodes = append(nodes, addr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), haTimeout)
	defer cancel()
	args := append([]string{"--cluster", "create"}, nodes...)
	if out, err := exec.CommandContext(ctx, cli, append(args, "--cluster-yes")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, n := range nodes {
		c := redis.NewClient(&redis.Options{Addr: n, MaxRetries: -1})
		await(t, n+" has the whole Cluster", func(ctx context.Context) bool {
			s, _ := c.ClusterInfo(ctx).Result()
			return strings.Contains(s, "cluster_state:ok")
		})
		_ = c.Close()
	}
	// As the users that the ACL makes, from one node each: the rest is found out.
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("of a test"), 0o600); err != nil {
		t.Fatal(err)
	}
	hash, err := redislink.PasswordHash([]byte("of a test"))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := redislink.ACL("demo", hash, hash)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		c := redis.NewClient(&redis.Options{Addr: n, MaxRetries: -1})
		for line := range strings.Lines(lines) {
			var words []any
			for _, w := range strings.Fields(line) {
				words = append(words, w)
			}
			if err := c.Do(ctx, words...).Err(); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		_ = c.Close()
	}
	for i, n := range nodes {
		as := func(who string) redis.UniversalClient {
			return connect(t, redislink.Options{Addresses: []string{n}, Username: redislink.User("demo", who), PasswordFile: password})
		}
		p, agent := publisher(t, as("coordinator"), uint64(i+1)), as("agents")
		sub := agent.Subscribe(ctx, "girassol:demo:events")
		if _, err := sub.ReceiveTimeout(ctx, haTimeout); err != nil {
			t.Fatal(err)
		}
		r := newReader(t, agent)
		r.term = uint64(i)
		r.sequence = 1 << 60 // all of the terms before
		for v := range uint64(5) {
			p.Publish(committed(v))
		}
		r.wantVersions(0, 4)
		if m, err := sub.ReceiveTimeout(ctx, haTimeout); err != nil {
			t.Errorf("no wake-up: %v, %v", m, err)
		}
		_ = sub.Close()
		if err := closeWithin(t, p, haTimeout); err != nil {
			t.Error(err)
		}
	}
}
