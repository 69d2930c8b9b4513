package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"girassol.dev/api/events"
)

// eventPoll is how often the stream is read without a wake-up; eventBatch how
// much one read takes. A blocking read would hold up the agent's end: the client
// cannot interrupt one.
const (
	eventPoll  = 2 * time.Second
	eventBatch = 256
)

// eventReader follows a federation's event stream from the last entry that it
// handled, which it keeps on disk. What it reads are hints: Redis may be gone for
// any time without a round noticing.
type eventReader struct {
	redis      redis.UniversalClient
	federation string
	path       string
	backoff    func() time.Duration // next wait after a failure
	reset      func()               // after a success
	handle     func(events.Event)
	metrics    *metrics
	log        *slog.Logger

	cursor eventCursor
}

// eventCursor is what the reader has handled.
type eventCursor struct {
	ID       string `json:"id"`
	Term     uint64 `json:"term"`
	Sequence uint64 `json:"sequence"`
}

// run reads until the context ends.
func (r *eventReader) run(ctx context.Context) {
	r.cursor = loadCursor(r.path, r.log)
	stream := events.Stream(r.federation)
	sub := r.redis.Subscribe(ctx, stream)
	// A lost wake-up costs no more than the poll.
	wake := sub.Channel(redis.WithChannelSize(1))
	defer func() {
		_ = sub.Close()
		for range wake { // the client's goroutine may be about to send
		}
	}()
	failing := false
	for ctx.Err() == nil {
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
		case <-t.C:
		}
		t.Stop()
	}
}

// read takes what has come since the last entry and keeps the new place.
func (r *eventReader) read(ctx context.Context, stream string) (n int, err error) {
	from := r.cursor.ID
	if from == "" {
		from = "0-0"
	}
	res, err := r.redis.XRead(ctx, &redis.XReadArgs{Streams: []string{stream, from}, Count: eventBatch, Block: -1}).Result()
	if errors.Is(err, redis.Nil) {
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

// take handles one entry once: by term and sequence, because a coordinator may
// have written an entry twice and a restart may read one again.
func (r *eventReader) take(m redis.XMessage) {
	r.cursor.ID = m.ID
	text, _ := m.Values[events.Field].(string)
	e, err := events.Parse(text)
	if err != nil {
		r.log.Warn("unreadable event skipped", "id", m.ID, "error", err)
		return
	}
	if e.Federation != r.federation {
		r.log.Warn("event of another federation skipped", "id", m.ID, "federation", e.Federation)
		return
	}
	last := r.cursor
	if e.Term < last.Term || e.Term == last.Term && e.Sequence <= last.Sequence {
		return
	}
	if e.Term == last.Term && e.Sequence > last.Sequence+1 {
		missed := e.Sequence - last.Sequence - 1
		r.metrics.eventsMissed.Add(float64(missed))
		r.log.Warn("events were trimmed before they were read", "missed", missed, "term", e.Term, "sequence", e.Sequence)
	}
	r.cursor.Term, r.cursor.Sequence = e.Term, e.Sequence
	r.metrics.eventsRead.Inc()
	r.handle(e)
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
