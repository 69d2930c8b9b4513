package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/enrol"
	"girassol.dev/internal/wire"
	"girassol.dev/internal/wire/wireguard"
)

// TunnelOptions of the coordinator's end, the hub that sites dial.
type TunnelOptions struct {
	// Listen is a UDP port, ":51820"; empty: no tunnel.
	Listen string
	// KeyFile with the hub's key, PeersFile with the sites' public keys.
	KeyFile, PeersFile string
	Device             string
	MTU                int
	// Redis is where connections to Redis's port inside the tunnel go; empty: nowhere.
	Redis string
}

func (o *TunnelOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.Listen, "wireguard-listen", "", "UDP `port` for sites' WireGuard tunnels on all addresses, such as :51820 (default: no tunnel)")
	f.StringVar(&o.KeyFile, "wireguard-key", "", "`file` with the tunnel's private key; girassol wireguard key FILE makes one")
	f.StringVar(&o.PeersFile, "wireguard-peers", "", "YAML `file` with the sites' public keys, {peers: [{site, publicKey}]}; read again when it changes")
	f.StringVar(&o.Device, "wireguard-device", "", "`device` on which the tunnel ends: userspace, or kernel, which needs NET_ADMIN (default spec.link.wireGuard.device, userspace)")
	f.IntVar(&o.MTU, "wireguard-mtu", 0, "most `bytes` of a packet inside the tunnel (default spec.link.wireGuard.mtu, 1420)")
	f.StringVar(&o.Redis, "wireguard-redis", "", "`address` of the Redis that sites reach through the tunnel at the hub's port 6379 (default none)")
}

// tunnelOptions are the flags over what spec.link says.
func (d *declaration) tunnelOptions(o TunnelOptions) (TunnelOptions, error) {
	link := d.federation.Spec.Link
	if o.Listen == "" {
		if link.Mode == v1alpha1.LinkWireGuard {
			return o, errors.New("spec.link.mode: WireGuard needs --wireguard-listen and --wireguard-key")
		}
		if (o != TunnelOptions{}) {
			return o, errors.New("--wireguard-key, --wireguard-peers, --wireguard-device, --wireguard-mtu and --wireguard-redis need --wireguard-listen")
		}
		return o, nil
	}
	if o.KeyFile == "" {
		return o, errors.New("--wireguard-listen needs --wireguard-key: girassol wireguard key FILE makes one")
	}
	if w := link.WireGuard; w != nil {
		if o.Device == "" && w.Device == v1alpha1.TunnelKernel {
			o.Device = string(wireguard.Kernel)
		}
		if o.MTU == 0 {
			o.MTU = int(w.MTU)
		}
	}
	return o, nil
}

// tunnel is the hub with its listeners.
type tunnel struct {
	hub      *wireguard.Hub
	fleet    net.Listener
	redis    net.Listener // nil without
	redisTo  string
	endpoint string
	log      *slog.Logger

	mu    sync.Mutex
	file  string
	bytes string // of the file as read last
	// enrolled are the keys that sites have brought with their certificates' requests,
	// and when.
	enrolled map[string][]enrolledPeer
	store    string
}

type enrolledPeer struct {
	key   wireguard.PublicKey
	since time.Time
}

// newTunnel opens the hub; nil without one.
func newTunnel(d *declaration, o Options) (_ *tunnel, err error) {
	to, err := d.tunnelOptions(o.Tunnel)
	if err != nil || to.Listen == "" {
		return nil, err
	}
	host, port, err := net.SplitHostPort(to.Listen)
	if err != nil || host != "" {
		return nil, fmt.Errorf("--wireguard-listen: %q is not of the form :PORT; the tunnel listens on all addresses", to.Listen)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("--wireguard-listen: %q is no port", port)
	}
	key, err := wireguard.LoadKey(to.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("--wireguard-key: %w", err)
	}
	t := &tunnel{log: o.Log, file: to.PeersFile, redisTo: to.Redis, enrolled: map[string][]enrolledPeer{}, store: filepath.Join(o.DataDir, "wireguard-peers.yaml")}
	if w := d.federation.Spec.Link.WireGuard; w != nil {
		t.endpoint = w.Endpoint
	}
	t.hub, err = wireguard.NewHub(wireguard.HubConfig{Key: key, Port: uint16(number), MTU: to.MTU, Device: wireguard.Device(to.Device), Log: o.Log})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if err = t.restore(); err != nil {
		return nil, err
	}
	if _, err = t.reload(); err != nil {
		return nil, fmt.Errorf("--wireguard-peers: %w", err)
	}
	fleet, err := t.hub.Listen(wireguard.FleetPort)
	if err != nil {
		return nil, err
	}
	t.fleet = wire.ListenTunnel(fleet, d.federation.Name, o.Link)
	if t.redisTo != "" {
		if t.redis, err = t.hub.Listen(wireguard.RedisPort); err != nil {
			return nil, err
		}
	}
	o.Log.Info("tunnel is open", "udpPort", t.hub.Port(), "publicKey", t.hub.PublicKey(), "address", t.hub.Address())
	return t, nil
}

func (t *tunnel) close() {
	if t == nil {
		return
	}
	for _, l := range []net.Listener{t.fleet, t.redis} {
		if l != nil {
			_ = l.Close()
		}
	}
	_ = t.hub.Close()
}

// The sources of peers.
const (
	peersOfFile      = "the peers file"
	peersOfEnrolment = "enrolment"
)

// reload reads the peers file if it has changed.
func (t *tunnel) reload() (changed bool, err error) {
	if t.file == "" {
		return false, nil
	}
	b, err := os.ReadFile(t.file)
	if err != nil {
		return false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes == string(b) {
		return false, nil
	}
	t.bytes = string(b)
	peers, err := wireguard.ParsePeers(b)
	if err != nil {
		return false, fmt.Errorf("%s: %w", t.file, err)
	}
	if err := t.yield(peers); err != nil {
		return false, err
	}
	return true, t.hub.SetPeers(peersOfFile, peers)
}

// yield takes keys from sites that have enrolled with them where the peers file gives
// them to another: a person has written it. mu is held.
func (t *tunnel) yield(file []wireguard.Peer) error {
	owner := map[wireguard.PublicKey]string{}
	for _, p := range file {
		owner[p.PublicKey] = p.Site
	}
	return t.drop(func(site string, key wireguard.PublicKey) bool {
		other, ok := owner[key]
		if !ok || other == site {
			return false
		}
		t.log.Warn("the peers file gives a key to another site than the one that enrolled with it; the file counts", "publicKey", key, "file", t.file, "site", other, "enrolledAs", site)
		return true
	})
}

// reloadEvery is how often the peers file is looked at.
const reloadEvery = 2 * time.Second

// serve serves the sites that come through the tunnel until the server stops.
func (t *tunnel) serve(ctx context.Context, wg *sync.WaitGroup, s *grpc.Server, failed chan<- error) {
	if t == nil {
		return
	}
	wg.Go(func() { t.run(ctx) })
	wg.Go(func() {
		if err := s.Serve(t.fleet); err != nil {
			failed <- fmt.Errorf("gRPC server in the tunnel: %w", err)
		}
	})
}

// run keeps the peers up to date, and hands Redis on.
func (t *tunnel) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	if t.redis != nil {
		group.Go(func() { t.forward(ctx) })
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	failing := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := t.reload()
		switch {
		case err != nil && err.Error() != failing:
			failing = err.Error()
			t.log.Error("the tunnel's peers stay as they were", "error", err)
		case changed:
			failing = ""
			t.log.Info("the tunnel's peers were read again", "file", t.file)
		}
	}
}

// forward hands connections to Redis's port inside the tunnel on to Redis.
func (t *tunnel) forward(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	stop := context.AfterFunc(ctx, func() { _ = t.redis.Close() })
	defer stop()
	for {
		in, err := t.redis.Accept()
		if err != nil {
			return
		}
		group.Go(func() { t.handOn(ctx, in) })
	}
}

func (t *tunnel) handOn(ctx context.Context, in net.Conn) {
	defer in.Close()
	d := net.Dialer{Timeout: 5 * time.Second}
	out, err := d.DialContext(ctx, "tcp", t.redisTo)
	if err != nil {
		t.log.Warn("Redis is out of reach for the tunnel's sites", "address", t.redisTo, "error", err)
		return
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
	_ = in.Close()
	<-done
}

// staleKey is the silence after which a site's older enrolled key makes room for a
// new one: agents renew long before it.
const staleKey = 14 * 24 * time.Hour

// maxSiteKeys bounds the enrolled keys of one site, so that it cannot fill the hub's
// table; the oldest make room.
const maxSiteKeys = 256

// Admit takes the key of a site that has proven itself by a token or a certificate;
// it is kept over restarts. The keys that the site had go on: each of its nodes has
// one, and a node that changes its key needs the old until the new has shaken hands.
// Those that have been silent for two weeks end.
func (t *tunnel) Admit(publicKey []byte, site string) (*enrol.WireGuard, error) {
	key, err := wireguard.NewPublicKey(publicKey)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	heard := map[wireguard.PublicKey]time.Time{}
	for _, p := range t.hub.Peers() {
		heard[p.PublicKey] = p.Handshake
	}
	keep := []enrolledPeer{{key, now}}
	for _, p := range t.enrolled[site] { // the newest first
		if len(keep) < maxSiteKeys && p.key != key && (now.Sub(p.since) < staleKey || now.Sub(heard[p.key]) < staleKey) {
			keep = append(keep, p)
		}
	}
	before := t.enrolled[site]
	t.enrolled[site] = keep
	err = t.hub.SetPeers(peersOfEnrolment, t.enrolledPeers())
	if err == nil {
		err = t.keep()
	}
	if err != nil {
		t.enrolled[site] = before
		return nil, errors.Join(err, t.hub.SetPeers(peersOfEnrolment, t.enrolledPeers()))
	}
	hub := t.hub.PublicKey()
	return &enrol.WireGuard{PublicKey: hub[:], Endpoint: t.endpoint, Port: wireguard.FleetPort}, nil
}

// End ends what these keys may do, as far as sites have enrolled with them.
func (t *tunnel) End(keys [][]byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := map[string]bool{}
	for _, k := range keys {
		ended[string(k)] = true
	}
	return t.drop(func(site string, key wireguard.PublicKey) bool {
		if ended[string(key[:])] {
			t.log.Warn("a tunnel's key ends with its certificate", "site", site, "publicKey", key, "reason", v1alpha1.ReasonCertificateRevoked)
		}
		return ended[string(key[:])]
	})
}

// drop takes out the enrolled keys that goes says; mu is held.
func (t *tunnel) drop(goes func(site string, key wireguard.PublicKey) bool) error {
	dropped := false
	for site, keys := range t.enrolled {
		var keep []enrolledPeer
		for _, k := range keys {
			if !goes(site, k.key) {
				keep = append(keep, k)
			}
		}
		dropped = dropped || len(keep) < len(keys)
		t.enrolled[site] = keep
	}
	if !dropped {
		return nil
	}
	return errors.Join(t.hub.SetPeers(peersOfEnrolment, t.enrolledPeers()), t.keep())
}

// Forget ends what a site's enrolled keys may do, and its connections. Keys in the
// peers file are whose file it is.
func (t *tunnel) Forget(site string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.enrolled, site)
	err := errors.Join(t.hub.SetPeers(peersOfEnrolment, t.enrolledPeers()), t.keep())
	for _, p := range t.hub.Peers() {
		if p.Site == site {
			t.log.Warn("a revoked site still comes in by a key of the peers file: take it out there", "site", site, "publicKey", p.PublicKey, "file", t.file)
		}
	}
	return err
}

func (t *tunnel) enrolledPeers() (out []wireguard.Peer) {
	for site, keys := range t.enrolled {
		for _, k := range keys {
			out = append(out, wireguard.Peer{Site: site, PublicKey: k.key})
		}
	}
	return out
}

// keep writes the enrolled keys; mu is held.
func (t *tunnel) keep() error {
	b, err := wireguard.FormatPeers(t.enrolledPeers())
	if err != nil {
		return err
	}
	if err := replaceFile(t.store, b, 0o600); err != nil {
		return fmt.Errorf("wireguard: enrolled keys: %w", err)
	}
	return nil
}

// restore reads the enrolled keys.
func (t *tunnel) restore() error {
	peers, err := wireguard.ReadPeers(t.store)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range peers {
		t.enrolled[p.Site] = append(t.enrolled[p.Site], enrolledPeer{p.PublicKey, time.Now()})
	}
	return t.hub.SetPeers(peersOfEnrolment, peers)
}
