package broadcast

import (
	"context"
	"crypto/ed25519"
	"fmt"

	"girassol.dev/api/events"
)

// page is how many entries Resync reads at a time, newest first.
const page = 256

type resync struct {
	commits func(after *uint64) []events.Event
	done    chan struct{}
}

// Resync announces the commits that a coordinator before this one has made and
// not announced, because Redis was away until it ended. It looks for the last
// RoundCommitted or RolledBack of the stream and publishes what commits returns for
// its version: such events after it, oldest first; after is nil when
// the stream has none. They come before all that was given to Publish, whose own
// commits are left out.
//
// Call it once, before the first Publish. It waits until Redis has answered or
// ctx ends; in the latter case it fails, and is done once Redis is there. commits
// is called from another goroutine, at most once per answer of Redis.
func (p *Publisher) Resync(ctx context.Context, commits func(after *uint64) []events.Event) error {
	if p.client == nil {
		return nil
	}
	r := &resync{commits: commits, done: make(chan struct{})}
	p.mu.Lock()
	p.resync = r
	p.signal()
	p.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-p.done:
		return fmt.Errorf("broadcast: federation %s: closed before the stream could be read", p.federation)
	case <-ctx.Done():
		return fmt.Errorf("broadcast: federation %s: Redis has not answered, the stream is completed once it does: %w", p.federation, context.Cause(ctx))
	}
}

func (p *Publisher) runResync(ctx context.Context) error {
	p.mu.Lock()
	r := p.resync
	p.mu.Unlock()
	if r == nil {
		return nil
	}
	last, err := p.lastCommit(ctx)
	if err != nil {
		return err
	}
	missing := r.commits(last)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range missing {
		if p.firstCommit != nil && e.Version != nil && *e.Version >= *p.firstCommit {
			break
		}
		p.resynced++
		p.again = append(p.again, p.encode(e, p.resynced))
	}
	if p.resynced > 0 {
		p.log.Info("announcing commits of before the start", "events", p.resynced)
	}
	p.resync = nil
	close(r.done)
	return nil
}

// makesVersion says whether an event tells of a new version.
func makesVersion(e events.Event) bool {
	return e.Version != nil && (e.Type == events.RoundCommitted || e.Type == events.RolledBack)
}

// lastCommit is the newest version that the stream tells of, nil when it has none.
// Entries that this key has not signed are skipped: whoever else wrote them, no agent
// believes them.
func (p *Publisher) lastCommit(ctx context.Context) (*uint64, error) {
	end := "+"
	for {
		entries, err := p.readPage(ctx, end)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			e, err := events.Verify(p.key.Public().(ed25519.PublicKey), p.federation, entry.Values)
			if err == nil && makesVersion(e) {
				return e.Version, nil
			}
		}
		if len(entries) < page {
			return nil, nil
		}
		end = "(" + entries[len(entries)-1].ID
	}
}
