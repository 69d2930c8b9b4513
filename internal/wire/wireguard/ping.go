package wireguard

import (
	"fmt"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/waiter"
)

// ping is a socket of ICMPv6 echoes; the stack gives them their identifier.
func (n *userspace) ping(to netip.Addr) (net.Conn, error) {
	var wq waiter.Queue
	ep, err := n.stack.NewEndpoint(header.ICMPv6ProtocolNumber, ipv6.ProtocolNumber, &wq)
	if err != nil {
		return nil, fmt.Errorf("wireguard: echo: %s", err)
	}
	conn := gonet.NewUDPConn(&wq, ep)
	if err := ep.Connect(tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.AsSlice())}); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("wireguard: echo to %s: %s", to, err)
	}
	return conn, nil
}
