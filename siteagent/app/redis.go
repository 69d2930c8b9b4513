package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"girassol.dev/internal/redislink"
)

// connectRedis makes the client of the event reader; nil where no Redis is named.
func connectRedis(o redislink.Options, dial func(context.Context) (net.Conn, error), log *slog.Logger) (redis.UniversalClient, error) {
	o = o.Over(redislink.Options{})
	o.URL = strings.TrimSpace(o.URL)
	if o.PasswordInURL() {
		log.Warn("the password in --redis can be read by everyone on this machine: use --redis-password-file, or set " + redislink.URLVariable)
	}
	if !o.Configured() {
		o.URL = strings.TrimSpace(os.Getenv(redislink.URLVariable))
	}
	switch {
	case !o.Configured() && o.Named():
		return nil, errors.New("--redis-*: say how to reach Redis but not where: give --redis or --redis-address")
	case !o.Configured():
		return nil, nil
	}
	// An unreachable Redis must not hold up the agent's end.
	o.Dial, o.DialTimeout = dial, 2*time.Second
	client, err := redislink.Connect(o, log)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	return client, nil
}
