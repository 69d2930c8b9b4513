package director

import (
	"context"
	"sync"
	"time"

	"girassol.dev/signals"
)

// evidenceWait is how long a new reading waits for the sources beside it, in
// real time: one that hangs costs its site this much once.
const evidenceWait = 300 * time.Millisecond

// asker is evidence of either type.
type asker interface {
	run(ctx context.Context)
	// ask asks anew; the answer is there when done is closed. Nil: it is not worth
	// waiting for.
	ask() (done <-chan struct{})
	// forsake stops waiting for it until it has answered.
	forsake()
	called() string
}

// evidence is a source beside a site's own: what it said last. It is asked with
// each reading, each call in a goroutine of its own.
type evidence[T any] struct {
	name string
	site *site
	call func(ctx context.Context) (T, error)
	// sound says that an answer together with an error is one all the same, and
	// due until when it holds, zero if that cannot be told.
	sound func(T) bool
	until func(T) time.Time

	wanted chan chan struct{}

	failed outage // run's

	mu sync.Mutex
	// last is nil before the first answer.
	last    *T
	problem string
	// waited is false after it was forsaken and until it answers.
	waited bool
}

func newEvidence[T any](s *site, name string, call func(ctx context.Context) (T, error), sound func(T) bool, until func(T) time.Time) *evidence[T] {
	e := &evidence[T]{name: name, site: s, call: call, sound: sound, until: until, wanted: make(chan chan struct{}, 1), waited: true}
	s.asked = append(s.asked, e)
	return e
}

func readings(s *site, name string, from Source) *evidence[signals.Reading] {
	if from == nil {
		return nil
	}
	return newEvidence(s, name, from.Latest, func(signals.Reading) bool { return false },
		func(r signals.Reading) time.Time { return r.ValidUntil() })
}

func forecasts(s *site, from signals.Forecaster) *evidence[signals.Forecast] {
	if from == nil {
		return nil
	}
	return newEvidence(s, "forecast", from.Forecast, func(f signals.Forecast) bool { return len(f.Points) > 0 },
		func(signals.Forecast) time.Time { return time.Time{} })
}

// get is the last answer, nil without one. A nil evidence has none.
func (e *evidence[T]) get() *T {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

func (e *evidence[T]) failing() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem
}

func (e *evidence[T]) called() string { return e.name }

func (e *evidence[T]) ask() <-chan struct{} {
	done := make(chan struct{})
	select {
	case e.wanted <- done:
	default:
		return nil // a call hangs, and another is to follow
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.waited {
		return nil
	}
	return done
}

func (e *evidence[T]) forsake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waited = false
}

// run asks when wanted, and again with backoff while it fails or is behind.
func (e *evidence[T]) run(ctx context.Context) {
	var retry signals.Timer
	stop := func() {
		if retry != nil {
			retry.Stop()
		}
		retry = nil
	}
	defer stop()
	clock := e.site.director.config.Clock
	failures := 0
	for {
		var due <-chan time.Time
		if retry != nil {
			due = retry.C()
		}
		var done chan struct{}
		select {
		case done = <-e.wanted:
		case <-due:
			floor := time.NewTimer(e.site.jitter(backoff(failures, firstRealRetry, lastRealRetry)))
			select {
			case <-floor.C:
			case done = <-e.wanted:
			case <-ctx.Done():
			}
			floor.Stop()
		case <-ctx.Done():
			return
		}
		stop()
		if ctx.Err() != nil {
			return
		}
		call, cancel := context.WithTimeout(ctx, e.site.director.config.CallTimeout)
		v, err := e.call(call)
		cancel()
		if ctx.Err() != nil {
			return
		}
		late := e.keep(v, err) || done == nil
		if done != nil {
			close(done)
		}
		if late {
			e.site.look()
		}
		until := e.until(v)
		if err == nil && (until.IsZero() || until.After(clock.Now())) {
			failures = 0
			continue
		}
		failures++
		retry = clock.NewTimer(e.site.jitter(backoff(failures, unknownPeriod/10, unknownPeriod)))
	}
}

// keep takes an answer and says whether nobody waits for it.
func (e *evidence[T]) keep(v T, err error) (late bool) {
	text := ""
	if err != nil {
		text = err.Error()
		e.site.director.metrics.evidenceErrors.WithLabelValues(e.site.Name, e.name).Inc()
	}
	e.site.outage(&e.failed, text, "source of the "+e.name+" failed")
	e.mu.Lock()
	defer e.mu.Unlock()
	e.problem = text
	if err == nil || e.sound(v) {
		e.last = &v
	}
	late = !e.waited
	e.waited = err == nil
	return late
}

// gather asks all that may speak for or against a reading; wait returns when
// they have answered or have had their time.
func (s *site) gather(ctx context.Context) (wait func()) {
	type pending struct {
		asker
		done <-chan struct{}
	}
	var all []pending
	for _, e := range s.asked {
		if done := e.ask(); done != nil {
			all = append(all, pending{e, done})
		}
	}
	return func() {
		if len(all) == 0 {
			return
		}
		timer := time.NewTimer(evidenceWait)
		defer timer.Stop()
		over := false
		for _, p := range all {
			if !over {
				select {
				case <-p.done:
					continue
				case <-timer.C:
					over = true
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-p.done:
			default:
				p.forsake()
			}
		}
	}
}
