package wireguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// kernel is a TUN device with the tunnel's address and a route to its prefix. What
// comes by another device is not taken.
type kernel struct {
	tun.Device
	name    string
	address netip.Addr
}

func newKernel(address netip.Addr, mtu int) (*kernel, error) {
	dev, err := tun.CreateTUN("girassol%d", mtu)
	if err != nil {
		if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("wireguard: kernel device: %w: it needs NET_ADMIN and /dev/net/tun; the device userspace needs neither", err)
		}
		return nil, fmt.Errorf("wireguard: kernel device: %w", err)
	}
	k := &kernel{Device: dev, address: address}
	if k.name, err = dev.Name(); err == nil {
		err = k.configure()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wireguard: kernel device: %w", err), dev.Close())
	}
	return k, nil
}

// in6Ifreq is the kernel's struct in6_ifreq.
type in6Ifreq struct {
	addr      [16]byte
	prefixLen uint32
	index     int32
}

// configure gives the device its address, which brings the route of its prefix, and
// sets it up.
func (k *kernel) configure() error {
	i, err := net.InterfaceByName(k.name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("IPv6 is off on this machine: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// No duplicate address detection: the address is a key's.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+k.name+"/accept_dad", []byte("0"), 0)
	req := in6Ifreq{addr: k.address.As16(), prefixLen: uint32(Prefix.Bits()), index: int32(i.Index)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("address %s for %s: %w", k.address, k.name, errno)
	}
	ifr, err := unix.NewIfreq(k.name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return fmt.Errorf("%s: %w", k.name, err)
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("%s up: %w", k.name, err)
	}
	return k.settled()
}

// settle bounds how long the kernel may take to make an address usable.
const settle = 5 * time.Second

// settled waits until sockets can have the address: the kernel is done with it a
// moment after the device is up.
func (k *kernel) settled() error {
	for deadline := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(k.address, 0)))
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("address %s is not usable on %s after %s: %w", k.address, k.name, settle, err)
		}
	}
}

// bound makes sockets that hear and speak through the device only.
func (k *kernel) bound(_, _ string, c syscall.RawConn) error {
	var bind error
	if err := c.Control(func(fd uintptr) { bind = unix.BindToDevice(int(fd), k.name) }); err != nil {
		return err
	}
	return bind
}

func (k *kernel) listen(port uint16) (net.Listener, error) {
	lc := net.ListenConfig{Control: k.bound}
	return lc.Listen(context.Background(), "tcp6", netip.AddrPortFrom(k.address, port).String())
}

func (k *kernel) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: k.bound}
	return d.DialContext(ctx, "tcp6", to.String())
}
