package wireguard

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// Device is what a tunnel ends in.
type Device string

// The devices.
const (
	// Userspace is a network stack of the process; it needs no rights.
	Userspace Device = "userspace"
	// Kernel is a TUN device; it needs NET_ADMIN and /dev/net/tun.
	Kernel Device = "kernel"
)

// MTU of packets inside a tunnel: the default, what IPv6 needs, and the most.
const (
	DefaultMTU = 1420
	LeastMTU   = 1280
	MostMTU    = 65455
)

// FleetPort is where a hub takes gRPC inside the tunnel.
const FleetPort = 7465

// RedisPort is where a hub hands on to its Redis inside the tunnel.
const RedisPort = 6379

// Keepalive of sites, in seconds: less than the half minute after which most NATs
// forget a mapping.
const Keepalive = 25

// PeerStatus is a peer as one end sees it.
type PeerStatus struct {
	PublicKey PublicKey
	// Endpoint from which it was heard last or where it is dialled; "" before.
	Endpoint string
	// Handshake is the time of the newest; zero before the first.
	Handshake time.Time
	// Received and Sent are bytes of the tunnel's UDP packets.
	Received, Sent uint64
}

// network is the inner side of an end.
type network interface {
	tun.Device
	listen(port uint16) (net.Listener, error)
	dial(ctx context.Context, to netip.AddrPort) (net.Conn, error)
}

// end is one WireGuard device with its network.
type end struct {
	key     PrivateKey
	address netip.Addr
	network network
	device  *device.Device
}

// endConfig of one end. port 0 takes any.
type endConfig struct {
	key    PrivateKey
	port   uint16
	mtu    int
	device Device
	bind   conn.Bind
	log    *slog.Logger
}

func checkMTU(mtu int) error {
	if mtu < LeastMTU || mtu > MostMTU {
		return fmt.Errorf("wireguard: an MTU of %d: want %d to %d; the path outside needs 80 bytes more, 60 over IPv4", mtu, LeastMTU, MostMTU)
	}
	return nil
}

func newEnd(c endConfig) (*end, error) {
	if err := checkMTU(c.mtu); err != nil {
		return nil, err
	}
	address := Address(c.key.Public())
	var n network
	var err error
	switch c.device {
	case Userspace:
		n, err = newUserspace(address, c.mtu)
	case Kernel:
		n, err = newKernel(address, c.mtu)
	default:
		return nil, fmt.Errorf("wireguard: device %q is neither %s nor %s", c.device, Userspace, Kernel)
	}
	if err != nil {
		return nil, err
	}
	return newEndOn(n, c)
}

func newEndOn(n network, c endConfig) (*end, error) {
	e := &end{key: c.key, address: Address(c.key.Public()), network: n}
	if c.bind == nil {
		c.bind = conn.NewDefaultBind()
	}
	e.device = device.NewDevice(e.network, c.bind, &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf:   func(format string, args ...any) { c.log.Debug("wireguard", "message", fmt.Sprintf(format, args...)) },
	})
	err := e.device.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n", c.key.hex(), c.port))
	if err == nil {
		err = e.device.Up()
	}
	if err != nil {
		e.device.Close()
		return nil, fmt.Errorf("wireguard: UDP port %d: %w", c.port, err)
	}
	return e, nil
}

func (e *end) close() { e.device.Close() }

// setPeer adds a peer with its own address, or changes where it is dialled.
func (e *end) setPeer(k PublicKey, endpoint string, keepalive int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "public_key=%s\n", hex.EncodeToString(k[:]))
	if endpoint != "" {
		fmt.Fprintf(&b, "endpoint=%s\n", endpoint)
	}
	if keepalive > 0 {
		fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", keepalive)
	}
	fmt.Fprintf(&b, "replace_allowed_ips=true\nallowed_ip=%s/128\n", Address(k))
	if err := e.device.IpcSet(b.String()); err != nil {
		return fmt.Errorf("wireguard: peer %s: %w", k, err)
	}
	return nil
}

func (e *end) removePeer(k PublicKey) { e.device.RemovePeer(device.NoisePublicKey(k)) }

// peers are those of the device, in its order.
func (e *end) peers() ([]PeerStatus, int, error) {
	text, err := e.device.IpcGet()
	if err != nil {
		return nil, 0, fmt.Errorf("wireguard: %w", err)
	}
	return parsePeerStatus(text)
}

// parsePeerStatus reads the configuration protocol's answer: the peers, and the UDP
// port that is listened on.
func parsePeerStatus(text string) (out []PeerStatus, port int, err error) {
	var seconds, nanos int64
	finish := func() {
		if n := len(out); n > 0 && (seconds != 0 || nanos != 0) {
			out[n-1].Handshake = time.Unix(seconds, nanos)
		}
		seconds, nanos = 0, 0
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "=")
		if key == "public_key" {
			finish()
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != KeySize {
				return nil, 0, fmt.Errorf("wireguard: the device names a peer %.80q", value)
			}
			out = append(out, PeerStatus{PublicKey: PublicKey(b)})
			continue
		}
		number, bad := strconv.ParseInt(value, 10, 64)
		if key == "listen_port" && bad == nil {
			port = int(number)
		}
		if len(out) == 0 {
			continue
		}
		p := &out[len(out)-1]
		switch {
		case key == "endpoint":
			p.Endpoint = value
		case bad != nil || number < 0:
		case key == "last_handshake_time_sec":
			seconds = number
		case key == "last_handshake_time_nsec":
			nanos = number
		case key == "rx_bytes":
			p.Received = uint64(number)
		case key == "tx_bytes":
			p.Sent = uint64(number)
		}
	}
	finish()
	return out, port, lines.Err()
}
