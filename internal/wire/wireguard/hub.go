package wireguard

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// HubConfig of a Hub.
type HubConfig struct {
	Key PrivateKey
	// Port of UDP, on all addresses of the machine; 0 takes any.
	Port uint16
	// MTU inside the tunnel; 0 is DefaultMTU.
	MTU int
	// Device; "" is Userspace.
	Device Device
	// Bind instead of UDP sockets, for tests; nil without.
	Bind conn.Bind
	Log  *slog.Logger
}

// Hub is the coordinator's end. Sites dial it from wherever they are; it answers
// where a site was heard last.
type Hub struct {
	end  *end
	port int
	log  *slog.Logger

	mu      sync.Mutex
	sources map[string][]Peer
	peers   map[PublicKey]string // -> site
	owners  map[netip.Addr]PublicKey
	conns   map[*Conn]struct{}
	// seen is the device's answer of a moment ago, in one piece for all who ask.
	seen   map[PublicKey]PeerStatus
	seenAt time.Time
}

// NewHub opens the UDP port; nobody may come in before SetPeers.
func NewHub(c HubConfig) (*Hub, error) {
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.Device == "" {
		c.Device = Userspace
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	e, err := newEnd(endConfig{key: c.Key, port: c.Port, mtu: c.MTU, device: c.Device, bind: c.Bind, log: c.Log})
	if err != nil {
		return nil, err
	}
	_, port, err := e.peers()
	if err != nil {
		e.close()
		return nil, err
	}
	return &Hub{
		end: e, port: port, log: c.Log, sources: map[string][]Peer{},
		peers: map[PublicKey]string{}, owners: map[netip.Addr]PublicKey{}, conns: map[*Conn]struct{}{},
	}, nil
}

// PublicKey of the hub.
func (h *Hub) PublicKey() PublicKey { return h.end.key.Public() }

// Address of the hub inside the tunnel.
func (h *Hub) Address() netip.Addr { return h.end.address }

// Port of UDP that the hub listens on.
func (h *Hub) Port() int { return h.port }

// SetPeers replaces the peers of one source, such as "file"; peers are those of all
// sources. Who is no peer any more, or another site's, loses its connections at
// once. On an error everything stays as it was.
func (h *Hub) SetPeers(source string, peers []Peer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	sources := maps.Clone(h.sources)
	sources[source] = slices.Clone(peers)
	all, err := merge(sources)
	if err != nil {
		return fmt.Errorf("wireguard: peers of %s: %w", source, err)
	}
	wanted := map[PublicKey]string{}
	for _, p := range all {
		if p.PublicKey == h.end.key.Public() {
			return fmt.Errorf("wireguard: peers of %s: site %s has the hub's own key", source, p.Site)
		}
		wanted[p.PublicKey] = p.Site
	}
	for k, site := range h.peers {
		if wanted[k] != site {
			h.end.removePeer(k)
			delete(h.peers, k)
			delete(h.owners, Address(k))
			h.log.Info("tunnel peer removed", "site", site, "publicKey", k)
		}
	}
	for k, site := range wanted {
		if _, known := h.peers[k]; known {
			continue
		}
		if err := h.end.setPeer(k, "", 0); err != nil {
			return err
		}
		h.peers[k], h.owners[Address(k)] = site, k
		h.log.Info("tunnel peer added", "site", site, "publicKey", k, "address", Address(k))
	}
	h.sources, h.seen = sources, nil
	for c := range h.conns {
		if h.peers[c.key] != c.site {
			delete(h.conns, c)
			_ = c.Conn.Close()
		}
	}
	return nil
}

// freshness of what Peers tells.
const freshness = time.Second

// Peers is what the hub has seen of its peers, by site and key; at most a second
// old.
func (h *Hub) Peers() []SiteStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look()
	out := make([]SiteStatus, 0, len(h.peers))
	for k, site := range h.peers {
		p, ok := h.seen[k]
		if !ok {
			p.PublicKey = k
		}
		out = append(out, SiteStatus{Site: site, PeerStatus: p})
	}
	slices.SortFunc(out, func(a, b SiteStatus) int {
		if a.Site != b.Site {
			return cmp.Compare(a.Site, b.Site)
		}
		return cmp.Compare(a.PublicKey.String(), b.PublicKey.String())
	})
	return out
}

// SiteStatus is a peer with its site.
type SiteStatus struct {
	Site string
	PeerStatus
}

// look asks the device again if the last answer is old; mu is held.
func (h *Hub) look() {
	now := time.Now()
	if h.seen != nil && now.Sub(h.seenAt) < freshness {
		return
	}
	peers, _, err := h.end.peers()
	if err != nil {
		return
	}
	h.seen, h.seenAt = map[PublicKey]PeerStatus{}, now
	for _, p := range peers {
		h.seen[p.PublicKey] = p
	}
}

// peer is what was seen of one.
func (h *Hub) peer(k PublicKey) PeerStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look()
	return h.seen[k]
}

// Listen takes TCP connections inside the tunnel; each is a *Conn.
func (h *Hub) Listen(port uint16) (net.Listener, error) {
	l, err := h.end.network.listen(port)
	if err != nil {
		return nil, fmt.Errorf("wireguard: port %d inside the tunnel: %w", port, err)
	}
	return &listener{l, h}, nil
}

// Close ends the tunnel and its connections.
func (h *Hub) Close() error {
	h.mu.Lock()
	for c := range h.conns {
		_ = c.Conn.Close()
	}
	clear(h.conns)
	h.mu.Unlock()
	h.end.close()
	return nil
}

// Conn is a connection from a peer.
type Conn struct {
	net.Conn
	hub  *Hub
	key  PublicKey
	site string
}

// Site for which the other end speaks: its key was in the table with this name when
// the connection came in, and the connection is closed when that changes.
func (c *Conn) Site() string { return c.site }

// Peer is what the hub has seen of the other end; at most a second old.
func (c *Conn) Peer() PeerStatus { return c.hub.peer(c.key) }

// Traffic is when the other end shook hands last, and the bytes of UDP packets from
// it and to it.
func (c *Conn) Traffic() (handshake time.Time, received, sent uint64) {
	p := c.Peer()
	return p.Handshake, p.Received, p.Sent
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.hub.mu.Lock()
	delete(c.hub.conns, c)
	c.hub.mu.Unlock()
	return c.Conn.Close()
}

type listener struct {
	net.Listener
	hub *Hub
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if peer := l.hub.admit(c); peer != nil {
			return peer, nil
		}
		_ = c.Close()
	}
}

// admit finds whose a connection is; nil if it is nobody's, such as one of the
// machine itself to a kernel device.
func (h *Hub) admit(c net.Conn) *Conn {
	a, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	key, ok := h.owners[a.Addr().WithZone("")]
	if !ok {
		h.log.Warn("connection inside the tunnel from an address of no peer, closed", "address", a.Addr())
		return nil
	}
	peer := &Conn{Conn: c, hub: h, key: key, site: h.peers[key]}
	h.conns[peer] = struct{}{}
	return peer
}
