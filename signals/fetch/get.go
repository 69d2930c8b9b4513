package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

// result is Result of any type.
type result struct {
	value  any
	point  time.Time
	period time.Duration
	until  time.Time
}

// flight is a question on its way. It ends with its answer or when nobody waits
// for it any more.
type flight struct {
	done    chan struct{}
	value   any
	err     error
	waiters int
	cancel  context.CancelCauseFunc
}

// keys of what a question concerns, from wide to narrow.
type keys struct{ bucket, account, scope, question string }

// Get answers a question; decode turns a 2xx answer into values and may fail
// with a *signals.ProviderError that needs no more than reason and detail, any
// other error being a bad answer. All errors are *signals.ProviderError. The
// value is shared with others who ask the same and must not be changed.
func Get[T any](ctx context.Context, c *Client, r Request, decode func(Answer) (Result[T], error)) (T, error) {
	var zero T
	v, err := c.get(ctx, r, func(a Answer) (result, error) {
		d, err := decode(a)
		return result{d.Value, d.Point, d.Period, d.Until}, err
	})
	if err != nil {
		return zero, err
	}
	t, ok := v.(T)
	if !ok {
		return zero, r.fail(v1alpha1.ReasonSignalBadAnswer, "the same URL is decoded into %T and %T", v, zero)
	}
	return t, nil
}

// Forget drops the answer to a question, if it is still the one that drop says.
func (c *Client) Forget(r Request, drop func(value any) bool) {
	k, err := r.keys()
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k.question]; e != nil && drop(e.value) {
		delete(c.entries, k.question)
	}
}

// fail is a failure of the question.
func (r Request) fail(reason v1alpha1.Reason, format string, args ...any) *signals.ProviderError {
	return &signals.ProviderError{Provider: r.Provider, Region: r.Region, Endpoint: r.Endpoint,
		Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

func (r Request) keys() (keys, error) {
	k := keys{bucket: r.Bucket, account: r.Provider}
	if k.bucket == "" {
		u, err := url.Parse(r.URL)
		if err != nil {
			return k, errors.New("the question makes no URL")
		}
		k.bucket = u.Host
	}
	var err error
	if r.Auth != nil {
		var id string
		id, err = r.Auth.Identity()
		k.account += "|" + id
	}
	scope := r.Scope
	if scope == "" {
		scope = r.Region + "|" + r.Endpoint
	}
	k.scope = k.account + "|scope|" + scope
	k.question = k.account + "|url|" + r.URL + "|" + r.Variant
	return k, err
}

func (c *Client) get(ctx context.Context, r Request, decode func(Answer) (result, error)) (any, error) {
	k, err := r.keys()
	if err != nil {
		e := r.fail(v1alpha1.ReasonSignalUnauthorized, "%v", err)
		c.mu.Lock()
		log := c.hold("credential|"+r.Provider+"|"+r.Region, "credential|"+r.Provider+"|"+r.Region, e, c.config.Clock.Now(), 0, 0)
		c.mu.Unlock()
		log()
		return nil, e
	}
	if err := ctx.Err(); err != nil {
		return nil, c.gone(r, err)
	}
	c.mu.Lock()
	now := c.config.Clock.Now()
	if e := c.entries[k.question]; e != nil && now.Before(e.until) && !e.ahead(now) {
		c.mu.Unlock()
		c.reused.WithLabelValues(r.Provider).Inc()
		return e.value, nil
	}
	if err := c.blocked(r, k, now); err != nil {
		c.mu.Unlock()
		c.reused.WithLabelValues(r.Provider).Inc()
		return nil, err
	}
	f := c.flights[k.question]
	if f == nil {
		c.sweep(now)
		f = &flight{done: make(chan struct{})}
		fctx, cancel := context.WithCancelCause(context.Background())
		f.cancel = cancel
		c.flights[k.question] = f
		go c.run(fctx, f, r, k, decode)
	} else {
		defer c.reused.WithLabelValues(r.Provider).Inc()
	}
	f.waiters++
	c.mu.Unlock()

	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	if f.waiters--; f.waiters == 0 {
		f.cancel(ctx.Err())
		if c.flights[k.question] == f {
			delete(c.flights, k.question)
		}
	}
	c.mu.Unlock()
	return nil, c.gone(r, ctx.Err())
}

func (c *Client) gone(r Request, err error) error {
	e := r.fail(v1alpha1.ReasonSignalUnreachable, "no answer in the time that there was")
	e.Err = err
	return e
}

// blocked is the failure that still holds; the lock is held.
func (c *Client) blocked(r Request, k keys, now time.Time) error {
	for _, key := range []string{k.account, k.scope, k.question} {
		if s := c.states[key]; s != nil && s.err != nil && now.Before(s.until) {
			s.seen = now
			e := *s.err // held by others, too: it may name another region
			e.Region, e.RetryAt = r.Region, s.until
			return &e
		}
	}
	if b := c.buckets[k.bucket]; b != nil && now.Before(b.pause) {
		e := r.fail(v1alpha1.ReasonSignalRateLimited, "the provider asked for silence until %s", b.pause.UTC().Format(time.RFC3339))
		e.RetryAt = b.pause
		return e
	}
	return nil
}

// run makes the calls of a flight and keeps what comes of them.
func (c *Client) run(ctx context.Context, f *flight, r Request, k keys, decode func(Answer) (result, error)) {
	defer f.cancel(nil)
	c.mu.Lock()
	old := c.entries[k.question]
	tries := c.config.Tries
	for _, key := range []string{k.account, k.scope, k.question} {
		if s := c.states[key]; s != nil && s.err != nil {
			tries = 1 // it is failing already
		}
	}
	c.mu.Unlock()

	answer, res, err := c.ask(ctx, r, k, old, tries, decode)

	c.mu.Lock()
	now := c.config.Clock.Now()
	logs := []func(){}
	switch {
	case err == nil:
		f.value = res.value
		if until := c.goodUntil(res, old, now); until.After(now) {
			e := &entry{value: res.value, point: res.point, period: res.period, until: until,
				etag: answer.Header.Get("Etag"), lastModified: answer.Header.Get("Last-Modified")}
			if answer.Status == http.StatusNotModified && e.etag == "" && e.lastModified == "" {
				e.etag, e.lastModified = old.etag, old.lastModified
			}
			if old != nil && !res.point.After(old.point) {
				e.late = old.late + 1
			}
			c.entries[k.question] = e
		} else {
			delete(c.entries, k.question)
		}
		for _, key := range []string{k.account, k.scope, k.question, "credential|" + r.Provider + "|" + r.Region} {
			if s := c.states[key]; r.Login && s != nil && s.err != nil && s.err.Endpoint != r.Endpoint {
				continue // the account's tokens are refused, new ones tell nothing
			}
			logs = append(logs, c.recover(key, r, 0))
		}
		// Limits let calls through now and then.
		logs = append(logs, c.recover("host|"+k.bucket, r, mostRetry))
		if b := c.buckets[k.bucket]; b != nil {
			b.refused = nil
		}
	case err.elsewhere:
		f.err = err.ProviderError
	default:
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
			f.err = err.ProviderError // everybody left: it says nothing of the provider
			break
		}
		f.err = err.ProviderError
		c.failures.WithLabelValues(r.Provider, string(err.Reason)).Inc()
		logs = append(logs, c.place(r, k, err, now))
	}
	if c.flights[k.question] == f {
		delete(c.flights, k.question)
	}
	c.mu.Unlock()
	for _, log := range logs {
		log()
	}
	close(f.done)
}

// The pace of polling.
const (
	mostPollJitter = 15 * time.Second
	leastLateWait  = 5 * time.Second
)

// ahead says that an answer is good for longer than it was made to be: the clock
// was set back since.
func (e *entry) ahead(now time.Time) bool {
	return e.period > 0 && e.until.Sub(now) > 2*e.period+mostPollJitter
}

// goodUntil is when there should be something newer: at the end of the newest
// point, or, if that is past already, after a part of the period that grows while
// nothing newer comes.
func (c *Client) goodUntil(res result, old *entry, now time.Time) time.Time {
	switch {
	case !res.until.IsZero():
		return res.until
	case res.period <= 0:
		return time.Time{}
	}
	due := res.point.Add(res.period)
	if most := now.Add(2 * res.period); due.After(most) {
		due = most
	}
	if due.After(now) {
		return due.Add(time.Duration(c.config.Random() * float64(min(res.period/20, mostPollJitter))))
	}
	wait := res.period * 3 / 4 // it comes late as a rule
	if old != nil && !res.point.After(old.point) {
		wait = min(res.period/10<<min(old.late, 8), res.period/2)
	}
	return now.Add(c.jitter(max(wait, min(leastLateWait, res.period))))
}
