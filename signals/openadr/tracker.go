package openadr

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"girassol.dev/signals/webhook"
)

// Tracker turns answers of GET /events, one after another, into messages: of
// events that are new or changed, and of those that are gone, which are cancelled.
// What it gives may be given again after a restart: messages are idempotent. It is
// not for concurrent use.
type Tracker struct {
	options Options
	known   map[string]tracked
}

type tracked struct {
	raw   []byte
	event Event
	// renew is when open demands are to be prolonged; zero if there are none.
	renew time.Time
}

// NewTracker knows no events yet.
func NewTracker(o Options) *Tracker {
	o.defaults()
	return &Tracker{options: o, known: map[string]tracked{}}
}

// Update takes a whole answer. An event that cannot be read or mapped is named in
// the error, and what is known of it stays; the others are mapped all the same.
// An answer that is no list of events changes nothing.
func (t *Tracker) Update(answer []byte, now time.Time) ([]webhook.Message, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(answer, &list); err != nil || list == nil {
		return nil, errors.Join(errors.New("openadr: the answer is no list of events"), err)
	}
	var out []webhook.Message
	var errs []error
	there := map[string]bool{}
	unreadable := false
	for _, raw := range list {
		e, err := ParseEvent(raw)
		if err != nil {
			errs = append(errs, err)
			unreadable = true
			continue
		}
		if there[e.ID] {
			errs = append(errs, fmt.Errorf("openadr: event %s is there twice", e.ID))
			continue
		}
		there[e.ID] = true
		messages, err := t.event(e, raw, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, messages...)
	}
	if unreadable {
		// One that is known may be the one that cannot be read: nothing is gone.
		return out, errors.Join(errs...)
	}
	gone := make([]string, 0, len(t.known))
	for id := range t.known {
		if !there[id] {
			gone = append(gone, id)
		}
	}
	slices.Sort(gone)
	for _, id := range gone {
		messages, err := Cancel(t.known[id].event, t.options, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		delete(t.known, id)
		out = append(out, messages...)
	}
	return out, errors.Join(errs...)
}

// event gives messages if there is something new in them.
func (t *Tracker) event(e Event, raw []byte, now time.Time) ([]webhook.Message, error) {
	last, known := t.known[e.ID]
	changed := !bytes.Equal(last.raw, raw)
	if known && !changed && (last.renew.IsZero() || now.Before(last.renew)) {
		return nil, nil
	}
	messages, err := Map(e, t.options, now)
	if err != nil {
		return nil, err
	}
	// What the server lists now is what holds now: an event that was away and
	// comes back must not lose to its cancellation.
	for i := range messages {
		messages[i].GeneratedAt = now
	}
	out := messages
	if known && changed {
		out = append(t.withdrawn(last.event, messages, now), messages...)
	}
	next := tracked{raw: slices.Clone(raw), event: e}
	if e.open(now) {
		next.renew = now.Add(t.options.MaxCurtailment / 2)
	}
	t.known[e.ID] = next
	return out, nil
}

// withdrawn cancels what the event said before and says no more.
func (t *Tracker) withdrawn(before Event, messages []webhook.Message, now time.Time) []webhook.Message {
	cancelled, err := Cancel(before, t.options, now)
	if err != nil {
		return nil // it could be mapped once
	}
	return slices.DeleteFunc(cancelled, func(c webhook.Message) bool {
		return slices.ContainsFunc(messages, func(m webhook.Message) bool { return m.Type == c.Type && m.Kind == c.Kind })
	})
}

// open says whether a demand of the event may be without an end.
func (e Event) open(now time.Time) bool {
	demands := slices.ContainsFunc(e.Intervals, func(i Interval) bool {
		return slices.ContainsFunc(i.Payloads, func(p Payload) bool { return isDemand(p.Type) })
	})
	if !demands {
		return false
	}
	spans, err := e.spans(now, 0)
	return err == nil && slices.ContainsFunc(spans, func(s span) bool { return s.until.IsZero() })
}
