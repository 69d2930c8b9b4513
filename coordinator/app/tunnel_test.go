package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/wire"
	"girassol.dev/internal/wire/wireguard"
)

func newTunnelKey(t *testing.T) (file string, public wireguard.PublicKey) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "wg.key")
	public, err := wireguard.CreateKey(file, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return file, public
}

func writePeers(t *testing.T, path string, peers ...wireguard.Peer) {
	t.Helper()
	b, err := wireguard.FormatPeers(peers)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// spoke dials a coordinator's tunnel with a site's key.
func (r *running) spoke(t *testing.T, keyFile string) (*wireguard.Spoke, *grpc.ClientConn) {
	t.Helper()
	hub := r.p.tunnel.hub
	s, err := wireguard.NewSpoke(wireguard.SpokeConfig{KeyFile: keyFile, Hub: hub.PublicKey(), Endpoint: fmt.Sprintf("127.0.0.1:%d", hub.Port())})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	conn, err := wire.Dial("hub", wire.Options{Tunnel: func(ctx context.Context, _ string) (net.Conn, error) { return s.Dial(ctx, wireguard.FleetPort) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); cancel(); <-done })
	return s, conn
}

// hello opens a session and waits for the first answer.
func hello(ctx context.Context, conn *grpc.ClientConn, site string) error {
	s, err := coordinatorv1.NewFleetClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	err = s.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{Hello: &coordinatorv1.Hello{Federation: "lm", Site: site, Node: "n1"}}})
	if err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

func TestASiteComesThroughTheTunnelAsItselfAndNotAsAnAdmin(t *testing.T) {
	hubKey, _ := newTunnelKey(t)
	siteKey, sitePublic := newTunnelKey(t)
	peers := filepath.Join(t.TempDir(), "peers.yaml")
	writePeers(t, peers)
	behind, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	go func() {
		for {
			c, err := behind.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "+PONG\r\n")
			_ = c.Close()
		}
	}()
	r := runChanged(t, t.TempDir(), func(o *Options, text string) string {
		o.Tunnel = TunnelOptions{Listen: ":0", KeyFile: hubKey, PeersFile: peers, Redis: behind.Addr().String()}
		return strings.Replace(text, "  algorithm:", "  link: {mode: WireGuard}\n  algorithm:", 1)
	})
	// The file is read again when it changes.
	writePeers(t, peers, wireguard.Peer{Site: "lab", PublicKey: sitePublic})
	s, conn := r.spoke(t, siteKey)
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	if err := hello(ctx, conn, "quebec"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("lab's key speaks for quebec: %v", err)
	}
	if err := hello(ctx, conn, "lab"); err != nil {
		t.Fatal(err)
	}
	if _, err := coordinatorv1.NewAdminClient(conn).Status(ctx, &coordinatorv1.StatusRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a site's tunnel reaches the Admin service: %v", err)
	}
	st, err := r.p.engine.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l := &coordinatorv1.Link{}
	for _, site := range st.GetSites() {
		for _, m := range site.GetMembers() {
			l = m.GetLink()
		}
	}
	if l.GetMode() != string(v1alpha1.LinkWireGuard) || l.HandshakeAgeSeconds == nil || l.GetTunnelBytesSent() == 0 {
		t.Errorf("the member's link: %v", l)
	}
	if _, text := r.get(t, "/metrics"); !strings.Contains(text, `girassol_tunnel_handshake_age_seconds{federation="lm",site="lab"}`) {
		t.Error("no metric of the tunnel")
	}
	c, err := s.Dial(ctx, wireguard.RedisPort)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testWait))
	if b, err := io.ReadAll(c); err != nil || string(b) != "+PONG\r\n" {
		t.Errorf("Redis behind the tunnel says %q, %v", b, err)
	}
}

func TestEnrolledKeysAreKeptUntilTheirSiteIsForgotten(t *testing.T) {
	hubKey, hubPublic := newTunnelKey(t)
	_, first := newTunnelKey(t)
	_, second := newTunnelKey(t)
	dir := t.TempDir()
	open := func() *tunnel {
		d, err := parse([]byte(strings.Replace(processConfig, "  algorithm:", "  link: {mode: WireGuard, wireGuard: {endpoint: 'hub.example:51820', mtu: 1300}}\n  algorithm:", 1)), true)
		if err != nil {
			t.Fatal(err)
		}
		tn, err := newTunnel(d, Options{DataDir: dir, Tunnel: TunnelOptions{Listen: ":0", KeyFile: hubKey}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return tn
	}
	tn := open()
	for _, k := range []wireguard.PublicKey{first, second, second} {
		w, err := tn.Admit(k[:], "lab")
		if err != nil || string(w.PublicKey) != string(hubPublic[:]) || w.Endpoint != "hub.example:51820" || w.Port != wireguard.FleetPort {
			t.Fatalf("%v, %v", w, err)
		}
	}
	if _, err := tn.Admit(first[:], "quebec"); err == nil {
		t.Error("one key for two sites")
	}
	if _, err := tn.Admit(make([]byte, 32), "lab"); err == nil {
		t.Error("a key that is nobody's")
	}
	tn.close()
	tn = open()
	if n := len(tn.hub.Peers()); n != 2 {
		t.Errorf("%d keys after a restart, want 2: the old one goes on beside the new", n)
	}
	if err := tn.Forget("lab"); err != nil {
		t.Fatal(err)
	}
	tn.close()
	tn = open()
	defer tn.close()
	if n := len(tn.hub.Peers()); n != 0 {
		t.Errorf("%d keys of a site that was forgotten", n)
	}
}

// openTunnel opens one without a process around it; end closes it.
func openTunnel(t *testing.T, dir, hubKey, peersFile string) (_ *tunnel, end func()) {
	t.Helper()
	d, err := parse([]byte(processConfig), true)
	if err != nil {
		t.Fatal(err)
	}
	tn, err := newTunnel(d, Options{DataDir: dir, Tunnel: TunnelOptions{Listen: ":0", KeyFile: hubKey, PeersFile: peersFile}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return tn, tn.close
}

// sitesOf are the hub's peers.
func sitesOf(tn *tunnel) map[wireguard.PublicKey]string {
	out := map[wireguard.PublicKey]string{}
	for _, p := range tn.hub.Peers() {
		out[p.PublicKey] = p.Site
	}
	return out
}

func TestKeysOfRevokedCertificatesEndAndStayOut(t *testing.T) {
	hubKey, _ := newTunnelKey(t)
	_, first := newTunnelKey(t)
	_, second := newTunnelKey(t)
	dir := t.TempDir()
	tn, end := openTunnel(t, dir, hubKey, "")
	for _, k := range []wireguard.PublicKey{first, second} {
		if _, err := tn.Admit(k[:], "lab"); err != nil {
			t.Fatal(err)
		}
	}
	want := map[wireguard.PublicKey]string{second: "lab"}
	for range 2 { // again changes nothing
		if err := tn.End([][]byte{first[:], []byte("short")}); err != nil {
			t.Fatal(err)
		}
		if got := sitesOf(tn); !maps.Equal(got, want) {
			t.Errorf("%v come in, want %v", got, want)
		}
	}
	end()
	tn, end = openTunnel(t, dir, hubKey, "")
	defer end()
	if got := sitesOf(tn); !maps.Equal(got, want) {
		t.Errorf("%v come in after a restart, want %v", got, want)
	}
}

// Public keys are no secret: a site that enrols with another's must not keep a person
// from naming the owner, nor the coordinator from starting.
func TestThePeersFileCountsMoreThanWhatASiteSays(t *testing.T) {
	hubKey, _ := newTunnelKey(t)
	_, taken := newTunnelKey(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "peers.yaml")
	writePeers(t, file)
	tn, end := openTunnel(t, dir, hubKey, file)
	if _, err := tn.Admit(taken[:], "lab"); err != nil {
		t.Fatal(err)
	}
	end()
	writePeers(t, file, wireguard.Peer{Site: "quebec", PublicKey: taken})
	tn, end = openTunnel(t, dir, hubKey, file)
	defer end()
	if got := sitesOf(tn); got[taken] != "quebec" || len(got) != 1 {
		t.Errorf("the key speaks for %v, want quebec", got)
	}
	if _, err := tn.Admit(taken[:], "lab"); err == nil {
		t.Error("a site took a key of the peers file")
	}
}

func TestASiteCannotFillTheTunnelsTable(t *testing.T) {
	hubKey, _ := newTunnelKey(t)
	tn, end := openTunnel(t, t.TempDir(), hubKey, "")
	defer end()
	tn.enrolled["lab"] = nil
	for range maxSiteKeys {
		k, err := wireguard.NewPrivateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		tn.enrolled["lab"] = append(tn.enrolled["lab"], enrolledPeer{k.Public(), time.Now()})
	}
	oldest := tn.enrolled["lab"][maxSiteKeys-1].key
	_, fresh := newTunnelKey(t)
	if _, err := tn.Admit(fresh[:], "lab"); err != nil {
		t.Fatal(err)
	}
	got := sitesOf(tn)
	if len(got) != maxSiteKeys || got[fresh] != "lab" || got[oldest] != "" {
		t.Errorf("%d keys, the new one %q, the oldest %q", len(got), got[fresh], got[oldest])
	}
}

func TestTunnelFlagsThatCannotWorkAreRefusedWithTheWayOut(t *testing.T) {
	key, _ := newTunnelKey(t)
	bad := filepath.Join(t.TempDir(), "peers.yaml")
	if err := os.WriteFile(bad, []byte("peers: [{site: lab}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		spec string
		o    TunnelOptions
		says string
	}{
		"mode without flags": {"  link: {mode: WireGuard}\n", TunnelOptions{}, "--wireguard-listen"},
		"key without port":   {"", TunnelOptions{KeyFile: key}, "need --wireguard-listen"},
		"port without key":   {"", TunnelOptions{Listen: ":0"}, "girassol wireguard key"},
		"one address":        {"", TunnelOptions{Listen: "127.0.0.1:0", KeyFile: key}, "all addresses"},
		"no port":            {"", TunnelOptions{Listen: ":http", KeyFile: key}, "is no port"},
		"no key":             {"", TunnelOptions{Listen: ":0", KeyFile: key + "x"}, "girassol wireguard key"},
		"bad peers":          {"", TunnelOptions{Listen: ":0", KeyFile: key, PeersFile: bad}, "peers[0].publicKey"},
		"no peers":           {"", TunnelOptions{Listen: ":0", KeyFile: key, PeersFile: bad + "x"}, "--wireguard-peers"},
		"device":             {"", TunnelOptions{Listen: ":0", KeyFile: key, Device: "tap"}, "neither userspace nor kernel"},
		"MTU":                {"", TunnelOptions{Listen: ":0", KeyFile: key, MTU: 100}, "1280"},
	} {
		d, err := parse([]byte(strings.Replace(processConfig, "  algorithm:", tc.spec+"  algorithm:", 1)), true)
		if err != nil {
			t.Fatal(err)
		}
		tn, err := newTunnel(d, Options{DataDir: t.TempDir(), Tunnel: tc.o, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
		tn.close()
	}
}
