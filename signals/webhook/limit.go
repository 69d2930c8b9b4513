package webhook

import (
	"math"
	"sync"
	"time"
)

// bucket is a token bucket in the handler's clock.
type bucket struct {
	mu               sync.Mutex
	perSecond, burst float64
	tokens           float64
	filled           time.Time
}

func newBucket(perMinute, burst int, now time.Time) *bucket {
	return &bucket{perSecond: float64(perMinute) / 60, burst: float64(burst), tokens: float64(burst), filled: now}
}

// take takes a token, or says how long there will be none.
func (b *bucket) take(now time.Time) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if passed := now.Sub(b.filled).Seconds(); passed > 0 {
		b.tokens = math.Min(b.burst, b.tokens+passed*b.perSecond)
		b.filled = now
	} else if passed < 0 { // the clock was set back
		b.filled = now
	}
	if b.tokens >= 1 {
		b.tokens--
		return 0, true
	}
	return time.Duration(math.Ceil((1-b.tokens)/b.perSecond) * float64(time.Second)), false
}
