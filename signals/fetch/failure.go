package fetch

import (
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

// failure is a ProviderError with how to go on.
type failure struct {
	*signals.ProviderError
	// again says that another try at once may help.
	again bool
	// wait is what the server asked for.
	wait time.Duration
	// elsewhere says that it is held and logged already.
	elsewhere bool
	// own says that it is our own limit, not the provider's.
	own bool
}

// The pace of asking a provider that fails.
const (
	firstRetry     = 5 * time.Second
	leastMostRetry = time.Minute
	mostRetry      = 15 * time.Minute
	unknownPeriod  = 5 * time.Minute
	firstSilence   = 30 * time.Second
	recheck        = time.Hour
)

// mostErrors that are told apart while a failure lasts.
const mostErrors = 16

// place holds a failure where it belongs; the lock is held. It returns what logs
// it.
func (c *Client) place(r Request, k keys, f *failure, now time.Time) func() {
	period := r.Period
	if period <= 0 {
		period = unknownPeriod
	}
	most := min(max(period, leastMostRetry), mostRetry)
	switch f.Reason {
	case v1alpha1.ReasonSignalUnauthorized:
		return c.hold(k.account, k.account, f.ProviderError, now, most, f.wait)
	case v1alpha1.ReasonSignalRefused, v1alpha1.ReasonSignalNoData:
		return c.hold(k.question, k.scope, f.ProviderError, now, most, f.wait)
	case v1alpha1.ReasonSignalRateLimited:
		if f.own {
			return c.hold("host|"+k.bucket, "host|"+k.bucket, f.ProviderError, now, 0, 0)
		}
		b := c.bucket(r, k, now)
		wait := f.wait
		if wait == 0 {
			if b.refused == nil {
				b.refused = newBackoff(firstSilence, mostRetry)
			}
			wait = b.refused.NextBackOff()
		}
		// Later rather than sooner than asked for.
		b.pause = now.Add(wait + time.Duration(c.config.Random()*float64(wait)/5))
		f.RetryAt = b.pause
		return c.hold("host|"+k.bucket, "host|"+k.bucket, f.ProviderError, now, 0, 0)
	}
	return c.hold(k.scope, k.scope, f.ProviderError, now, most, f.wait)
}

// hold answers the same question with the same error for a while: an hour if it
// is permanent, else by backoff up to most and at least what the server asked
// for; most 0 holds nothing and only logs. The second key is what the log speaks
// of: questions of one scope that fail one after the other are one failure. The
// lock is held. It returns what logs.
func (c *Client) hold(key, logKey string, e *signals.ProviderError, now time.Time, most, asked time.Duration) func() {
	s := c.state(key, now)
	switch {
	case most == 0:
	case e.Permanent:
		s.err, s.until = e, now.Add(c.jitter(recheck))
		e.RetryAt = s.until
	default:
		if s.backoff == nil {
			s.backoff = newBackoff(min(firstRetry, most), most)
		}
		s.err, s.until = e, now.Add(max(c.jitter(s.backoff.NextBackOff()), asked))
		e.RetryAt = s.until
	}
	l := c.state(logKey, now)
	l.count++
	said := string(e.Reason)
	if l.logged[said] || len(l.logged) >= mostErrors {
		return func() {}
	}
	l.logged[said] = true
	shown, count, log := *e, l.count, c.log
	return func() {
		log.Warn("provider of signals failed", "provider", shown.Provider, "region", shown.Region, "endpoint", shown.Endpoint,
			"reason", shown.Reason, "permanent", shown.Permanent, "error", shown.Error(), "failures", count)
	}
}

func (c *Client) state(key string, now time.Time) *state {
	s := c.states[key]
	if s == nil {
		s = &state{logged: map[string]bool{}}
		c.states[key] = s
	}
	s.seen = now
	return s
}

// recover ends a failure that was not seen again for quiet; the lock is held.
func (c *Client) recover(key string, r Request, quiet time.Duration) func() {
	s := c.states[key]
	if s == nil || c.config.Clock.Now().Sub(s.seen) < quiet {
		return func() {}
	}
	delete(c.states, key)
	if len(s.logged) == 0 {
		return func() {}
	}
	log, count := c.log, s.count
	return func() {
		log.Info("provider of signals recovered", "provider", r.Provider, "region", r.Region, "endpoint", r.Endpoint, "failures", count)
	}
}
