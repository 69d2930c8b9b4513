//go:build !linux

package wireguard

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"golang.zx2c4.com/wireguard/tun"
)

// kernel devices are for Linux.
type kernel struct{ tun.Device }

func newKernel(netip.Addr, int) (*kernel, error) {
	return nil, errors.New("wireguard: the kernel device is for Linux; take the device userspace")
}

func (*kernel) listen(uint16) (net.Listener, error) { return nil, errors.ErrUnsupported }

func (*kernel) dial(context.Context, netip.AddrPort) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
