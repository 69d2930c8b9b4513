package agent

import (
	"sync"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// notableSkew is the clock difference from which on it is logged; it is
// corrected for in any case.
const notableSkew = 5 * time.Second

// offsetWindow is how many exchanges the estimate looks back on.
const offsetWindow = 8

// clockOffset estimates how far the coordinator's clock is ahead of ours from
// request and reply pairs. The exchange with the least round-trip time wins: its
// error is at most half of that.
type clockOffset struct {
	mu      sync.Mutex
	samples []offsetSample
}

type offsetSample struct {
	offset, rtt time.Duration
}

// observe adds one exchange: sent and received on our clock, the coordinator's
// clock in between.
func (c *clockOffset) observe(sent, received time.Time, serverUnixMilli int64) {
	rtt := received.Sub(sent)
	if rtt < 0 || serverUnixMilli == 0 {
		return
	}
	middle := sent.Add(rtt / 2)
	s := offsetSample{offset: time.UnixMilli(serverUnixMilli).Sub(middle.Round(0)), rtt: rtt}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples = append(c.samples, s)
	if len(c.samples) > offsetWindow {
		c.samples = c.samples[1:]
	}
}

// estimate is the offset and whether there is one.
func (c *clockOffset) estimate() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.samples) == 0 {
		return 0, false
	}
	best := c.samples[0]
	for _, s := range c.samples[1:] {
		if s.rtt < best.rtt {
			best = s
		}
	}
	return best.offset, true
}

// stopTime is the earlier of receipt plus span and the absolute time corrected
// by the clock offset, on our own monotonic clock. Without an estimate of the
// offset the absolute form says nothing.
func (c *clockOffset) stopTime(received time.Time, g *coordinatorv1.Grant) time.Time {
	span := time.Duration(g.GetStopInMs()) * time.Millisecond
	if offset, ok := c.estimate(); ok && g.GetStopAtUnixMs() != 0 {
		left := time.UnixMilli(g.GetStopAtUnixMs()).Sub(received.Round(0).Add(offset))
		span = min(span, left)
	}
	return received.Add(span)
}
