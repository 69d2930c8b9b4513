package broadcast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// NewClient returns a client for a URL such as "redis://127.0.0.1:6379/0" or
// "rediss://user:password@host:6380". It does not connect yet. What go-redis
// itself logs, one logger for the whole process, goes to log at debug level: the
// Publisher says what matters.
func NewClient(url string, log *slog.Logger) (redis.UniversalClient, error) {
	if url == "" {
		return nil, errURL
	}
	return Connect(Options{URL: url}, log)
}

// errURL does not quote the URL: it may hold a password.
var errURL = errors.New(`broadcast: the Redis URL must look like "redis://127.0.0.1:6379/0", with rediss:// for TLS`)

type debugLogger struct{ log *slog.Logger }

func (l debugLogger) Printf(ctx context.Context, format string, v ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, v...), "from", "go-redis")
	}
}

func (p *Publisher) readPage(ctx context.Context, end string) ([]redis.XMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return p.client.XRevRangeN(ctx, p.stream, end, "-", page).Result()
}
