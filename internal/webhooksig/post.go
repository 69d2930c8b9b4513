package webhooksig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Post is one message to deliver.
type Post struct {
	// Client must not follow redirects: a signed message is for one address.
	Client      *http.Client
	URL         string
	Secrets     []Secret
	ID          string
	ContentType string
	Body        []byte
	// Header is sent along; may be nil.
	Header http.Header
	// Tries at most. Default 5.
	Tries int
	// FirstWait doubles between tries, up to MaxWait; defaults 1 s and 30 s. A
	// receiver that asks for more with Retry-After gets it, up to MaxWait.
	FirstWait, MaxWait time.Duration
	// Waiting is told of each wait, with what happened; may be nil.
	Waiting func(why error, wait time.Duration)
}

// Response is the receiver's last word.
type Response struct {
	Status int
	Body   []byte
	Tries  int
}

const maxResponse = 64 << 10

// Do delivers: it tries again after network errors and where the receiver says
// that it is busy (408, 429, 5xx), with the same id and a fresh timestamp. Any
// other answer is the last. The error is that of the last try; a Response with
// Status 0 says that there was no answer.
func (p Post) Do(ctx context.Context) (Response, error) {
	if p.Tries <= 0 {
		p.Tries = 5
	}
	if p.FirstWait <= 0 {
		p.FirstWait = time.Second
	}
	if p.MaxWait <= 0 {
		p.MaxWait = 30 * time.Second
	}
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(p.FirstWait),
		backoff.WithMaxInterval(p.MaxWait), backoff.WithMaxElapsedTime(0))
	for try := 1; ; try++ {
		response, after, err := p.once(ctx)
		response.Tries = try
		busy := response.Status == http.StatusRequestTimeout || response.Status == http.StatusTooManyRequests || response.Status >= 500
		if err == nil && !busy || try >= p.Tries || ctx.Err() != nil {
			return response, err
		}
		wait := max(pause.NextBackOff(), min(after, p.MaxWait))
		if p.Waiting != nil {
			why := err
			if why == nil {
				why = fmt.Errorf("it answered %d %s", response.Status, http.StatusText(response.Status))
			}
			p.Waiting(why, wait)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return response, errors.Join(err, context.Cause(ctx))
		}
	}
}

func (p Post) once(ctx context.Context) (Response, time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, bytes.NewReader(p.Body))
	if err != nil {
		return Response{}, 0, err
	}
	for name, values := range p.Header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", p.ContentType)
	now := time.Now()
	Set(req.Header, p.Secrets, p.ID, now, p.Body)
	resp, err := p.Client.Do(req)
	if err != nil {
		return Response{}, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		// The status has arrived, and that is what counts.
		body = nil
	}
	return Response{Status: resp.StatusCode, Body: body}, retryAfter(resp.Header.Get("Retry-After"), now), nil
}

// retryAfter reads seconds or an HTTP date; 0 for none.
func retryAfter(s string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(s, 10, 32); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
