package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"girassol.dev/api/signalpush"
)

// Streams are bounded by what a source may speak for and the kinds there are, but
// for those with an id of the sender's choice.
const (
	mostSeries = 1024
	// forget an ended stream with an id, which then no longer orders late messages.
	forget = 8 * 24 * time.Hour
)

// storeRetry is when to come again while the store fails.
const storeRetry = 5 * time.Second

func indexed(i int, err error) error { return fmt.Errorf("event %d: %w", i, err) }

// delivery is the identity of a request and what it carried. Without a signed id
// the content is the identity.
func delivery(c claim, f format, header http.Header, body []byte) Delivery {
	hash := sha256.New()
	if f == binaryFormat {
		for _, name := range binaryAttributes {
			fmt.Fprintf(hash, "%s: %q\n", name, header.Get(name))
		}
	}
	hash.Write(body)
	d := Delivery{Digest: hex.EncodeToString(hash.Sum(nil))}
	if c.signed != nil {
		d.ID = "delivery\n" + c.signed.ID
	} else {
		d.ID = "content\n" + d.Digest
	}
	return d
}

// identity of an event besides its delivery's; false if it has none.
func identity(s *sender, m Message) (Delivery, bool) {
	if m.ID == "" {
		return Delivery{}, false
	}
	d := Delivery{ID: "event\n" + m.ID, Digest: m.ID}
	if s.Decoder == nil { // a decoder's id has the version in it
		raw, err := json.Marshal(m)
		if err != nil {
			return Delivery{}, false
		}
		digest := sha256.Sum256(raw)
		d.Digest = hex.EncodeToString(digest[:])
	}
	return d, true
}

// accept takes a delivery once: it looks whether it was taken before, reads it,
// orders its messages, stores and then shows them. All or nothing.
func (h *Handler) accept(ctx context.Context, s *sender, d Delivery, now time.Time, read func() ([]Message, error)) ([]signalpush.Result, error) {
	s.accepting.Lock()
	defer s.accepting.Unlock()
	if err := h.ready(ctx); err != nil {
		return nil, unavailable(s, err)
	}
	seen, err := h.seen(ctx, s, d, now)
	if err != nil {
		return nil, err
	}
	if seen {
		h.metrics.ignored.WithLabelValues(s.Name, string(signalpush.Duplicate)).Inc()
		return []signalpush.Result{signalpush.Duplicate}, nil
	}
	messages, err := read()
	if err != nil {
		return nil, err
	}
	results, err := h.take(ctx, s, messages, []Delivery{d}, now)
	if err == nil && len(results) == 0 { // a notification that says nothing of energy
		results = []signalpush.Result{signalpush.Stored}
	}
	return results, err
}

// Push takes messages that came by another way than HTTP, such as from polling,
// from the source of that name. They are ordered and stored as if they had been
// pushed.
func (h *Handler) Push(ctx context.Context, source string, messages []Message) ([]signalpush.Result, error) {
	s := h.senders[source]
	if s == nil {
		return nil, fmt.Errorf("webhook: no source %q is configured", source)
	}
	for _, m := range messages {
		if err := m.check(); err != nil {
			return nil, fmt.Errorf("webhook: source %s: %w", source, err)
		}
		if !s.mayTarget(m.Target) {
			return nil, fmt.Errorf("webhook: source %s may not speak for %s", source, m.Target)
		}
	}
	s.accepting.Lock()
	defer s.accepting.Unlock()
	if err := h.ready(ctx); err != nil {
		return nil, fmt.Errorf("webhook: source %s: %w", source, unavailable(s, err))
	}
	results, err := h.take(ctx, s, messages, nil, h.config.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("webhook: source %s: %w", source, err)
	}
	return results, nil
}

// take orders, stores and shows messages; the sender is locked.
func (h *Handler) take(ctx context.Context, s *sender, messages []Message, deliveries []Delivery, now time.Time) ([]signalpush.Result, error) {
	c := Commit{Source: s.Name, At: now, Deliveries: deliveries}
	results := make([]signalpush.Result, len(messages))
	fresh := map[string]held{}
	inBatch := map[string]string{}
	var order []string
	for i, m := range messages {
		if id, ok := identity(s, m); ok {
			digest, again := inBatch[id.ID]
			if again && digest != id.Digest {
				return nil, indexed(i, reused())
			}
			if !again {
				var err error
				if again, err = h.seen(ctx, s, id, now); err != nil {
					return nil, err
				}
			}
			if again {
				results[i] = signalpush.Duplicate
				continue
			}
			inBatch[id.ID] = id.Digest
			c.Deliveries = append(c.Deliveries, id)
		}
		stream := m.stream()
		last, known := fresh[stream]
		if !known {
			last, known = h.last(s.Name, stream)
		}
		switch {
		case known && older(m, last.m):
			results[i] = signalpush.Superseded
		case m.expired(now):
			results[i] = signalpush.Expired
		default:
			results[i] = signalpush.Stored
			fresh[stream] = held{source: s.Name, received: now, m: m}
			order = append(order, stream)
		}
	}
	drop, err := h.room(s.Name, fresh, now)
	if err != nil {
		return nil, err
	}
	c.Drop = drop
	shown, err := h.commit(ctx, s, c, fresh, order)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		if r == signalpush.Stored {
			h.metrics.messages.WithLabelValues(s.Name, string(messages[i].Type)).Inc()
		} else {
			h.metrics.ignored.WithLabelValues(s.Name, string(r)).Inc()
		}
	}
	for _, kept := range shown {
		h.tell(kept)
	}
	return results, nil
}

// older says that a message must not replace the last one of its stream. Of two
// generated at once the one that ends the other wins, in any order.
func older(m, last Message) bool {
	return m.GeneratedAt.Before(last.GeneratedAt) || m.GeneratedAt.Equal(last.GeneratedAt) && last.ends() && !m.ends()
}

func reused() *refusal {
	return refuse(http.StatusConflict, reasonReused, "this id was used for something else: a new message needs a new id")
}

func (h *Handler) seen(ctx context.Context, s *sender, d Delivery, now time.Time) (bool, error) {
	digest, ok, err := h.config.Store.Seen(ctx, s.Name, d.ID, now)
	if err != nil {
		return false, unavailable(s, err)
	}
	if ok && digest != d.Digest {
		return false, reused()
	}
	return ok, nil
}

func unavailable(s *sender, err error) *refusal {
	s.log.Error("pushed messages cannot be stored", "error", err)
	return &refusal{http.StatusServiceUnavailable, reasonStore, "the message could not be stored, send it again", storeRetry}
}

func (h *Handler) last(source, stream string) (held, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept, ok := h.streams[source][stream]
	return kept, ok
}

// series says that a stream's name has an id of the sender's choice in it.
func (m Message) series() bool {
	return m.Series != "" || m.Type == TypeCurtailment && m.Curtailment.ID != ""
}

// room names the streams that can be forgotten, and refuses a message that would
// make too many.
func (h *Handler) room(source string, fresh map[string]held, now time.Time) (drop []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := map[Target]int{}
	for stream, kept := range h.streams[source] {
		if _, replaced := fresh[stream]; replaced || !kept.m.series() {
			continue
		}
		if (kept.m.ends() || kept.m.expired(now)) && now.Sub(kept.received) > forget {
			drop = append(drop, stream)
			continue
		}
		count[kept.m.Target]++
	}
	for _, kept := range fresh {
		if kept.m.series() {
			if count[kept.m.Target]++; count[kept.m.Target] > mostSeries {
				return nil, refuse(http.StatusUnprocessableEntity, reasonInvalid,
					fmt.Sprintf("more than %d curtailments and events for %s in %s", mostSeries, kept.m.Target, forget))
			}
		}
	}
	return drop, nil
}

// commit stores and then takes over what is fresh, in the order of its arrival.
func (h *Handler) commit(ctx context.Context, s *sender, c Commit, fresh map[string]held, order []string) ([]held, error) {
	var shown []held
	done := map[string]bool{}
	for _, stream := range order {
		if done[stream] {
			continue
		}
		done[stream] = true
		kept := fresh[stream]
		raw, err := json.Marshal(kept.m)
		if err != nil {
			return nil, refuse(http.StatusUnprocessableEntity, reasonInvalid, err.Error())
		}
		c.Entries = append(c.Entries, Entry{Source: s.Name, Stream: stream, Received: kept.received, GeneratedAt: kept.m.GeneratedAt, Message: raw})
		shown = append(shown, kept)
	}
	if err := h.config.Store.Commit(ctx, c); err != nil {
		return nil, unavailable(s, err)
	}
	for _, e := range c.Entries {
		h.hold(e.Stream, fresh[e.Stream])
	}
	h.mu.Lock()
	for _, stream := range c.Drop {
		delete(h.streams[s.Name], stream)
	}
	h.mu.Unlock()
	return shown, nil
}
