package broadcast

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/go-redis/v9"

	"girassol.dev/api/events"
)

// run is the one goroutine that speaks with Redis. It ends with ctx, or after
// Close when nothing is left to publish.
func (p *Publisher) run(ctx context.Context) {
	defer close(p.done)
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0), // for ever
	)
	var failedSince time.Time
	for {
		err := p.flush(ctx)
		if ctx.Err() != nil {
			return
		}
		next, wake := p.checkInterval, p.wake
		if err != nil {
			if failedSince.IsZero() {
				failedSince = time.Now()
				p.log.Warn("Redis is away, events wait", "error", err)
			}
			p.setState(Disconnected, err.Error())
			// A new event is no reason to try earlier.
			next, wake = wait.NextBackOff(), nil
		} else {
			if !failedSince.IsZero() {
				p.log.Info("Redis is back", "away", time.Since(failedSince).Round(time.Millisecond))
				failedSince = time.Time{}
			}
			p.setState(Connected, "")
			wait.Reset()
			if p.finished() {
				return
			}
		}
		timer := time.NewTimer(next)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (p *Publisher) setState(state, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.State, p.status.Message = state, message
}

func (p *Publisher) finished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing && p.pending() == 0
}

// flush publishes all that waits. Its first exchange shows in any case whether
// Redis is there.
func (p *Publisher) flush(ctx context.Context) error {
	if err := p.recoverLost(ctx); err != nil {
		return err
	}
	if err := p.runResync(ctx); err != nil {
		return err
	}
	for {
		next, done, ok := p.head()
		if !ok {
			return nil
		}
		if err := p.send(ctx, next); err != nil {
			return err
		}
		done()
	}
}

// head is the next event to publish and what to call once it is.
func (p *Publisher) head() (next payload, done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.again) > 0 {
		return p.again[0], func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.again = p.again[1:]
			p.status.Published++
		}, true
	}
	if len(p.outbox) == 0 {
		return payload{}, nil, false
	}
	head := p.outbox[0]
	return p.encode(head.event, p.resynced+head.index), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		// It may have been dropped meanwhile.
		if len(p.outbox) > 0 && p.outbox[0].index == head.index {
			p.outbox = p.outbox[1:]
		}
		p.status.Published++
	}, true
}

func (p *Publisher) encode(e events.Event, sequence uint64) payload {
	e.Federation, e.Term, e.Sequence = p.federation, p.term, sequence
	b, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("broadcast: an event is always JSON: %v", err)) // it holds strings and integers only
	}
	return payload{sequence, string(b)}
}

func (p *Publisher) send(ctx context.Context, next payload) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, err := p.client.XAdd(ctx, &redis.XAddArgs{
		Stream: p.stream, MaxLen: streamLength, Approx: true,
		Values: events.Sign(p.key, p.federation, p.term, next.sequence, next.text),
	}).Result()
	if err != nil {
		return err
	}
	if p.kept = append(p.kept, record{id, next}); len(p.kept) > streamLength {
		p.kept = p.kept[1:]
	}
	// The entry is what counts; a reader that misses the wake-up finds it anyway.
	if err := p.client.Publish(ctx, p.stream, id).Err(); err != nil {
		p.log.Debug("wake-up not published", "id", id, "error", err)
	}
	return nil
}

// recoverLost puts events back into the queue that Redis has acknowledged and no
// longer has, as after a restart without or with a late append-only file.
func (p *Publisher) recoverLost(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	newest, err := p.client.XRevRangeN(ctx, p.stream, "+", "-", 1).Result()
	if err != nil {
		return err
	}
	n := len(p.kept)
	for n > 0 && (len(newest) == 0 || olderID(newest[0].ID, p.kept[n-1].id)) {
		n--
	}
	lost := p.kept[n:]
	if len(lost) == 0 {
		return nil
	}
	p.log.Warn("Redis has lost events, publishing them again", "events", len(lost))
	payloads := make([]payload, len(lost))
	for i, r := range lost {
		payloads[i] = r.payload
	}
	p.kept = p.kept[:n:n]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again = append(payloads, p.again...)
	p.status.Published -= min(p.status.Published, uint64(len(payloads)))
	return nil
}

// olderID compares stream ids, "<milliseconds>-<sequence>".
func olderID(a, b string) bool {
	var a1, a2, b1, b2 uint64
	if _, err := fmt.Sscanf(a, "%d-%d", &a1, &a2); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(b, "%d-%d", &b1, &b2); err != nil {
		return false
	}
	return a1 < b1 || (a1 == b1 && a2 < b2)
}
