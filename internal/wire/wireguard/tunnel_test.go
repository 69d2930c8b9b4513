package wireguard

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"girassol.dev/internal/wire/wiretest"
)

const patience = 20 * time.Second

func newKey(t testing.TB) PrivateKey {
	t.Helper()
	k, err := NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func keyFile(t testing.TB) (string, PublicKey) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wireguard.key")
	k, err := CreateKey(path, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return path, k
}

func startHub(t testing.TB, c HubConfig, peers ...Peer) *Hub {
	t.Helper()
	if c.Key.key == nil {
		c.Key = newKey(t)
	}
	c.Log = testLog(t)
	h, err := NewHub(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	if err := h.SetPeers("test", peers); err != nil {
		t.Fatal(err)
	}
	return h
}

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

func startSpoke(t testing.TB, c SpokeConfig) *Spoke {
	t.Helper()
	c.Log = testLog(t)
	s, err := NewSpoke(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// serveSites answers each connection with the site it came from, then with what it
// hears.
func serveSites(t testing.TB, h *Hub) {
	t.Helper()
	l, err := h.Listen(FleetPort)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, c.(*Conn).Site()+"\n")
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// greeting dials the hub and reads the site that it takes this end for.
func greeting(t testing.TB, s *Spoke) (net.Conn, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.Dial(ctx, FleetPort)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	line := make([]byte, 0, 64)
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if b[0] == '\n' {
			return c, string(line)
		}
		line = append(line, b[0])
	}
}

// echo sends and reads back.
func echo(t testing.TB, c net.Conn, size int) {
	t.Helper()
	if err := tryEcho(c, size); err != nil {
		t.Fatal(err)
	}
}

func tryEcho(c net.Conn, size int) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	sent := bytes.Repeat([]byte("girassol"), size/8)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(c, got)
	if werr := <-failed; werr != nil {
		return werr
	}
	if err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return fmt.Errorf("other bytes came back")
	}
	return nil
}

func TestEachSiteIsKnownByItsKey(t *testing.T) {
	t.Parallel()
	porto, portoKey := keyFile(t)
	lisboa, lisboaKey := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", portoKey}, Peer{"lisboa", lisboaKey})
	serveSites(t, h)
	for name, file := range map[string]string{"porto": porto, "lisboa": lisboa} {
		s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: local(h.Port())})
		c, site := greeting(t, s)
		if site != name {
			t.Errorf("the hub takes %s for %s", name, site)
		}
		echo(t, c, 4<<20)
		if st := s.Status(); st.Handshake.IsZero() || st.Sent < 4<<20 || st.Received < 4<<20 {
			t.Errorf("status of %s: %+v", name, st)
		}
		if n := s.end.network.(*userspace).largest.Load(); n > DefaultMTU || n < DefaultMTU-60 {
			t.Errorf("the stack's largest packet has %d bytes, the MTU is %d", n, DefaultMTU)
		}
	}
	for _, p := range h.Peers() {
		if p.Handshake.IsZero() || p.Received < 4<<20 || p.Endpoint == "" {
			t.Errorf("the hub has seen of %s: %+v", p.Site, p)
		}
	}
}

func TestAnUnknownKeyGetsNoAnswerAndIsToldWhatMayBeWrong(t *testing.T) {
	t.Parallel()
	file, _ := keyFile(t)
	_, other := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", other})
	serveSites(t, h)
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: local(h.Port())})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := s.Dial(ctx, FleetPort)
	if err == nil || !strings.Contains(err.Error(), "the hub must know this key") {
		t.Fatalf("an unknown key dials: %v", err)
	}
	if st := s.Status(); st.Received != 0 {
		t.Errorf("the hub has sent %d bytes to an unknown key", st.Received)
	}
	// Told of the key, the hub answers without a restart.
	if err := h.SetPeers("test", []Peer{{"porto", s.PublicKey()}}); err != nil {
		t.Fatal(err)
	}
	if _, site := greeting(t, s); site != "porto" {
		t.Errorf("site %q", site)
	}
}

func TestAWrongHubKeyMakesNoTunnel(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", key})
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: newKey(t).Public(), Endpoint: local(h.Port())})
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := s.Dial(ctx, FleetPort); err == nil || !strings.Contains(err.Error(), "--wireguard-peer") {
		t.Fatalf("dialled a hub of another key: %v", err)
	}
}

func TestAPeerThatLeavesTheTableLosesItsConnectionAtOnce(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", key})
	serveSites(t, h)
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: local(h.Port())})
	c, _ := greeting(t, s)
	if err := h.SetPeers("test", nil); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	left := len(h.conns)
	h.mu.Unlock()
	if left != 0 {
		t.Errorf("%d connections are left", left)
	}
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("x")); err == nil {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes from a hub that has let go", n)
		}
	}
	// The same key for another site is another identity.
	if err := h.SetPeers("test", []Peer{{"lisboa", key}}); err != nil {
		t.Fatal(err)
	}
	if _, site := greeting(t, s); site != "lisboa" {
		t.Errorf("site %q", site)
	}
}

func TestTheNextKeyTakesOverWhenItHasShakenHands(t *testing.T) {
	t.Parallel()
	file, old := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", old})
	serveSites(t, h)
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: local(h.Port())})
	c, _ := greeting(t, s)
	next, err := CreateKey(NextKeyFile(file), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// The hub does not know it yet: the old one goes on.
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if err := s.Rotate(ctx, NextKeyFile(file)); err == nil || !strings.Contains(err.Error(), next.String()) {
		t.Fatalf("went over to a key that the hub does not know: %v", err)
	}
	echo(t, c, 1<<16)
	if err := h.SetPeers("test", []Peer{{"porto", old}, {"porto", next}}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience + rotateTimeout)
	for s.PublicKey() != next {
		if time.Now().After(deadline) {
			t.Fatal("the next key has not taken over")
		}
		pause(context.Background(), 20*time.Millisecond)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the old key's connection goes on")
	}
	if _, site := greeting(t, s); site != "porto" {
		t.Errorf("site %q", site)
	}
	// After a restart it is the key.
	if k, err := LoadKey(file); err != nil || k.Public() != next {
		t.Errorf("key file: %v, %v", k.Public(), err)
	}
	if _, err := os.Stat(NextKeyFile(file)); !os.IsNotExist(err) {
		t.Errorf("the next key is still there: %v", err)
	}
	if err := h.SetPeers("test", []Peer{{"porto", next}}); err != nil {
		t.Fatal(err)
	}
	greeting(t, s)
}

func TestATransferSurvivesDelayLossAndReordering(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", key})
	serveSites(t, h)
	r := wiretest.NewRelay(t, "127.0.0.1:0", local(h.Port()), wiretest.Path{Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.02})
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: r.Addr()})
	c, _ := greeting(t, s)
	echo(t, c, 512<<10)
}

func TestASiteMayMoveWhileItTalks(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", key})
	serveSites(t, h)
	r := wiretest.NewRelay(t, "127.0.0.1:0", local(h.Port()), wiretest.Path{})
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: r.Addr()})
	c, _ := greeting(t, s)
	echo(t, c, 1<<16)
	before := h.peer(key).Endpoint
	r.Roam()
	echo(t, c, 1<<16) // the same connection
	deadline := time.Now().Add(patience)
	for h.peer(key).Endpoint == before {
		if time.Now().After(deadline) {
			t.Fatalf("the hub still has the site at %s", before)
		}
		pause(context.Background(), 50*time.Millisecond)
	}
}

func TestAReplayedHandshakeMovesNobody(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", key})
	serveSites(t, h)
	r := wiretest.NewRelay(t, "127.0.0.1:0", local(h.Port()), wiretest.Path{})
	recorded := make(chan []byte, 1)
	r.OnUp(func(b []byte) {
		if len(b) == 148 && b[0] == 1 { // handshake initiation
			select {
			case recorded <- bytes.Clone(b):
			default:
			}
		}
	})
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: r.Addr()})
	c, _ := greeting(t, s)
	before := h.peer(key)
	attacker, err := net.Dial("udp", local(h.Port()))
	if err != nil {
		t.Fatal(err)
	}
	defer attacker.Close()
	initiation := <-recorded
	for range 5 {
		if _, err := attacker.Write(initiation); err != nil {
			t.Fatal(err)
		}
	}
	_ = attacker.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	if n, err := attacker.Read(make([]byte, 2048)); err == nil {
		t.Errorf("the hub answers a replayed handshake with %d bytes", n)
	}
	echo(t, c, 1<<16)
	pause(context.Background(), freshness)
	if after := h.peer(key); after.Endpoint != before.Endpoint || !after.Handshake.Equal(before.Handshake) {
		t.Errorf("a replayed handshake changed %+v to %+v", before, after)
	}
}

func TestAPathThatSwallowsFullPacketsLowersTheMTU(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", key})
	serveSites(t, h)
	// 1400 bytes on IPv4: 1372 of UDP payload, of which WireGuard takes 32.
	r := wiretest.NewRelay(t, "127.0.0.1:0", local(h.Port()), wiretest.Path{MTU: 1372})
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: r.Addr()})
	c, _ := greeting(t, s)
	echo(t, c, 1<<20)
	if s.MTU() != 1328 {
		t.Errorf("MTU %d, want 1328", s.MTU())
	}
	if _, longest := r.Passed(); longest > 1452 {
		t.Errorf("a packet of %d bytes, at an MTU of %d", longest, DefaultMTU)
	}
}

func TestAHubThatRestartsIsFoundAgain(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	hubKey := newKey(t)
	first := startHub(t, HubConfig{Key: hubKey}, Peer{"porto", key})
	serveSites(t, first)
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: first.PublicKey(), Endpoint: local(first.Port())})
	c, _ := greeting(t, s)
	port := first.Port()
	_ = first.Close()
	second := startHub(t, HubConfig{Key: hubKey, Port: uint16(port)}, Peer{"porto", key})
	serveSites(t, second)
	// The old connection ends, and a new one goes through within WireGuard's own
	// time of 15 seconds.
	if err := tryEcho(c, 1<<10); err == nil {
		t.Error("the connection has survived its hub")
	}
	_ = c.Close()
	deadline := time.Now().Add(2 * patience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		c, err := s.Dial(ctx, FleetPort)
		cancel()
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
