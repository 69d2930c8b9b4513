//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// subnet of all hosts; the last byte is the host's.
const subnet = "10.99.0."

// host is a network namespace with one TUN device, whose other end is this process.
// Its goroutine's thread lives in it, and so does every process started there.
type host struct {
	name string
	last byte // of its address
	tun  *os.File
	runs chan func()
}

// network carries packets between hosts as a wire does: what it drops is gone, and
// nobody is told.
type network struct {
	mu    sync.Mutex
	hosts []*host
	at    map[byte]*host // who has an address; it may move
	loss  map[[2]*host]float64
	rng   *rand.Rand
	// Dropped and Carried packets.
	dropped, carried uint64
}

func newNetwork(seed uint64) *network {
	return &network{at: map[byte]*host{}, loss: map[[2]*host]float64{}, rng: rand.New(rand.NewPCG(seed, 3))}
}

// add makes a host. own is this process' own namespace.
func (n *network) add(name string, last byte, own bool) (*host, error) {
	h := &host{name: name, last: last, runs: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread is the namespace's
		if !own {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				ready <- fmt.Errorf("a network namespace for %s: %w", name, err)
				return
			}
		}
		ready <- h.up()
		for f := range h.runs {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.hosts = append(n.hosts, h)
	if n.at[last] == nil {
		n.at[last] = h
	}
	n.mu.Unlock()
	go n.carry(h)
	return h, nil
}

// up makes the device and its address.
func (h *host) up() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq("tun0")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("tun0 of %s: %w", h.name, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	h.tun = os.NewFile(uintptr(fd), "tun0 of "+h.name)
	for _, args := range []string{"link set lo up", "addr add " + h.ip() + "/24 dev tun0", "link set tun0 up"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s for %s: %w: %s", args, h.name, err, out)
		}
	}
	return nil
}

func (h *host) ip() string { return fmt.Sprint(subnet, h.last) }

// do runs f on the host's thread.
func (h *host) do(f func() error) error {
	done := make(chan error)
	h.runs <- func() { done <- f() }
	return <-done
}

// carry takes the host's packets to where they go.
func (n *network) carry(h *host) {
	packet := make([]byte, 1<<16)
	for {
		k, err := h.tun.Read(packet)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || k < 20 || packet[0]>>4 != 4 {
			continue
		}
		n.mu.Lock()
		to := n.at[packet[19]]
		// A host that lost its address is off the wire, also with what it sends.
		gone := n.at[h.last] != h
		drop := to == nil || gone || n.rng.Float64() < n.loss[[2]*host{h, to}]
		if drop {
			n.dropped++
		} else {
			n.carried++
		}
		n.mu.Unlock()
		if !drop {
			_, _ = to.tun.Write(packet[:k])
		}
	}
}

// set loses a share of all packets from one host to another.
func (n *network) set(from, to *host, share float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss[[2]*host{from, to}] = share
}

// around sets the loss of a host: what it sends and what it gets. The host of the
// observer is left alone.
func (n *network) around(h, observer *host, out, in float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.hosts {
		if o != h && o != observer {
			n.loss[[2]*host{h, o}], n.loss[[2]*host{o, h}] = out, in
		}
	}
}

// mend ends all loss.
func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.loss)
}

// move gives a host's address to another.
func (n *network) move(to *host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[to.last] = to
}
