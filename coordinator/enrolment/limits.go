package enrolment

import (
	"net"
	"sync"
	"time"
)

// What strangers may do.
const (
	// Connections at one time; one more is closed at once.
	maxConnections        = 256
	maxConnectionsAddress = 16
	// Exchanges: so many at once, and so many each second after that.
	burstAll, rateAll         = 100, 20.0
	burstAddress, rateAddress = 20, 0.5
	// Addresses that are remembered.
	maxAddresses = 4096
)

// bucket holds tokens that fill up with time.
type bucket struct {
	full  float64
	at    time.Time
	begun bool
}

func (b *bucket) take(burst, rate float64, now time.Time) bool {
	if !b.begun {
		b.full, b.at, b.begun = burst, now, true
	}
	if gone := now.Sub(b.at).Seconds(); gone > 0 {
		b.full, b.at = min(burst, b.full+gone*rate), now
	}
	if b.full < 1 {
		return false
	}
	b.full--
	return true
}

// limits of exchanges.
type limits struct {
	mu        sync.Mutex
	all, logs bucket
	address   map[string]*bucket
}

// allow counts an exchange.
func (l *limits) allow(address string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.address[address]
	if !ok {
		if len(l.address) >= maxAddresses || l.address == nil {
			l.forget(now)
		}
		b = &bucket{}
		l.address[address] = b
	}
	return b.take(burstAddress, rateAddress, now) && l.all.take(burstAll, rateAll, now)
}

// forget drops addresses that have their whole burst again, or all if that is none:
// the limit over all addresses holds either way.
func (l *limits) forget(now time.Time) {
	kept := map[string]*bucket{}
	for a, b := range l.address {
		if b.full+now.Sub(b.at).Seconds()*rateAddress < burstAddress {
			kept[a] = b
		}
	}
	if len(kept) >= maxAddresses {
		kept = map[string]*bucket{}
	}
	l.address = kept
}

// mayLog bounds the lines that strangers cause.
func (l *limits) mayLog(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logs.take(20, 0.5, now)
}

// Bound is a listener that holds few connections, and few of one address.
func Bound(l net.Listener) net.Listener {
	return &bounded{Listener: l, address: map[string]int{}}
}

type bounded struct {
	net.Listener
	mu      sync.Mutex
	all     int
	address map[string]int
}

// Accept closes what is too much at once: waiting would let idle connections keep
// everybody out.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		key := clientKey(c.RemoteAddr().String())
		b.mu.Lock()
		fits := b.all < maxConnections && b.address[key] < maxConnectionsAddress
		if fits {
			b.all++
			b.address[key]++
		}
		b.mu.Unlock()
		if fits {
			return &boundedConn{Conn: c, of: b, key: key}, nil
		}
		_ = c.Close()
	}
}

type boundedConn struct {
	net.Conn
	of   *bounded
	key  string
	once sync.Once
}

func (c *boundedConn) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.all--
		if c.of.address[c.key]--; c.of.address[c.key] <= 0 {
			delete(c.of.address, c.key)
		}
	})
	return c.Conn.Close()
}
