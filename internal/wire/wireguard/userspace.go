package wireguard

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/tun"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	// queueLength of packets that wait for the tunnel; more are dropped, which TCP
	// takes as a sign to slow down.
	queueLength = 4096
	// batchSize of packets that go to and from WireGuard with one call.
	batchSize = 128
	nic       = 1
)

// TCP buffers, in bytes: 16 MiB is what 1 Gbit/s needs over 130 ms. A receiver
// begins with less and grows with what arrives: a sender that fills a slow path's
// queue at once loses so much of it that it takes seconds to recover.
const (
	leastBuffer = 4 << 10
	firstWindow = 1 << 20
	usualBuffer = 4 << 20
	mostBuffer  = 16 << 20
)

// userspace is a network stack in the process: a tun.Device to WireGuard, sockets
// to who uses the tunnel.
type userspace struct {
	address netip.Addr
	queue   *channel.Endpoint
	stack   *stack.Stack
	into    dispatcher
	events  chan tun.Event
	closed  context.Context
	close   context.CancelFunc
	once    sync.Once
	groups  sync.Pool // of *gro.GRO, a writer's at a time
	// largest packet that the stack has sent, in bytes.
	largest atomic.Int64
}

// dispatcher hands packets to the stack's device.
type dispatcher struct{ queue *channel.Endpoint }

func (d dispatcher) DeliverNetworkPacket(p tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	d.queue.InjectInbound(p, pkt)
}

func (dispatcher) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

func newUserspace(address netip.Addr, mtu int) (*userspace, error) {
	n := &userspace{
		address: address, queue: channel.New(queueLength, uint32(mtu), ""), events: make(chan tun.Event, 1),
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv6.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, icmp.NewProtocol6},
			HandleLocal:        true,
		}),
	}
	n.closed, n.close = context.WithCancel(context.Background())
	n.into = dispatcher{n.queue}
	n.groups.New = func() any {
		g := &gro.GRO{Dispatcher: n.into}
		g.Init(true)
		return g
	}
	// WireGuard has authenticated what comes in.
	n.queue.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
	n.queue.SupportedGSOKind = stack.GVisorGSOSupported
	if err := n.configure(); err != nil {
		n.stop()
		return nil, err
	}
	n.events <- tun.EventUp
	return n, nil
}

func (n *userspace) configure() error {
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	control := tcpip.CongestionControlOption("cubic")
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: leastBuffer, Default: firstWindow, Max: mostBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: leastBuffer, Default: usualBuffer, Max: mostBuffer}
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &control, &receive, &send} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("wireguard: userspace TCP: option %T: %s", o, err)
		}
	}
	if err := n.stack.CreateNIC(nic, n.queue); err != nil {
		return fmt.Errorf("wireguard: userspace device: %s", err)
	}
	own := tcpip.ProtocolAddress{Protocol: ipv6.ProtocolNumber, AddressWithPrefix: tcpip.AddrFromSlice(n.address.AsSlice()).WithPrefix()}
	if err := n.stack.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("wireguard: userspace device: address %s: %s", n.address, err)
	}
	n.stack.AddRoute(tcpip.Route{Destination: header.IPv6EmptySubnet, NIC: nic})
	return nil
}

// Read implements tun.Device: it waits for a packet and takes what else is there.
func (n *userspace) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	pkt := n.queue.ReadContext(n.closed)
	if pkt == nil {
		return 0, os.ErrClosed
	}
	most := min(len(bufs), len(sizes))
	count := 0
	for {
		at := offset
		for _, part := range pkt.AsSlices() {
			at += copy(bufs[count][at:], part)
		}
		sizes[count] = at - offset
		if size := int64(pkt.Size()); size > n.largest.Load() {
			n.largest.Store(size)
		}
		pkt.DecRef()
		if count++; count == most {
			return count, nil
		}
		if pkt = n.queue.Read(); pkt == nil {
			return count, nil
		}
	}
}

// Write implements tun.Device: packets of one connection that follow each other
// reach the stack as one.
func (n *userspace) Write(bufs [][]byte, offset int) (int, error) {
	group := n.groups.Get().(*gro.GRO)
	defer n.groups.Put(group)
	for _, b := range bufs {
		b = b[offset:]
		if len(b) == 0 || b[0]>>4 != 6 {
			continue // there is nothing else than IPv6 in a tunnel
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
		pkt.NetworkProtocolNumber, pkt.RXChecksumValidated = header.IPv6ProtocolNumber, true
		group.Enqueue(pkt)
		pkt.DecRef()
	}
	group.Flush()
	return len(bufs), nil
}

// File implements tun.Device; there is none.
func (*userspace) File() *os.File { return nil }

// MTU implements tun.Device.
func (n *userspace) MTU() (int, error) { return int(n.queue.MTU()), nil }

// Name implements tun.Device.
func (*userspace) Name() (string, error) { return "userspace", nil }

// Events implements tun.Device.
func (n *userspace) Events() <-chan tun.Event { return n.events }

// BatchSize implements tun.Device.
func (*userspace) BatchSize() int { return batchSize }

// Close implements tun.Device.
func (n *userspace) Close() error {
	n.once.Do(func() {
		n.stop()
		close(n.events)
	})
	return nil
}

func (n *userspace) stop() {
	n.close()
	n.stack.RemoveNIC(nic)
	n.stack.Close()
	n.stack.Wait()
	n.queue.Close()
}

func (n *userspace) setMTU(mtu int) { n.queue.SetMTU(uint32(mtu)) }

func (n *userspace) listen(port uint16) (net.Listener, error) {
	return gonet.ListenTCP(n.stack, tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(n.address.AsSlice()), Port: port}, ipv6.ProtocolNumber)
}

func (n *userspace) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	conn, err := gonet.DialContextTCP(ctx, n.stack, tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.Addr().AsSlice()), Port: to.Port()}, ipv6.ProtocolNumber)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// echo sends an ICMPv6 echo request in a packet of size bytes and waits for the
// answer, which is as long.
func (n *userspace) echo(ctx context.Context, to netip.Addr, size int) error {
	conn, err := n.ping(to)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	request := make([]byte, size-header.IPv6MinimumSize)
	request[0] = byte(header.ICMPv6EchoRequest)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	answer := make([]byte, len(request)+1)
	for {
		got, err := conn.Read(answer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return err
		case got == len(request) && answer[0] == byte(header.ICMPv6EchoReply):
			return nil
		}
	}
}
