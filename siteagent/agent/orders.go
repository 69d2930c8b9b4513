package agent

import (
	"context"
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/siteagent/trainer"
)

// orders is what the worker is to do, level-based: what is newer replaces what
// is older. Guarded by Agent.mu.
type orders struct {
	// grant not yet taken up; epoch and round of the newest one ever seen.
	grant        *grant
	epoch, round uint64
	// target is the newest commit known.
	target *target
	// void is the round that ended without effect last; 0 none.
	void uint64
	// seed: the federation has no model and asks for one.
	seed bool
	// leave is set once the agent leaves; drained, once the coordinator agreed.
	leave   *coordinatorv1.Leave
	drained bool
	// shutdown: the run is over, the coordinator has sent everyone home.
	shutdown bool
}

// target is a version to hold. Without a digest any state of that version will do.
type target struct {
	version uint64
	digest  []byte
	// newest: whatever the newest is; version and digest say nothing.
	newest bool
}

// grant is permission for one round, its times on our own clock.
type grant struct {
	*coordinatorv1.Grant
	params                  algorithm.Parameters
	received, stop, collect time.Time
	// serverTime is the receipt on the coordinator's clock.
	serverTime time.Time
}

// running is the round at work.
type running struct {
	grant *grant
	// finish asks for what there is; abort drops the round's work.
	finish, abort context.CancelCauseFunc
}

// established takes over a new session.
func (a *Agent) established(s *session, w *coordinatorv1.Welcome) {
	a.log.Info("session established", "epoch", s.epoch, "heartbeat", s.interval, "loss_after", s.loss)
	a.metrics.sessions.Inc()
	a.metrics.connected.Set(1)
	if a.eventKey.set(w.GetEventsPublicKey()); a.cfg.Redis != nil && len(w.GetEventsPublicKey()) == 0 {
		a.log.Warn("the coordinator announces no events, those in Redis are not read: drop the agent's Redis, or give the coordinator one")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sess = s
	a.warm.sessionBegan(time.Now())
	close(a.sessionChanged)
	a.sessionChanged = make(chan struct{})
	a.orders.seed, a.orders.drained = false, false
	if w.ModelVersion != nil {
		a.orders.target = &target{version: w.GetModelVersion(), digest: w.GetModelDigest()}
	}
	if a.running == nil && a.status.state == coordinatorv1.MemberState_MEMBER_STATE_READY {
		// A report of an older session says nothing in this one.
		a.status.round, a.status.report = 0, false
	}
	poke(a.kick)
}

func (a *Agent) lost(s *session) {
	a.metrics.connected.Set(0)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sess == s {
		a.sess = nil
		close(a.sessionChanged)
		a.sessionChanged = make(chan struct{})
	}
	poke(a.kick)
}

func (a *Agent) setSessionError(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log.Debug("no session", "error", text, "training", a.running != nil)
}

// session waits for one that is not old; nil waits for any.
func (a *Agent) session(ctx context.Context, old *session) (*session, error) {
	for {
		a.mu.Lock()
		s, changed := a.sess, a.sessionChanged
		a.mu.Unlock()
		if s != nil && s != old {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (a *Agent) leaveMessage() *coordinatorv1.Leave {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.orders.leave
}

// receive turns a coordinator's message into orders.
func (a *Agent) receive(s *session, m *coordinatorv1.SessionResponse) {
	now := time.Now()
	switch m := m.GetMessage().(type) {
	case *coordinatorv1.SessionResponse_Grant:
		a.granted(s, m.Grant, now)
	case *coordinatorv1.SessionResponse_Stop:
		a.stopRound(m.Stop.GetRound(), m.Stop.GetReason(), m.Stop.GetMessage())
	case *coordinatorv1.SessionResponse_Drain:
		a.drain(m.Drain, now)
	case *coordinatorv1.SessionResponse_Committed:
		a.committed(m.Committed)
	case *coordinatorv1.SessionResponse_Shutdown:
		a.shutdown(m.Shutdown)
	case *coordinatorv1.SessionResponse_SeedRequest:
		a.mu.Lock()
		a.orders.seed = true
		a.mu.Unlock()
		a.log.Info("the federation has no model yet, the trainer may offer first weights", "reason", v1alpha1.ReasonWaitingForModel)
	default:
		a.log.Debug("message of a newer coordinator ignored", "type", fmt.Sprintf("%T", m))
	}
	poke(a.kick)
}

// granted takes a grant of the live session. One of the same epoch that is not
// newer is a duplicate; a newer one ends the round at work.
func (a *Agent) granted(s *session, g *coordinatorv1.Grant, now time.Time) {
	params, err := algorithm.FromProto(g.GetAlgorithm())
	if err != nil {
		a.log.Error("grant refused: this agent cannot follow its algorithm", "round", g.GetRound(), "reason", v1alpha1.ReasonUnsupportedVersion, "error", err)
		a.set(func(s *memberStatus) { s.reportNothing(g.GetRound(), 0, 0, err.Error()) })
		return
	}
	offset, _ := a.clock.estimate()
	next := &grant{
		Grant: g, params: params, received: now,
		stop:    a.clock.stopTime(now, g),
		collect: now.Add(time.Duration(g.GetCollectInMs()) * time.Millisecond), serverTime: now.Round(0).Add(offset),
	}
	if next.collect.Before(next.stop) {
		next.collect = next.stop
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	o := &a.orders
	switch {
	case o.leave != nil || o.shutdown:
		a.log.Info("grant declined, the agent is leaving", "round", g.GetRound())
		return
	case g.GetEpoch() != s.epoch:
		a.log.Warn("grant of another session ignored", "round", g.GetRound(), "epoch", g.GetEpoch(), "session", s.epoch, "reason", v1alpha1.ReasonFencedEpoch)
		return
	case g.GetEpoch() < o.epoch || g.GetEpoch() == o.epoch && g.GetRound() <= o.round:
		a.log.Debug("grant ignored, it is not newer than the last", "round", g.GetRound(), "last", o.round)
		return
	}
	o.epoch, o.round = g.GetEpoch(), g.GetRound()
	if r := a.running; r != nil {
		if r.grant.GetRound() == g.GetRound() && r.grant.GetBaseVersion() == g.GetBaseVersion() {
			a.log.Info("grant renewed for the round at work", "round", g.GetRound())
			return
		}
		a.log.Warn("a newer grant ends the round at work", "round", r.grant.GetRound(), "newer", g.GetRound())
		r.abort(fmt.Errorf("round %d has begun: %w", g.GetRound(), trainer.ErrAbort))
	}
	a.warm.again(now, a.status.held)
	a.log.Info("granted", "round", g.GetRound(), "base_version", g.GetBaseVersion(), "max_steps", g.GetMaxSteps(),
		"stop_in", next.stop.Sub(now).Round(time.Millisecond), "alone", g.GetAlone())
	o.grant, o.drained = next, false
	o.target = &target{version: g.GetBaseVersion(), digest: g.GetBaseDigest()}
}

// stopRound finishes a round; Excluded drops its work.
func (a *Agent) stopRound(round uint64, reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := &a.orders
	if o.grant != nil && o.grant.GetRound() == round {
		o.grant.stop = time.Now()
	}
	r := a.running
	if r == nil || r.grant.GetRound() != round {
		return
	}
	a.log.Info("round stopped", "round", round, "reason", reason, "message", message)
	if reason == string(v1alpha1.ReasonExcluded) {
		r.abort(fmt.Errorf("%s: %w", reason, trainer.ErrAbort))
		return
	}
	r.finish(fmt.Errorf("%s: %w", reason, trainer.ErrFinish))
}

// drain finishes the round with four fifths of what is left; the rest is for the
// upload.
func (a *Agent) drain(d *coordinatorv1.Drain, now time.Time) {
	left := time.Duration(d.GetDeadlineInMs()) * time.Millisecond
	a.log.Info("drain", "reason", d.GetReason(), "message", d.GetMessage(), "deadline_in", left)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.orders.drained, a.warm.drained = true, true
	a.declineLocked("drained before it began")
	if r := a.running; r != nil {
		time.AfterFunc(left, func() { r.abort(fmt.Errorf("the drain's deadline has passed: %w", trainer.ErrAbort)) })
		r.finish(trainer.FinishBy(now.Add(left/5*4), "drain: "+d.GetReason()))
	}
}

func (a *Agent) committed(c *coordinatorv1.Committed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.GetVoid() {
		a.log.Info("round void", "round", c.GetRound(), "reason", c.GetReason(), "message", c.GetMessage())
		a.orders.void = c.GetRound()
	} else {
		a.log.Info("committed", "round", c.GetRound(), "version", c.GetVersion(), "reason", c.GetReason(), "message", c.GetMessage())
		a.orders.target = &target{version: c.GetVersion(), digest: c.GetDigest()}
		a.orders.seed = false
	}
	if r := a.running; r != nil && r.grant.GetRound() == c.GetRound() && c.GetRound() != 0 {
		r.finish(fmt.Errorf("the round has ended without this member: %w", trainer.ErrFinish))
	}
}

// shutdown ends the round at work, which the coordinator will not commit. The
// agent goes home only if the run is over: a coordinator that is upgraded or
// moved comes back.
func (a *Agent) shutdown(s *coordinatorv1.Shutdown) {
	over := v1alpha1.Reason(s.GetReason()) == v1alpha1.ReasonCompleted
	if over {
		a.log.Info("coordinator sends everyone home", "reason", s.GetReason(), "message", s.GetMessage())
	} else {
		a.log.Info("coordinator goes away, waiting for it to come back", "reason", s.GetReason(), "message", s.GetMessage())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finishLocked("the coordinator goes away", fmt.Errorf("%s: %w", s.GetReason(), trainer.ErrFinish))
	if over {
		a.orders.shutdown = true
		a.endIdleLocked()
	}
}

// hint takes an event from Redis. It can only end a round early or wake
// somebody up.
func (a *Agent) hint(e events.Event) {
	a.log.Debug("event", "type", e.Type, "round", e.Round, "term", e.Term, "sequence", e.Sequence)
	switch e.Type {
	case events.RoundStopped, events.RoundVoid, events.RoundCommitted:
		if e.Type == events.RoundStopped && e.Site != "" && e.Site != a.cfg.Site {
			return
		}
		a.mu.Lock()
		r := a.running
		a.mu.Unlock()
		// An event from before the grant is about another round of that number.
		if r != nil && r.grant.GetRound() == e.Round && e.UnixMilli >= r.grant.serverTime.UnixMilli() {
			r.finish(fmt.Errorf("%s: %w", e.Type, trainer.ErrFinish))
		}
		poke(a.kick)
	case events.Shutdown:
		a.log.Info("coordinator announces its shutdown", "reason", e.Reason, "message", e.Message)
	case events.MembershipChanged:
		if e.Site == a.cfg.Site {
			a.log.Info("membership changed", "reason", e.Reason, "message", e.Message)
		}
	}
}

// finishLocked asks the round at work, if any, for what there is, and gives a
// grant back that was not taken up.
func (a *Agent) finishLocked(why string, cause error) {
	a.declineLocked(why)
	if a.running != nil {
		a.running.finish(cause)
	}
}

// declineLocked gives a grant back that was not taken up.
func (a *Agent) declineLocked(why string) {
	if g := a.orders.grant; g != nil {
		a.orders.grant = nil
		a.status.reportNothing(g.GetRound(), 0, 0, why)
		poke(a.nudge)
	}
}

// endIdleLocked ends what the worker does outside a round.
func (a *Agent) endIdleLocked() {
	if a.interrupt != nil {
		a.interrupt(errLeaving)
	}
}
