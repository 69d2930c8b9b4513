package energy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"girassol.dev/signals/webhook"
)

const (
	// retention of a delivery: senders repeat theirs for three days and more.
	retention = 8 * 24 * time.Hour
	// perLeaf deliveries share a value, of which a source has mostLeaves: with more
	// the oldest go. Signatures age by themselves within minutes.
	perLeaf    = 256
	mostLeaves = 16
)

// deliveries of one source, oldest first.
type deliveries struct {
	leaves []leaf
	seen   map[string]taken
}

type leaf struct {
	number int
	taken  []taken
}

// taken is a delivery: when, a hash of its id, and the digest of its content.
type taken struct {
	at     int64 // Unix seconds
	id     string
	digest string
}

// MarshalJSON implements json.Marshaler.
func (t taken) MarshalJSON() ([]byte, error) { return json.Marshal([3]any{t.at, t.id, t.digest}) }

// UnmarshalJSON implements json.Unmarshaler.
func (t *taken) UnmarshalJSON(b []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	if len(raw) != 3 {
		return fmt.Errorf("a delivery of %d parts, want 3", len(raw))
	}
	for i, to := range []any{&t.at, &t.id, &t.digest} {
		if err := json.Unmarshal(raw[i], to); err != nil {
			return err
		}
	}
	return nil
}

func short(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

func leafKey(source string, number int) string {
	return kindSeen + "." + source + "." + strconv.Itoa(number)
}

// readDeliveries takes what can be read: a damaged leaf costs its deliveries.
func (s *state) readDeliveries() map[string]*deliveries {
	out := map[string]*deliveries{}
	for key, v := range s.items {
		parts := strings.Split(key, ".")
		if len(parts) != 3 || parts[0] != kindSeen {
			continue
		}
		number, err := strconv.Atoi(parts[2])
		l := leaf{number: number}
		if err == nil {
			err = json.Unmarshal(v, &l.taken)
		}
		if err == nil && len(l.taken) == 0 {
			continue
		}
		if err != nil {
			s.log.Warn("deliveries of pushed signals are damaged and forgotten", "key", key, "error", err)
			continue
		}
		of := out[parts[1]]
		if of == nil {
			of = &deliveries{seen: map[string]taken{}}
			out[parts[1]] = of
		}
		of.leaves = append(of.leaves, l)
		for _, t := range l.taken {
			of.seen[t.id] = t
		}
	}
	for _, of := range out {
		slices.SortFunc(of.leaves, func(a, b leaf) int { return a.number - b.number })
	}
	return out
}

// Seen implements webhook.Store.
func (s *state) Seen(_ context.Context, source, id string, now time.Time) (string, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.seen[source]
	if of == nil {
		return "", false, nil
	}
	t, ok := of.seen[short(id)]
	if !ok || now.Sub(time.Unix(t.at, 0)) > retention {
		return "", false, nil
	}
	return t.digest, true, nil
}

// kept is a stream's newest message.
type kept struct {
	Source      string          `json:"source"`
	Stream      string          `json:"stream"`
	Received    time.Time       `json:"received"`
	GeneratedAt time.Time       `json:"generatedAt"`
	Message     json.RawMessage `json:"message"`
}

func streamKey(source, stream string) string { return kindPushed + "." + source + "." + short(stream) }

// Commit implements webhook.Store. If it cannot be written, it is as if it had not
// been: the sender will repeat it.
func (s *state) Commit(ctx context.Context, c webhook.Commit) error {
	values := map[string][]byte{}
	for _, e := range c.Entries {
		b, err := json.Marshal(kept{e.Source, e.Stream, e.Received, e.GeneratedAt, e.Message})
		if err != nil {
			return fmt.Errorf("energy: pushed message of %s: %w", c.Source, err)
		}
		values[streamKey(c.Source, e.Stream)] = b
	}
	for _, stream := range c.Drop {
		values[streamKey(c.Source, stream)] = nil
	}
	s.mu.Lock()
	before := map[string][]byte{}
	apply := func(key string, v []byte) {
		if _, twice := before[key]; !twice {
			before[key] = s.items[key]
		}
		s.change(key, v)
	}
	for key, v := range values {
		apply(key, v)
	}
	old := s.seen[c.Source]
	if len(c.Deliveries) > 0 {
		if err := s.remember(c, old, apply); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	s.mu.Unlock()
	err := s.Flush(ctx)
	if err != nil {
		s.mu.Lock()
		for key, v := range before {
			s.change(key, v)
		}
		if old == nil {
			delete(s.seen, c.Source)
		} else {
			s.seen[c.Source] = old
		}
		s.mu.Unlock()
	}
	return err
}

// remember adds deliveries to the newest leaf and drops leaves that are past. The
// deliveries of before are left as they were.
func (s *state) remember(c webhook.Commit, old *deliveries, apply func(string, []byte)) error {
	next := &deliveries{seen: map[string]taken{}}
	if old != nil {
		next.leaves = slices.Clone(old.leaves)
	}
	for _, d := range c.Deliveries {
		last := len(next.leaves) - 1
		if last < 0 || len(next.leaves[last].taken) >= perLeaf {
			number := 0
			if last >= 0 {
				number = next.leaves[last].number + 1
			}
			next.leaves = append(next.leaves, leaf{number: number})
			last++
		}
		l := &next.leaves[last]
		l.taken = append(slices.Clip(l.taken), taken{c.At.Unix(), short(d.ID), d.Digest})
	}
	past := 0
	for past < len(next.leaves)-1 {
		l := next.leaves[past]
		if len(next.leaves)-past <= mostLeaves && c.At.Sub(time.Unix(l.taken[len(l.taken)-1].at, 0)) <= retention {
			break
		}
		apply(leafKey(c.Source, l.number), nil)
		past++
	}
	next.leaves = next.leaves[past:]
	had := map[int]int{}
	if old != nil {
		for _, l := range old.leaves {
			had[l.number] = len(l.taken)
		}
	}
	for _, l := range next.leaves {
		for _, t := range l.taken {
			next.seen[t.id] = t
		}
		if had[l.number] == len(l.taken) {
			continue
		}
		b, err := json.Marshal(l.taken)
		if err != nil {
			return fmt.Errorf("energy: deliveries of %s: %w", c.Source, err)
		}
		apply(leafKey(c.Source, l.number), b)
	}
	s.seen[c.Source] = next
	return nil
}

// pushedStore is the state as the webhook sees it, whose Load is another.
type pushedStore struct{ *state }

// Load implements webhook.Store.
func (p pushedStore) Load(context.Context) ([]webhook.Entry, error) {
	all, err := load[kept](p.state, kindPushed)
	out := []webhook.Entry{}
	for _, k := range all {
		out = append(out, webhook.Entry{Source: k.Source, Stream: k.Stream, Received: k.Received, GeneratedAt: k.GeneratedAt, Message: k.Message})
	}
	return out, err
}
