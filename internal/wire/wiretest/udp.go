package wiretest

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// Path is what a relay does to packets, each way by itself. The zero value passes
// them on.
type Path struct {
	// Delay of each packet, and the most that is added to it by chance, by which
	// packets overtake each other.
	Delay, Jitter time.Duration
	// Loss is the share of packets that vanish.
	Loss float64
	// Rate in bytes of UDP payload per second, with a queue of a quarter of a second;
	// 0 is none.
	Rate float64
	// MTU is the longest UDP payload; longer ones vanish without a word, as where ICMP
	// is blocked. 0 is none.
	MTU int
}

// Relay passes UDP packets on between clients and one server, as a NAT that forgets
// on demand.
type Relay struct {
	front  *net.UDPConn
	to     *net.UDPAddr
	group  sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
	up     *lane
	down   *lane

	mu      sync.Mutex
	path    Path
	random  *rand.Rand
	backs   map[netip.AddrPort]*net.UDPConn
	passed  int
	largest int
	onUp    func([]byte)
}

// NewRelay listens on an address, "127.0.0.1:0" on this machine, and passes on to
// the server. It ends with the test.
func NewRelay(t testing.TB, listen, to string, p Path) *Relay {
	t.Helper()
	r, err := newRelay(listen, to, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stop)
	return r
}

// StartRelay is NewRelay in a process without a test.
func StartRelay(listen, to string, p Path) (stop func(), err error) {
	r, err := newRelay(listen, to, p)
	if err != nil {
		return nil, err
	}
	return r.stop, nil
}

func newRelay(listen, to string, p Path) (*Relay, error) {
	local, err := net.ResolveUDPAddr("udp", listen)
	if err != nil {
		return nil, err
	}
	remote, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		return nil, err
	}
	front, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, err
	}
	_ = front.SetReadBuffer(8 << 20)
	_ = front.SetWriteBuffer(8 << 20)
	ctx, stop := context.WithCancel(context.Background())
	r := &Relay{front: front, to: remote, ctx: ctx, cancel: stop, path: p, random: rand.New(rand.NewPCG(1, 2)), backs: map[netip.AddrPort]*net.UDPConn{}}
	r.up, r.down = newLane(r), newLane(r)
	r.group.Go(r.fromClients)
	return r, nil
}

func (r *Relay) stop() {
	r.cancel()
	_ = r.front.Close()
	r.Roam()
	r.group.Wait()
}

// Addr for clients to send to.
func (r *Relay) Addr() string { return r.front.LocalAddr().String() }

// Roam forgets all mappings: the server hears each client from another port.
func (r *Relay) Roam() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, c := range r.backs {
		_ = c.Close()
		delete(r.backs, a)
	}
}

// OnUp sees each packet to the server; it must not keep it.
func (r *Relay) OnUp(f func([]byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onUp = f
}

// Passed is how many packets went through, and the longest that came in.
func (r *Relay) Passed() (packets, longest int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.passed, r.largest
}

func (r *Relay) fromClients() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := r.front.ReadFromUDPAddrPort(b)
		if err != nil {
			if r.ctx.Err() != nil {
				return
			}
			continue
		}
		back := r.back(from)
		if back == nil {
			return
		}
		r.mu.Lock()
		if r.onUp != nil {
			r.onUp(b[:n])
		}
		r.mu.Unlock()
		r.up.take(b[:n], func(p []byte) { _, _ = back.Write(p) })
	}
}

// back is the socket by which a client's packets reach the server.
func (r *Relay) back(client netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.backs[client]; c != nil {
		return c
	}
	c, err := net.DialUDP("udp", nil, r.to)
	if err != nil || r.ctx.Err() != nil {
		return nil
	}
	_ = c.SetReadBuffer(8 << 20)
	_ = c.SetWriteBuffer(8 << 20)
	r.backs[client] = c
	r.group.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, err := c.Read(b)
			if err != nil {
				r.mu.Lock()
				gone := r.backs[client] != c
				r.mu.Unlock()
				if gone {
					return
				}
				continue // the server is away
			}
			r.down.take(b[:n], func(p []byte) { _, _ = r.front.WriteToUDPAddrPort(p, client) })
		}
	})
	return c
}

// lane is one direction: packets wait in it until they are due.
type lane struct {
	relay *Relay
	mu    sync.Mutex
	queue packets
	free  time.Time // when the wire is
	wake  chan struct{}
}

type packet struct {
	due  time.Time
	data []byte
	send func([]byte)
}

func newLane(r *Relay) *lane {
	l := &lane{relay: r, wake: make(chan struct{}, 1)}
	r.group.Go(l.run)
	return l
}

const queueTime = 250 * time.Millisecond

func (l *lane) take(b []byte, send func([]byte)) {
	now := time.Now()
	r := l.relay
	r.mu.Lock()
	p := r.path
	r.largest = max(r.largest, len(b))
	drop := p.MTU > 0 && len(b) > p.MTU || p.Loss > 0 && r.random.Float64() < p.Loss
	due := now.Add(p.Delay)
	if p.Jitter > 0 {
		due = due.Add(time.Duration(r.random.Int64N(int64(p.Jitter))))
	}
	r.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Rate > 0 && !drop {
		if l.free.Before(now) {
			l.free = now
		}
		if l.free.Sub(now) > queueTime {
			drop = true
		} else {
			l.free = l.free.Add(time.Duration(float64(len(b)) / p.Rate * float64(time.Second)))
			due = due.Add(l.free.Sub(now))
		}
	}
	if drop {
		return
	}
	r.mu.Lock()
	r.passed++
	r.mu.Unlock()
	if !due.After(now) && len(l.queue) == 0 {
		send(b)
		return
	}
	heap.Push(&l.queue, packet{due, append([]byte(nil), b...), send})
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lane) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l.mu.Lock()
		var due []packet
		next := time.Hour
		for now := time.Now(); len(l.queue) > 0; {
			if wait := l.queue[0].due.Sub(now); wait > 0 {
				next = wait
				break
			}
			due = append(due, heap.Pop(&l.queue).(packet))
		}
		l.mu.Unlock()
		for _, p := range due {
			p.send(p.data)
		}
		timer.Reset(next)
		select {
		case <-l.relay.ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// packets is a heap by due time.
type packets []packet

func (p packets) Len() int           { return len(p) }
func (p packets) Less(i, j int) bool { return p[i].due.Before(p[j].due) }
func (p packets) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *packets) Push(x any)        { *p = append(*p, x.(packet)) }
func (p *packets) Pop() any {
	old := *p
	x := old[len(old)-1]
	*p = old[:len(old)-1]
	return x
}
