package broadcast

import (
	"context"

	"github.com/redis/go-redis/v9"
)

func (p *Publisher) readPage(ctx context.Context, end string) ([]redis.XMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return p.client.XRevRangeN(ctx, p.stream, end, "-", page).Result()
}
