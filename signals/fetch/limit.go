package fetch

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"girassol.dev/signals"
)

// Limit of calls: Burst at once, then one each Every.
type Limit struct {
	Every time.Duration
	Burst int
}

// defaultLimit holds for hosts without their own.
var defaultLimit = Limit{Every: time.Second / 4, Burst: 8}

// bucket is a token bucket; its fields are the client's, under its lock.
type bucket struct {
	limit Limit
	// tokens at the time at; negative ones are promised to calls that wait.
	tokens float64
	at     time.Time
	// pause is until when the host asked for silence.
	pause   time.Time
	refused *backoff.ExponentialBackOff
}

func newBucket(l Limit, now time.Time) *bucket {
	if l.Every <= 0 || l.Burst <= 0 {
		l = defaultLimit
	}
	return &bucket{limit: l, tokens: float64(l.Burst), at: now}
}

// reserve promises a token and says how long to wait for it. It promises none
// that would come later than most; ok is false then.
func (b *bucket) reserve(now time.Time, most time.Duration) (wait time.Duration, ok bool) {
	if passed := now.Sub(b.at); passed > 0 {
		b.tokens = min(float64(b.limit.Burst), b.tokens+float64(passed)/float64(b.limit.Every))
	}
	b.at = now
	if b.tokens < 1 {
		wait = time.Duration((1 - b.tokens) * float64(b.limit.Every))
	}
	if wait > most {
		return wait, false
	}
	b.tokens--
	return wait, true
}

// giveBack returns a token that was not used.
func (b *bucket) giveBack() { b.tokens = min(float64(b.limit.Burst), b.tokens+1) }

// newBackoff doubles from first to most, for ever. The jitter is the client's.
func newBackoff(first, most time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first),
		backoff.WithMaxInterval(most),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(0),
		backoff.WithMaxElapsedTime(0), // or it would give up after 15 minutes
	)
}

// mostRetryAfter bounds how long a server may silence us.
const mostRetryAfter = 6 * time.Hour

// retryAfter reads the header: seconds or an HTTP date; 0 without a usable one.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseInt(v, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		if s <= 0 {
			return 0
		}
		return time.Duration(min(s, int64(mostRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil || !at.After(now) {
		return 0
	}
	return min(at.Sub(now), mostRetryAfter)
}

// pause waits in the signals' clock; false if ctx ends first.
func pause(ctx context.Context, clock signals.Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}
