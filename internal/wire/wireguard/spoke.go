package wireguard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// SpokeConfig of a Spoke.
type SpokeConfig struct {
	// KeyFile with the site's key; see LoadKey. KeyFile+".next", when it appears,
	// takes its place.
	KeyFile string
	// Hub's public key, and where it is reached by UDP, "host:port".
	Hub      PublicKey
	Endpoint string
	// MTU inside the tunnel at most; 0 is DefaultMTU.
	MTU int
	// Device; "" is Userspace.
	Device Device
	// Bind makes sockets instead of UDP's, for tests; nil without.
	Bind func() conn.Bind
	Log  *slog.Logger
}

// Spoke is a site's end: it dials the hub and keeps the way open.
type Spoke struct {
	c   SpokeConfig
	log *slog.Logger

	mu    sync.Mutex
	end   *end
	mtu   int
	conns map[net.Conn]*end
	// dialled is what Endpoint's host was resolved to last.
	dialled string
	// ready is closed once a full packet has come through.
	ready chan struct{}
	once  sync.Once
}

// nextSuffix of the key that takes a key file's place.
const nextSuffix = ".next"

// NextKeyFile is where the key lies that shall take the place of path's.
func NextKeyFile(path string) string { return path + nextSuffix }

// NewSpoke opens this end. The hub is looked for by Run.
func NewSpoke(c SpokeConfig) (*Spoke, error) {
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.Device == "" {
		c.Device = Userspace
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if host, port, err := net.SplitHostPort(c.Endpoint); err != nil || host == "" || port == "" {
		return nil, fmt.Errorf("wireguard: the hub's endpoint %q is not host:port", c.Endpoint)
	}
	key, err := LoadKey(c.KeyFile)
	if err != nil {
		return nil, err
	}
	if key.Public() == c.Hub {
		return nil, fmt.Errorf("wireguard: %s is the hub's own key; each end has one of its own", c.KeyFile)
	}
	s := &Spoke{c: c, log: c.Log, mtu: c.MTU, conns: map[net.Conn]*end{}, ready: make(chan struct{})}
	if s.end, err = s.open(key, c.MTU); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Spoke) open(key PrivateKey, mtu int) (*end, error) {
	c := endConfig{key: key, mtu: mtu, device: s.c.Device, log: s.log}
	if s.c.Bind != nil {
		c.bind = s.c.Bind()
	}
	return newEnd(c)
}

// PublicKey of this end, which the hub has to know.
func (s *Spoke) PublicKey() PublicKey { return s.now().key.Public() }

// HubAddress is the hub's inside the tunnel.
func (s *Spoke) HubAddress() netip.Addr { return Address(s.c.Hub) }

// MTU that came through.
func (s *Spoke) MTU() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mtu
}

func (s *Spoke) now() *end {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Status is the hub as this end sees it.
func (s *Spoke) Status() PeerStatus { return hubStatus(s.now()) }

func hubStatus(e *end) PeerStatus {
	peers, _, err := e.peers()
	if err != nil || len(peers) != 1 {
		return PeerStatus{}
	}
	return peers[0]
}

// Dial opens a TCP connection to a port of the hub, once the tunnel is up.
func (s *Spoke) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil, s.silent(ctx.Err())
	}
	e := s.now()
	c, err := e.network.dial(ctx, netip.AddrPortFrom(s.HubAddress(), port))
	if err != nil {
		if hubStatus(e).Handshake.IsZero() {
			return nil, s.silent(err)
		}
		return nil, fmt.Errorf("wireguard: port %d of the hub, inside the tunnel: %w", port, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	spoken := &spokeConn{c, s}
	s.conns[spoken] = e
	return spoken, nil
}

func (s *Spoke) silent(err error) error {
	return fmt.Errorf("wireguard: no answer from the hub at %s (UDP) to key %s: the hub must know this key (its peers file), --wireguard-peer must be the hub's, and UDP must get there: %w",
		s.c.Endpoint, s.PublicKey(), err)
}

// spokeConn leaves the spoke's list when it is closed.
type spokeConn struct {
	net.Conn
	spoke *Spoke
}

func (c *spokeConn) Close() error {
	c.spoke.mu.Lock()
	delete(c.spoke.conns, c)
	c.spoke.mu.Unlock()
	return c.Conn.Close()
}

const (
	// lookEvery is how often a spoke looks after its hub, and hurry how often until
	// the tunnel is up.
	lookEvery = time.Second
	hurry     = 50 * time.Millisecond
	// silence after which the hub's name is resolved again: a handshake is due each
	// two minutes, and a lost one is tried again for a minute and a half.
	silence = 200 * time.Second
	// first is that silence before the first handshake.
	first = 10 * time.Second
	// probeEvery is how often a full packet is sent to see whether it gets through.
	probeEvery = time.Minute
)

// Run keeps the tunnel until ctx ends, and closes it: it finds the hub, again when
// it has moved, sees which packets get through, and goes over to the next key.
func (s *Spoke) Run(ctx context.Context) error {
	defer s.Close()
	var resolved, probed time.Time
	began := time.Now()
	warned := false
	for {
		now := time.Now()
		st := s.Status()
		quiet := st.Handshake.IsZero() || now.Sub(st.Handshake) > silence
		if resolved.IsZero() || quiet && now.Sub(resolved) > first {
			resolved = now
			if err := s.resolve(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("the hub's endpoint is not known", "endpoint", s.c.Endpoint, "error", err)
			}
		}
		if quiet && !warned && now.Sub(began) > first {
			warned = true
			s.log.Warn("tunnel is silent", "error", s.silent(context.DeadlineExceeded))
		}
		if !quiet && warned {
			warned = false
			s.log.Info("tunnel is up", "endpoint", st.Endpoint)
		}
		if !st.Handshake.IsZero() && !quiet && now.Sub(probed) > probeEvery {
			if s.probe(ctx) {
				probed = now
			}
		}
		s.rotateIfDue(ctx)
		every := lookEvery
		if probed.IsZero() {
			every = hurry
		}
		if !pause(ctx, every) {
			return nil
		}
	}
}

// Close ends the tunnel and its connections; Run does so when it ends.
func (s *Spoke) Close() {
	s.mu.Lock()
	conns := s.takeConns(s.end)
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	s.now().close()
}

// takeConns are the connections of an end, which leave the list; mu is held.
func (s *Spoke) takeConns(e *end) (out []net.Conn) {
	for c, of := range s.conns {
		if of == e {
			delete(s.conns, c)
			out = append(out, c)
		}
	}
	return out
}

// resolve asks where the hub is and tells the device if that is news.
func (s *Spoke) resolve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, first)
	defer cancel()
	host, port, err := net.SplitHostPort(s.c.Endpoint)
	if err != nil {
		return err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return err
	}
	var known []string
	for _, a := range addrs {
		known = append(known, netip.AddrPortFrom(a.Unmap(), uint16(number)).String())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A hub that does not answer at one of its addresses may at the next.
	next := known[0]
	for i, a := range known {
		if a == s.dialled {
			next = known[(i+1)%len(known)]
		}
	}
	if next == s.dialled {
		return nil
	}
	s.dialled = next
	return s.end.setPeer(s.c.Hub, next, Keepalive)
}

// probeSizes of packets in bytes, below from; the largest that gets through is the
// MTU. WireGuard pads to multiples of 16.
func probeSizes(from int) (out []int) {
	for _, size := range []int{8912, 4080, 1408, 1392, 1376, 1360, 1344, 1328, 1312, 1296, LeastMTU} {
		if size < from {
			out = append(out, size)
		}
	}
	return out
}

const (
	echoTries   = 3
	echoTimeout = time.Second
	// smallPacket gets through every path.
	smallPacket = 96
)

// probe lowers the MTU to what gets through, if small packets do and full ones do
// not. Connections that have agreed on larger ones are closed: their next full
// packet would be their last. It says whether it has found out: a path that was
// silent meanwhile is asked again soon, because nothing is dialled before.
func (s *Spoke) probe(ctx context.Context) bool {
	e := s.now()
	n, ok := e.network.(*userspace)
	if !ok {
		s.once.Do(func() { close(s.ready) })
		return true
	}
	mtu := s.MTU()
	size := 0
	for range echoTries {
		if size = s.through(ctx, n, []int{mtu}); size != 0 || ctx.Err() != nil {
			break
		}
	}
	for range echoTries {
		if size != 0 || ctx.Err() != nil {
			break
		}
		size = s.through(ctx, n, append(probeSizes(mtu), smallPacket))
	}
	size = s.confirm(ctx, n, size, mtu)
	switch {
	case ctx.Err() != nil || size == 0: // silence, which says nothing of sizes
		return false
	case size == smallPacket:
		s.log.Error("not even packets of 1280 bytes get through to the hub: the path outside must carry 1360 bytes, 1340 over IPv4", "endpoint", s.c.Endpoint)
		return true
	case size < mtu:
		s.log.Warn("the path swallows full packets: MTU lowered", "from", mtu, "to", size, "endpoint", s.c.Endpoint)
		n.setMTU(size)
		s.mu.Lock()
		s.mtu = size
		conns := s.takeConns(e)
		s.mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	}
	s.once.Do(func() { close(s.ready) })
	return true
}

// confirm goes down from a size until one gets through again, by itself: what came
// back once among many may have been cut to pieces on its way.
func (s *Spoke) confirm(ctx context.Context, n *userspace, size, mtu int) int {
	if size <= LeastMTU || size == mtu {
		return size
	}
	for _, smaller := range probeSizes(size + 1) {
		if ctx.Err() != nil {
			return 0
		}
		for range 2 {
			if s.through(ctx, n, []int{smaller}) != 0 {
				return smaller
			}
		}
	}
	return LeastMTU
}

// through is the largest of the sizes of which a packet comes back, 0 if none does.
func (s *Spoke) through(ctx context.Context, n *userspace, sizes []int) int {
	ctx, cancel := context.WithTimeout(ctx, echoTimeout)
	defer cancel()
	back := make(chan int, len(sizes))
	for _, size := range sizes {
		go func() {
			if n.echo(ctx, s.HubAddress(), size) != nil {
				size = 0
			}
			back <- size
		}()
	}
	largest := 0
	for range sizes {
		largest = max(largest, <-back)
	}
	return largest
}

// rotateIfDue goes over to the next key once that has shaken hands; until then the
// old one goes on.
func (s *Spoke) rotateIfDue(ctx context.Context) {
	path := NextKeyFile(s.c.KeyFile)
	if _, err := os.Stat(path); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Debug("next key", "error", err)
		}
		return
	}
	if err := s.Rotate(ctx, path); err != nil && ctx.Err() == nil {
		s.log.Warn("the next key does not work yet; the old one goes on", "file", path, "error", err)
		pause(ctx, first)
	}
}

// rotateTimeout bounds the wait for the next key's first handshake.
const rotateTimeout = 20 * time.Second

// Rotate goes over to the key in a file, which takes the place of KeyFile, as soon
// as it has shaken hands with the hub. Connections of the old key are closed then.
func (s *Spoke) Rotate(ctx context.Context, path string) error {
	key, err := LoadKey(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	mtu, endpoint := s.mtu, s.dialled
	s.mu.Unlock()
	next, err := s.open(key, mtu)
	if err != nil {
		return err
	}
	if err := s.handshake(ctx, next, endpoint); err != nil {
		next.close()
		return err
	}
	if err := os.Rename(path, s.c.KeyFile); err != nil {
		next.close()
		return fmt.Errorf("wireguard: %w", err)
	}
	s.mu.Lock()
	old := s.end
	s.end = next
	conns := s.takeConns(old)
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	old.close()
	s.log.Info("tunnel goes on with its next key", "publicKey", key.Public())
	return nil
}

func (s *Spoke) handshake(ctx context.Context, e *end, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, rotateTimeout)
	defer cancel()
	if endpoint == "" {
		return errors.New("wireguard: the hub's endpoint is not known yet")
	}
	if err := e.setPeer(s.c.Hub, endpoint, Keepalive); err != nil {
		return err
	}
	for hubStatus(e).Handshake.IsZero() {
		if !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("wireguard: the hub does not answer to key %s: add it to the hub's peers", e.key.Public())
		}
	}
	return nil
}

// pause waits and says whether ctx still lives.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
