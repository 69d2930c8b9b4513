package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/enrol"
	"girassol.dev/internal/redislink"
	"girassol.dev/internal/wire/wireguard"
	"girassol.dev/siteagent/identity"
)

// hub is a coordinator's tunnel that knows a key.
func hub(t *testing.T, key wireguard.PublicKey) *wireguard.Hub {
	t.Helper()
	own, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	h, err := wireguard.NewHub(wireguard.HubConfig{Key: own})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	if err := h.SetPeers("test", []wireguard.Peer{{Site: "porto", PublicKey: key}}); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestAnEnrolledAgentNeedsNoWordOfTheHubAndReachesRedisThroughIt(t *testing.T) {
	data, log := t.TempDir(), slog.New(slog.DiscardHandler)
	o := tunnelOptions{keyFile: filepath.Join(data, "wg.key"), device: "userspace", redis: true}
	if _, err := o.open(data, log); err == nil {
		t.Error("a tunnel to nobody")
	}
	key, err := o.key(log) // made by the call before
	if err != nil {
		t.Fatal(err)
	}
	h := hub(t, key)
	public := h.PublicKey()
	if err := learn(data, &enrol.WireGuard{PublicKey: public[:], Endpoint: fmt.Sprintf("127.0.0.1:%d", h.Port()), Port: wireguard.FleetPort}); err != nil {
		t.Fatal(err)
	}
	// A renewal that does not name the endpoint leaves it.
	if err := learn(data, &enrol.WireGuard{PublicKey: public[:], Port: wireguard.FleetPort}); err != nil {
		t.Fatal(err)
	}
	l, err := h.Listen(wireguard.RedisPort)
	if err != nil {
		t.Fatal(err)
	}
	behind := miniredis.RunT(t)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", behind.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			served.Go(func() { _, _ = io.Copy(out, c); _ = out.Close() })
			served.Go(func() { _, _ = io.Copy(c, out); _ = c.Close() })
		}
	})
	tn, err := o.open(data, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); _ = tn.Run(ctx) }()
	client, err := connectRedis(redislink.Options{URL: "redis://nowhere.invalid:1/0"}, tn.redisDialer(true), log)
	if err != nil {
		t.Fatal(err)
	}
	limit, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for err = client.Ping(limit).Err(); err != nil && limit.Err() == nil; {
		err = client.Ping(limit).Err()
	}
	if err != nil {
		t.Errorf("Redis through the tunnel: %v", err)
	}
	if f := tn.facts(false); f.GetMode() != "WireGuard" || f.HandshakeAgeSeconds == nil {
		t.Errorf("heartbeats say %v", f)
	}
	_ = client.Close()
	_ = l.Close()
	served.Wait()
	stop()
	<-ran
}

func TestARenewalBringsANewKeyThatTakesOverOnceTheCoordinatorKnowsIt(t *testing.T) {
	data, log := t.TempDir(), slog.New(slog.DiscardHandler)
	o := tunnelOptions{keyFile: filepath.Join(data, "wg.key")}
	first, err := o.key(log)
	if err != nil {
		t.Fatal(err)
	}
	var r identity.Renewal
	o.renew(&r, data, log)
	next := r.WireGuardPublicKey()
	if string(next) == string(first[:]) || len(next) != wireguard.KeySize {
		t.Fatalf("the renewal brings %x", next)
	}
	// Tried again, it is the same key: the coordinator may have taken the first.
	if again := r.WireGuardPublicKey(); string(again) != string(next) {
		t.Error("each try brings another key")
	}
	if _, err := os.Stat(wireguard.NextKeyFile(o.keyFile)); !os.IsNotExist(err) {
		t.Errorf("the key is offered to the tunnel before the coordinator knows it: %v", err)
	}
	hub, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := hub.Public()
	r.WireGuard(&coordinatorv1.WireGuardPeer{PublicKey: public[:], Endpoint: "hub:1", Port: 7})
	if k, err := wireguard.LoadKey(wireguard.NextKeyFile(o.keyFile)); err != nil || k.Public() != wireguard.PublicKey(next) {
		t.Errorf("the next key: %v", err)
	}
}
