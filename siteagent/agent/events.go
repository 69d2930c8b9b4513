package agent

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"girassol.dev/api/events"
)

// eventPoll is how often the stream is read without a wake-up; eventBatch how
// much one read takes. A blocking read would hold up the agent's end: the client
// cannot interrupt one. After silence a subscription is made anew: its connection
// may be half-open.
const (
	eventPoll    = 2 * time.Second
	eventBatch   = 256
	eventSilence = time.Minute
)

// eventReader follows a federation's event stream from the last entry that it
// handled, which it keeps on disk. It believes what the coordinator of the newest
// session has signed, and nothing before there is one. What it reads are hints:
// Redis may be gone for any time without a round noticing.
type eventReader struct {
	redis      redis.UniversalClient
	federation string
	path       string
	keys       *eventKey
	backoff    func() time.Duration // next wait after a failure
	reset      func()               // after a success
	handle     func(events.Event)
	metrics    *metrics
	log        *slog.Logger

	cursor eventCursor
	key    ed25519.PublicKey
	told   map[string]bool // refusals that were logged
}

// eventCursor is what the reader has handled: entries up to ID; of those that Key
// has signed up to Term and Sequence, the last of them at Trusted.
type eventCursor struct {
	ID       string `json:"id"`
	Key      string `json:"key,omitempty"`
	Trusted  string `json:"trusted,omitempty"`
	Term     uint64 `json:"term"`
	Sequence uint64 `json:"sequence"`
}

// run reads until the context ends.
func (r *eventReader) run(ctx context.Context) {
	r.cursor = loadCursor(r.path, r.log)
	stream := events.Stream(r.federation)
	// A lost wake-up costs no more than the poll.
	wake := make(chan struct{}, 1)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { r.listen(ctx, stream, wake) })
	failing := false
	for ctx.Err() == nil {
		key, changed := r.keys.get()
		if key == nil {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		r.trust(key)
		n, err := r.read(ctx, stream)
		wait := eventPoll
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.metrics.eventErrors.Inc()
			if !failing {
				failing = true
				r.log.Warn("event stream is out of reach; rounds go on without it", "stream", stream, "error", err)
			}
			wait = r.backoff()
		default:
			r.reset()
			if failing {
				failing = false
				r.log.Info("event stream is back", "stream", stream, "from", r.cursor.ID)
			}
			if n == eventBatch {
				wait = 0
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-wake:
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

// listen turns messages on the channel into wake-ups until the context ends.
func (r *eventReader) listen(ctx context.Context, channel string, wake chan struct{}) {
	for ctx.Err() == nil {
		err := r.subscription(ctx, channel, wake)
		var silent net.Error
		if ctx.Err() == nil && (!errors.As(err, &silent) || !silent.Timeout()) {
			r.log.Debug("no wake-ups for events", "channel", channel, "error", err)
			pause(ctx, eventPoll)
		}
	}
}

func (r *eventReader) subscription(ctx context.Context, channel string, wake chan struct{}) (err error) {
	defer recovered(&err)
	sub := r.redis.Subscribe(ctx, channel)
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		if stop() {
			_ = sub.Close()
		}
	}()
	for {
		m, err := sub.ReceiveTimeout(ctx, eventSilence)
		if err != nil {
			return err
		}
		if _, ok := m.(*redis.Message); ok {
			poke(wake)
		}
	}
}

// recovered makes a panic an error: the client takes some of what a Redis says for
// granted, and one in other hands must not end the agent.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("agent: Redis's answer cannot be read: %v", p)
	}
}

// trust takes over the key of the coordinator that the agent has a session with.
// With a new key what was refused since the last true event is looked at again, and
// its terms begin anew: the store that had the old key may be lost with it.
func (r *eventReader) trust(key ed25519.PublicKey) {
	if r.key.Equal(key) {
		return
	}
	r.key, r.told = key, map[string]bool{}
	if id := events.KeyID(key); id != r.cursor.Key {
		if r.cursor.Key != "" {
			r.log.Info("the coordinator signs events by another key", "key", id, "before", r.cursor.Key)
		}
		r.cursor = eventCursor{ID: r.cursor.Trusted, Trusted: r.cursor.Trusted, Key: id}
	}
}

// read takes what has come since the last entry and keeps the new place.
func (r *eventReader) read(ctx context.Context, stream string) (n int, err error) {
	defer recovered(&err)
	from := cmp.Or(r.cursor.ID, "0-0")
	res, err := r.redis.XRead(ctx, &redis.XReadArgs{Streams: []string{stream, from}, Count: eventBatch, Block: -1}).Result()
	if errors.Is(err, redis.Nil) {
		r.startOver(ctx, stream)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, s := range res {
		for _, e := range s.Messages {
			r.take(e)
			n++
		}
	}
	if err := saveCursor(r.path, r.cursor); err != nil {
		r.log.Warn("cannot keep the place in the event stream; it is read again after a restart", "error", err)
	}
	return n, nil
}

// startOver goes back to the beginning of a stream that ends before our place: it is
// another one, or one without the entry of a far future that somebody had put there
// to hide what follows. Terms and sequences tell what was handled.
func (r *eventReader) startOver(ctx context.Context, stream string) {
	if r.cursor.ID == "" {
		return
	}
	newest, err := r.redis.XRevRangeN(ctx, stream, "+", "-", 1).Result()
	if err != nil {
		r.log.Debug("the end of the event stream cannot be seen", "error", err)
		return
	}
	if len(newest) == 0 || compareIDs(newest[0].ID, r.cursor.ID) < 0 {
		r.log.Info("event stream ends before the last place, reading it from its start", "place", r.cursor.ID)
		r.cursor.ID, r.cursor.Trusted = "", ""
	}
}

// take handles one entry once: by term and sequence, because a coordinator may
// have written an entry twice and a restart may read one again.
func (r *eventReader) take(m redis.XMessage) {
	r.cursor.ID = m.ID
	e, err := events.Verify(r.key, r.federation, m.Values)
	last := &r.cursor
	if err == nil && (e.Term < last.Term || e.Term == last.Term && e.Sequence <= last.Sequence) {
		err = errRepeated
	}
	if err != nil {
		r.refuse(m.ID, err)
		return
	}
	if e.Term == last.Term && e.Sequence > last.Sequence+1 {
		missed := e.Sequence - last.Sequence - 1
		r.metrics.eventsMissed.Add(float64(missed))
		r.log.Warn("events were trimmed before they were read", "missed", missed, "term", e.Term, "sequence", e.Sequence)
	}
	last.Term, last.Sequence, last.Trusted = e.Term, e.Sequence, m.ID
	r.metrics.eventsRead.Inc()
	r.handle(e)
}

// refuse counts an entry that has no effect, and tells of the first of its kind.
func (r *eventReader) refuse(id string, err error) {
	reason := refusal(err)
	r.metrics.eventsRefused.WithLabelValues(reason).Inc()
	level := slog.LevelDebug
	switch {
	case r.told[reason]:
	case reason == refusedRepeated:
		level = slog.LevelInfo
	default:
		level = slog.LevelWarn
	}
	r.told[reason] = true
	r.log.Log(context.Background(), level, "event without effect; more of this kind are only counted", "reason", reason, "id", id, "error", err)
}

// loadCursor reads the place in the stream; a missing or damaged file means to
// start over, which dedupe and the nature of hints make harmless.
func loadCursor(path string, log *slog.Logger) eventCursor {
	var c eventCursor
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return c
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		log.Warn("place in the event stream is unreadable; reading it from its start", "file", path, "error", err)
		return eventCursor{}
	}
	return c
}

// saveCursor replaces the file without waiting for the disk: an older place
// after a power cut only means to read some hints again.
func saveCursor(path string, c eventCursor) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return os.Rename(tmp, path)
}
