//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// wireUp makes hosts and disks.
func (f *federation) wireUp() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of our own: %w", err)
	}
	f.net = newNetwork(f.o.seed)
	type place struct {
		name string
		last byte
	}
	places := []place{{"me", 1}, {"coordinator", 2}, {"spare", 2}, {"redis", 3}, {"source", 4}}
	for i, s := range f.sites {
		places = append(places, place{s, byte(10 + i)})
	}
	for _, p := range places {
		h, err := f.net.add(p.name, p.last, p.name == "me")
		if err != nil {
			return err
		}
		f.hosts[p.name] = h
	}
	f.me = f.hosts["me"]
	for _, name := range append([]string{"coordinator"}, f.sites...) {
		path := f.data(name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%dm", diskMiB)); err != nil {
			return fmt.Errorf("a disk for %s: %w", name, err)
		}
	}
	return nil
}

func (f *federation) loopback() error {
	for _, name := range append([]string{"coordinator", "redis", "source", "coordinator-metrics"}, f.sites...) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		f.ports[name] = l.Addr().String()
		_ = l.Close()
	}
	for _, s := range f.sites {
		p, err := newProxy(f.ports["coordinator"])
		if err != nil {
			return err
		}
		f.proxies[s] = p
	}
	return nil
}

func (f *federation) data(name string) string { return filepath.Join(f.dir, "data", name) }

// address where a program listens.
func (f *federation) address(name string, port int) string {
	if f.net == nil {
		if name == "coordinator" && port == portMetrics {
			name = "coordinator-metrics"
		}
		return f.ports[name]
	}
	return net.JoinHostPort(f.hosts[name].ip(), fmt.Sprint(port))
}

// The ports, each on its own host.
const (
	portCoordinator = 7465
	portMetrics     = 9465
	portRedis       = 6379
	portSource      = 9090
)
