package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

// firstAgain is the wait before the second of the tries of one question.
const firstAgain = 500 * time.Millisecond

// mostTokenWait is how long a question waits for the rate limit.
const mostTokenWait = 5 * time.Second

// ask calls until there is an answer or another try would be of no use.
func (c *Client) ask(ctx context.Context, r Request, k keys, old *entry, tries int,
	decode func(Answer) (result, error)) (Answer, result, *failure) {
	again := newBackoff(firstAgain, mostTokenWait)
	var before *failure
	for try := 1; ; try++ {
		a, secrets, f := c.authorized(ctx, r, k, old)
		if f != nil && f.own && before != nil {
			return a, result{}, before // which is why it was asked again
		}
		if f == nil {
			var res result
			if res, f = c.decoded(r, a, old, secrets, decode); f == nil {
				return a, res, nil
			}
		}
		f.Detail = scrub(f.Detail, secrets)
		if !f.again || f.wait > 0 || try >= tries || !pause(ctx, c.config.Clock, c.jitter(again.NextBackOff())) {
			return a, result{}, f
		}
		before = f
	}
}

// decoded reads a good answer.
func (c *Client) decoded(r Request, a Answer, old *entry, secrets []string, decode func(Answer) (result, error)) (result, *failure) {
	if a.Status == http.StatusNotModified && old != nil {
		return result{value: old.value, point: old.point, period: old.period}, nil
	}
	if f := contentType(r, a); f != nil {
		return result{}, f
	}
	res, err := decode(a)
	if err == nil {
		return res, nil
	}
	var own *signals.ProviderError
	if !errors.As(err, &own) {
		own = &signals.ProviderError{Reason: v1alpha1.ReasonSignalBadAnswer, Detail: excerpt([]byte(scrub(err.Error(), secrets)))}
	}
	return result{}, &failure{ProviderError: r.complete(own, a.Status)}
}

// complete fills in what the question knows.
func (r Request) complete(e *signals.ProviderError, status int) *signals.ProviderError {
	full := *e
	full.Provider, full.Status = r.Provider, status
	if full.Region == "" {
		full.Region = r.Region
	}
	if full.Endpoint == "" {
		full.Endpoint = r.Endpoint
	}
	return &full
}

// authorized is one call with credentials, and another with renewed ones after a
// 401.
func (c *Client) authorized(ctx context.Context, r Request, k keys, old *entry) (Answer, []string, *failure) {
	var refused *failure
	var spent []string
	for renewed := false; ; renewed = true {
		header := http.Header{}
		var secrets []string
		if r.Auth != nil {
			var err error
			if secrets, err = r.Auth.Authorize(ctx, header); err != nil {
				f := r.unauthorized(err)
				if refused != nil && f.Reason == v1alpha1.ReasonSignalRateLimited {
					// No login is left to try with: the refusal is what counts.
					refused.Permanent = false
					return Answer{}, spent, refused
				}
				return Answer{}, nil, f
			}
		}
		a, f := c.call(ctx, r, k, header, old, secrets)
		if f == nil {
			if a.Status >= 300 { // some repeat what they refuse
				a.Body = []byte(scrub(string(a.Body), secrets))
			}
			f = r.classify(a)
		}
		if f == nil || f.Status != http.StatusUnauthorized {
			return a, secrets, f
		}
		renewer, ok := r.Auth.(Renewer)
		if !ok {
			return a, secrets, f
		}
		if renewed {
			f.Permanent = false
			f.Detail = "refuses a token that it gave a moment ago: " + f.Detail
			return a, secrets, f
		}
		if err := renewer.Renew(ctx, secrets); err != nil {
			return a, secrets, r.unauthorized(err)
		}
		refused, spent = f, secrets
	}
}

// unauthorized passes the failure of an authorizer on: held already if it comes
// from a question of its own.
func (r Request) unauthorized(err error) *failure {
	var own *signals.ProviderError
	if errors.As(err, &own) {
		e := *own
		e.Region = r.Region
		return &failure{ProviderError: &e, elsewhere: true}
	}
	return &failure{ProviderError: r.fail(v1alpha1.ReasonSignalUnauthorized, "%v", err)}
}

// bucket of the question; the lock is held.
func (c *Client) bucket(r Request, k keys, now time.Time) *bucket {
	b := c.buckets[k.bucket]
	if b == nil {
		b = newBucket(r.Limit, now)
		c.buckets[k.bucket] = b
	}
	return b
}

// turn waits for the rate limit.
func (c *Client) turn(ctx context.Context, r Request, k keys) *failure {
	c.mu.Lock()
	now := c.config.Clock.Now()
	b := c.bucket(r, k, now)
	wait, ok := b.reserve(now, mostTokenWait)
	c.mu.Unlock()
	if !ok {
		f := &failure{own: true, ProviderError: r.fail(v1alpha1.ReasonSignalRateLimited,
			"our own limit of %d calls and then one each %s is used up", b.limit.Burst, b.limit.Every)}
		f.RetryAt = now.Add(wait)
		return f
	}
	if !pause(ctx, c.config.Clock, wait) {
		c.mu.Lock()
		b.giveBack()
		c.mu.Unlock()
		return &failure{ProviderError: r.fail(v1alpha1.ReasonSignalUnreachable, "no time left to ask")}
	}
	return nil
}

// call makes one HTTP call.
func (c *Client) call(ctx context.Context, r Request, k keys, header http.Header, old *entry, secrets []string) (Answer, *failure) {
	if f := c.turn(ctx, r, k); f != nil {
		return Answer{}, f
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return Answer{}, &failure{ProviderError: r.fail(v1alpha1.ReasonSignalRefused, "the question makes no URL")}
	}
	if len(secrets) > 0 && req.URL.Scheme != "https" && !r.AllowPlain && !loopback(req.URL.Hostname()) {
		f := &failure{ProviderError: r.fail(v1alpha1.ReasonSignalUnauthorized,
			"credentials are not sent to %s over plain http: use https", req.URL.Host)}
		f.Permanent = true
		return Answer{}, f
	}
	req.Header = header
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.config.UserAgent)
	if old != nil && old.etag != "" {
		req.Header.Set("If-None-Match", old.etag)
	} else if old != nil && old.lastModified != "" {
		req.Header.Set("If-Modified-Since", old.lastModified)
	}
	resp, err := c.http.Do(req)
	if err == nil {
		defer resp.Body.Close()
		var body []byte
		if body, err = io.ReadAll(io.LimitReader(resp.Body, c.config.MaxBody+1)); err == nil {
			c.requests.WithLabelValues(r.Provider, code(resp.StatusCode)).Inc()
			if int64(len(body)) > c.config.MaxBody {
				return Answer{}, &failure{ProviderError: r.complete(&signals.ProviderError{Reason: v1alpha1.ReasonSignalBadAnswer,
					Detail: fmt.Sprintf("the answer has more than %d bytes", c.config.MaxBody)}, resp.StatusCode)}
			}
			return Answer{Status: resp.StatusCode, Header: resp.Header, Body: body, Received: c.config.Clock.Now()}, nil
		}
	}
	return Answer{}, c.broken(ctx, r, err, secrets)
}

// code is a metric label of few values.
func code(status int) string {
	if status < 100 || status > 599 {
		return "error"
	}
	return strconv.Itoa(status)
}

// broken is a call without an answer. The library's error is not wrapped: it
// shows the URL.
func (c *Client) broken(ctx context.Context, r Request, err error, secrets []string) *failure {
	if ctx.Err() != nil {
		c.requests.WithLabelValues(r.Provider, "timeout").Inc()
		f := &failure{ProviderError: r.fail(v1alpha1.ReasonSignalUnreachable, "no whole answer within %s", c.config.Timeout)}
		f.Err = ctx.Err()
		return f // no second try: it would take as long
	}
	c.requests.WithLabelValues(r.Provider, "error").Inc()
	if errors.Is(err, errRedirect) {
		return &failure{ProviderError: r.fail(v1alpha1.ReasonSignalBadAnswer, "%v", errRedirect)}
	}
	if outer := (*url.Error)(nil); errors.As(err, &outer) {
		err = outer.Err // without the URL
	}
	return &failure{again: true, ProviderError: r.fail(v1alpha1.ReasonSignalUnreachable, "%s", excerpt([]byte(scrub(err.Error(), secrets))))}
}

// classify gives an answer that is not 2xx its meaning.
func (r Request) classify(a Answer) *failure {
	if a.Status >= 200 && a.Status < 300 || a.Status == http.StatusNotModified {
		return nil
	}
	f := &failure{wait: retryAfter(a.Header, a.Received)}
	if r.Classify != nil {
		if e := r.Classify(a); e != nil {
			f.ProviderError = r.complete(e, a.Status)
			f.again = a.Status >= 500
			return f
		}
	}
	e := &signals.ProviderError{Detail: Remark(a)}
	switch s := a.Status; {
	case s == http.StatusUnauthorized:
		e.Reason, e.Permanent = v1alpha1.ReasonSignalUnauthorized, true
	case s == http.StatusForbidden && IsJSON(a):
		e.Reason, e.Permanent = v1alpha1.ReasonSignalNotCovered, true
		e.Detail = fmt.Sprintf("the account's plan does not cover region %s: %s", r.Region, e.Detail)
	case s == http.StatusForbidden:
		// A gate in front of the provider; it may open again.
		e.Reason = v1alpha1.ReasonSignalBadAnswer
	case s == http.StatusTooManyRequests:
		e.Reason = v1alpha1.ReasonSignalRateLimited
	case s == http.StatusRequestTimeout || s >= 500:
		e.Reason, f.again = v1alpha1.ReasonSignalUnreachable, true
	case s >= 400:
		e.Reason, e.Permanent = v1alpha1.ReasonSignalRefused, true
	default:
		e.Reason = v1alpha1.ReasonSignalBadAnswer
	}
	f.ProviderError = r.complete(e, a.Status)
	return f
}

// contentType refuses what says of itself that it is not JSON.
func contentType(r Request, a Answer) *failure {
	if len(a.Body) == 0 || a.Header.Get("Content-Type") == "" || IsJSON(a) {
		return nil
	}
	kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err == nil && kind == "text/plain" && len(a.Body) > 0 && (a.Body[0] == '{' || a.Body[0] == '[') {
		return nil // mislabelled by a cache
	}
	return &failure{ProviderError: r.complete(&signals.ProviderError{Reason: v1alpha1.ReasonSignalBadAnswer,
		Detail: fmt.Sprintf("%s where JSON was expected", excerpt([]byte(a.Header.Get("Content-Type"))))}, a.Status)}
}
