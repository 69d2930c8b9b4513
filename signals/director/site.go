package director

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// site is one site's loops: poll asks the source, one asks each source beside
// it, decide owns what is remembered, send delivers wishes. A source or
// membership call that hangs holds up its own loop only, so a signal still goes
// stale in time.
type site struct {
	Site
	director *Director
	log      *slog.Logger
	polled   chan poll
	mailbox  chan Wish // the newest wish only
	// again wakes decide, hurry wakes poll.
	again, hurry chan struct{}

	// What speaks for or against readings; nil where there is none.
	second, price, share *evidence[signals.Reading]
	forecast             *evidence[signals.Forecast]
	asked                []asker

	// These are decide's, and Run's before it starts.
	state  window.State
	sanity sanity.State
	in     bool // as last told
	judged judgement
	// savedSanity is in the store; counted are the point and class that the
	// metric has.
	savedSanity  sanity.State
	countedPoint time.Time
	counted      sanity.Class
	// compared is what the second source said of the moment of this point.
	compared      *signals.Reading
	comparedPoint time.Time

	// The first two are decide's, the last is send's.
	sourceFailure, storeFailure, membershipFailure outage

	// overriding is held while an override is put, so that the last one is kept.
	overriding sync.Mutex

	mu       sync.Mutex
	shown    Explanation
	override *window.Override
	// newest that the source gave, and the point before it; nil for none.
	newest, before *signals.Reading
}

func newSite(d *Director, c Site) *site {
	if c.Policy.MinWindow == 0 && c.Provisioning > 0 {
		c.Policy.MinWindow = c.Provisioning + c.Round
	}
	if c.Policy.LeaveLead == 0 {
		c.Policy.LeaveLead = c.Drain
	}
	s := &site{
		Site: c, director: d,
		log:     d.config.Log.With("federation", d.config.Federation, "site", c.Name),
		polled:  make(chan poll),
		mailbox: make(chan Wish, 1),
		again:   make(chan struct{}, 1),
		hurry:   make(chan struct{}, 1),
	}
	s.second, s.price, s.share = readings(s, "second", c.Second), readings(s, "price", c.Price), readings(s, "share", c.Share)
	s.forecast = forecasts(s, c.Forecast)
	return s
}

// look makes decide look again at what it knows.
func (s *site) look() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// poll is one answer of the source.
type poll struct {
	reading *signals.Reading
	err     error
}

// The pace of polling, in the signals' clock.
const (
	firstRetry    = time.Second
	longestRetry  = 15 * time.Minute
	unknownPeriod = 5 * time.Minute
)

// The pace of retries in real time: a fast clock of the signals must not turn
// them into a storm.
const (
	firstRealRetry = 10 * time.Millisecond
	lastRealRetry  = time.Second
)

// poll asks at each new point: when the newest point's validity ends, and with
// backoff while the source fails or has nothing newer.
func (s *site) poll(ctx context.Context) {
	var newest time.Time
	period := unknownPeriod
	failures := 0
	for {
		wait := s.gather(ctx)
		call, cancel := context.WithTimeout(ctx, s.director.config.CallTimeout)
		r, err := s.Source.Latest(call)
		cancel()
		wait()
		p := poll{err: err}
		if err == nil {
			p.reading = &r
		}
		select {
		case s.polled <- p:
		case <-ctx.Done():
			return
		}
		first := newest.IsZero()
		if err == nil && r.Period > 0 && r.PointTime.After(newest) {
			newest, period, failures = r.PointTime, r.Period, 0
		} else {
			failures++
		}
		var rest time.Duration
		switch {
		case failures == 0 && first: // it is not known when it came
			rest = newest.Add(period).Sub(s.director.config.Clock.Now())
		case failures == 0:
			// A point that came late will be followed by another late one.
			rest = max(newest.Add(period).Sub(s.director.config.Clock.Now()), period/2)
		case err == nil:
			rest = s.jitter(backoff(failures, max(firstRetry, period/10), period))
		default:
			rest = s.jitter(backoff(failures, firstRetry, min(period, longestRetry)))
		}
		var ok bool
		if failures == 0 {
			ok = s.pause(ctx, rest, 0, math.MaxInt64)
		} else { // in a slow clock as if it were real
			least := s.jitter(backoff(failures, firstRealRetry, lastRealRetry))
			ok = s.pause(ctx, rest, least, max(rest, least))
		}
		if !ok {
			return
		}
	}
}

// pause waits in the signals' clock, but in real time from least to most, or
// until it is hurried; false if ctx ends first.
func (s *site) pause(ctx context.Context, wait, least, most time.Duration) bool {
	timer := s.director.config.Clock.NewTimer(wait)
	defer timer.Stop()
	floor := time.NewTimer(least)
	defer floor.Stop()
	ceiling := time.NewTimer(most)
	defer ceiling.Stop()
	select {
	case <-timer.C():
	case <-ceiling.C:
	case <-s.hurry:
	case <-ctx.Done():
		return false
	}
	select {
	case <-floor.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// backoff doubles from first to most.
func backoff(failures int, first, most time.Duration) time.Duration {
	d := first
	for range failures - 1 {
		if d *= 2; d >= most {
			return most
		}
	}
	return min(d, most)
}

// jitter spreads waits by a fifth to both sides, so that sites and
// coordinators do not call in step.
func (s *site) jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*s.director.config.Random()))
}

// decide lets the window decide at each answer of the source, when something
// beside it changed, and whenever the window can change without either.
func (s *site) decide(ctx context.Context) {
	// The first answer is waited for, or a restart would show a moment of an
	// unknown signal; but not for ever.
	first := time.NewTimer(s.director.config.CallTimeout + time.Second)
	defer first.Stop()
	var wake signals.Timer
	var wakeC <-chan time.Time
	defer func() {
		if wake != nil {
			wake.Stop()
		}
	}()
	var told *Wish
	var toldPoint time.Time
	answered := false
	for {
		var p poll
		select {
		case p = <-s.polled:
			answered = true
			s.note(p)
		case <-wakeC:
		case <-s.again:
			if !answered && !s.pressing(s.director.config.Clock.Now()) {
				continue
			}
		case <-first.C:
			if answered {
				continue
			}
			answered = true
		case <-ctx.Done():
			return
		}
		now := s.director.config.Clock.Now()
		d, state := s.consider(p.reading, now)
		choice, planned := s.director.plans.settle(s, d, state)
		if !planned {
			d = s.unplanned(d) // stays as it is until the plan, which is near
		} else if choice != nil {
			d = choice.apply(d, now)
		}
		s.keep(state, d, now)
		w := wish(state, d, now)
		if planned && (told == nil || told.Admit != w.Admit || told.Reason != w.Reason || told.Signal.Window != w.Signal.Window ||
			(p.reading != nil && !p.reading.PointTime.Equal(toldPoint))) {
			if told == nil || told.Admit != w.Admit || told.Signal.Window != w.Signal.Window {
				s.log.Info("window decided", "window", d.Window, "admit", d.Admit, "reason", d.Reason, "message", d.Message)
			}
			if told != nil && told.Signal.Window != w.Signal.Window {
				s.director.metrics.changes.WithLabelValues(s.Name).Inc()
			}
			told = &w
			if p.reading != nil {
				toldPoint = p.reading.PointTime
			}
			s.post(w)
		}
		if wake != nil {
			wake.Stop()
		}
		wake, wakeC = nil, nil
		if !d.NextChange.IsZero() {
			wake = s.director.config.Clock.NewTimer(d.NextChange.Sub(now))
			wakeC = wake.C()
		}
	}
}

// wish puts a decision into the words of a membership.
func wish(state window.State, d window.Decision, now time.Time) Wish {
	w := Wish{Admit: d.Admit, Reason: d.Reason, Message: d.Message,
		Signal: Signal{Window: d.Window, NextChange: d.NextChange}}
	if l := state.Last; l != nil {
		w.Signal.Kind, w.Signal.Unit, w.Signal.Region, w.Signal.PointTime = l.Kind, l.Unit, l.Region, l.PointTime
		if now.Before(signals.StaleAt(l.PointTime, l.Period)) {
			v := l.Value
			w.Signal.Value = &v
		}
	}
	return w
}

// post replaces a wish that was not taken yet.
func (s *site) post(w Wish) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.mailbox:
	default:
	}
	s.mailbox <- w // decide alone posts, so there is room
	s.shown.Delivered = false
}

// note keeps an answer of the source for Explain and counts failures.
func (s *site) note(p poll) {
	text := ""
	if p.err != nil {
		text = p.err.Error()
		s.director.metrics.sourceErrors.WithLabelValues(s.Name).Inc()
	} else {
		s.publish(p.reading)
	}
	s.failure(&s.sourceFailure, func(e *Explanation) *string { return &e.SourceError }, text, "source of signals failed")
}

func (s *site) show(change func(*Explanation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.shown)
}

// The pace of repeating a membership call, in real time.
const (
	firstResend = 100 * time.Millisecond
	lastResend  = 5 * time.Second
)

// send delivers the newest wish, again and again until it has arrived.
func (s *site) send(ctx context.Context) {
	for {
		var w Wish
		select {
		case w = <-s.mailbox:
		case <-ctx.Done():
			return
		}
		for failures := 1; ; failures++ {
			call, cancel := context.WithTimeout(ctx, s.director.config.CallTimeout)
			err := s.director.config.Membership.SetMembership(call, s.Name, w)
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			s.director.metrics.membershipErrors.WithLabelValues(s.Name).Inc()
			s.failure(&s.membershipFailure, membershipError, err.Error(), "membership could not be set, will try again")
			again := time.NewTimer(s.jitter(backoff(failures, firstResend, lastResend)))
			select {
			case <-again.C:
			case w = <-s.mailbox:
			case <-ctx.Done():
				again.Stop()
				return
			}
			again.Stop()
		}
		s.failure(&s.membershipFailure, membershipError, "", "membership could not be set, will try again")
		s.show(func(e *Explanation) { e.Delivered = len(s.mailbox) == 0 })
	}
}

func membershipError(e *Explanation) *string { return &e.MembershipError }
