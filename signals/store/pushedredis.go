package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"girassol.dev/signals/webhook"
)

// PushedRedis keeps what was pushed by webhook in Redis: a key per delivery that
// expires by itself, and a hash of the streams' newest messages. Several
// processes may share it. It is as durable as the Redis is: see its appendfsync.
type PushedRedis struct {
	client    redis.UniversalClient
	prefix    string
	retention time.Duration
}

// NewPushedRedis uses keys that begin with prefix, for example
// "girassol:demo:pushed". The client stays the caller's. Retention 0 is
// PushedRetention; the least is a day.
func NewPushedRedis(client redis.UniversalClient, prefix string, retention time.Duration) (*PushedRedis, error) {
	if retention == 0 {
		retention = PushedRetention
	}
	if retention < leastRetention {
		return nil, fmt.Errorf("store: pushed messages: retention %s, the least is %s", retention, leastRetention)
	}
	if prefix == "" {
		return nil, errors.New("store: pushed messages: no prefix for the keys in Redis")
	}
	// The braces keep all keys in one slot of a cluster: Commit is one script.
	return &PushedRedis{client: client, prefix: "{" + prefix + "}", retention: retention}, nil
}

func (r *PushedRedis) delivery(source, id string) string {
	sum := shorten(id)
	return r.prefix + ":delivery:" + source + ":" + hex.EncodeToString(sum[:])
}

func (r *PushedRedis) streams() string { return r.prefix + ":streams" }

// Seen implements webhook.Store; Redis forgets by its own clock.
func (r *PushedRedis) Seen(ctx context.Context, source, id string, _ time.Time) (string, bool, error) {
	digest, err := r.client.Get(ctx, r.delivery(source, id)).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("store: deliveries of source %s in Redis: %w", source, err)
	}
	return digest, true, nil
}

// commit writes deliveries (KEYS[2..], their digests from ARGV[4]), then streams
// (triples of field, order and content behind them) unless another process has
// written something generated later, then drops what is left of ARGV.
var commit = redis.NewScript(`
local ttl, deliveries, entries = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local at = 3
for i = 1, deliveries do
  at = at + 1
  redis.call('SET', KEYS[i + 1], ARGV[at], 'PX', ttl)
end

for i = 1, entries do
  local field, order, content = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  at = at + 3
  local old = redis.call('HGET', KEYS[1], field)
  local _ = (not old or string.sub(old, 1, #order) <= order) and redis.call('HSET', KEYS[1], field, order .. content)
end

for i = at + 1, #ARGV do
  redis.call('HDEL', KEYS[1], ARGV[i])
end
return 1
`)

// orderSize is the length of a time's form that sorts as text: Unix nanoseconds of
// the years that messages may have.
const orderSize = 20

func order(t time.Time) string { return fmt.Sprintf("%0*d", orderSize, t.UnixNano()) }

func field(source, stream string) string { return source + "\n" + stream }

// Commit implements webhook.Store: all or nothing.
func (r *PushedRedis) Commit(ctx context.Context, c webhook.Commit) error {
	keys := []string{r.streams()}
	args := []any{r.retention.Milliseconds(), len(c.Deliveries), len(c.Entries)}
	for _, d := range c.Deliveries {
		keys = append(keys, r.delivery(c.Source, d.ID))
		args = append(args, d.Digest)
	}
	for _, e := range c.Entries {
		raw, err := json.Marshal(entry{Version: version, Source: e.Source, Stream: e.Stream,
			Received: e.Received, GeneratedAt: e.GeneratedAt, Message: e.Message})
		if err != nil {
			return fmt.Errorf("store: pushed message of source %s: %w", c.Source, err)
		}
		args = append(args, field(e.Source, e.Stream), order(e.GeneratedAt), string(raw))
	}
	for _, stream := range c.Drop {
		args = append(args, field(c.Source, stream))
	}
	if err := commit.Run(ctx, r.client, keys, args...).Err(); err != nil {
		return fmt.Errorf("store: pushed messages of source %s in Redis: %w", c.Source, err)
	}
	return nil
}

// Load implements webhook.Store.
func (r *PushedRedis) Load(ctx context.Context) ([]webhook.Entry, error) {
	all, err := r.client.HGetAll(ctx, r.streams()).Result()
	if err != nil {
		return nil, fmt.Errorf("store: pushed messages in Redis: %w", err)
	}
	out := []webhook.Entry{} // not nil: it could be looked
	var damage []error
	for name, value := range all {
		var e entry
		err := errors.New("it is too short")
		if len(value) > orderSize {
			err = json.Unmarshal([]byte(value[orderSize:]), &e)
		}
		switch {
		case err != nil:
		case e.Version != version:
			err = fmt.Errorf("version %d, this program reads %d", e.Version, version)
		case field(e.Source, e.Stream) != name:
			err = errors.New("it belongs elsewhere")
		}
		if err != nil {
			damage = append(damage, fmt.Errorf("store: pushed message %q in Redis hash %s: %w (remove it to start without)", name, r.streams(), err))
			continue
		}
		out = append(out, webhook.Entry{Source: e.Source, Stream: e.Stream, Received: e.Received, GeneratedAt: e.GeneratedAt, Message: e.Message})
	}
	return out, errors.Join(damage...)
}
