package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

// How a look at the orders can end, beside success and failure.
var (
	errNothing = errors.New("nothing to do")
	errOver    = errors.New("all is done")
	// errLeaving interrupts what a leaving agent need not finish.
	errLeaving = errors.New("the agent is leaving")
)

// pushBudget bounds the tries to push an update of an earlier process whose
// round may be open or not.
const pushBudget = 2 * time.Minute

// work does what the orders say, one thing at a time, until the agent is done
// (nil) or the context ends.
func (a *Agent) work(ctx context.Context) error {
	b := a.cfg.newBackOff()
	failed := ""
	for {
		err := a.next(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var wait <-chan time.Time
		switch {
		case err == nil:
			b.Reset()
			failed = ""
			continue
		case errors.Is(err, errOver):
			return nil
		case errors.Is(err, errNothing), errors.Is(err, errLeaving):
		default:
			d := b.NextBackOff()
			if text := err.Error(); text != failed {
				a.log.Warn("trying again", "error", err, "wait", d)
				failed = text
			}
			wait = time.After(d)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.kick:
		case <-wait:
		case seed := <-a.cfg.Trainer.Seeds():
			if err := a.offered(ctx, seed); err != nil {
				a.log.Error("first weights were not taken; the trainer may offer others", "path", seed.Path, "error", err)
				pause(ctx, b.NextBackOff())
			}
		}
	}
}

// next does the most urgent thing.
func (a *Agent) next(ctx context.Context) error {
	pending := a.cfg.Replica.Pending()
	a.mu.Lock()
	o, s := a.orders, a.sess
	a.orders.void = 0
	void := o.void != 0 && pending != nil && pending.Round == o.void
	var r *running
	var roundCtx roundContext
	if o.grant != nil && !void {
		r, roundCtx = a.beginLocked(ctx, o.grant)
	}
	a.mu.Unlock()
	leaving := o.leave != nil || o.shutdown
	waiting := pending != nil && !pending.Accepted && a.givenUp != pending.UpdateID
	switch {
	case void:
		a.log.Info("the round was void, its work stays in the residual", "round", o.void, "update", pending.UpdateID)
		return a.cfg.Replica.Drop()
	case r != nil:
		a.round(roundCtx, r.grant)
		return nil
	case o.shutdown:
		return errOver
	case waiting && s != nil:
		return a.pushLeftover(ctx)
	case waiting && leaving:
		return errNothing
	case o.leave != nil && (s == nil || o.drained):
		return errOver
	case s == nil || leaving:
		return errNothing
	case o.target != nil && !a.holds(*o.target):
		return a.idle(ctx, func(ctx context.Context) error {
			a.setState(coordinatorv1.MemberState_MEMBER_STATE_SYNCING, "")
			return a.sync(ctx, *o.target)
		})
	}
	a.cfg.Trainer.SetSeedWanted(o.seed)
	if o.target == nil {
		// An idle site is not told of a model before it is admitted.
		detail := "holds no model yet"
		if o.seed {
			detail = "the federation has no model yet"
		}
		a.setState(coordinatorv1.MemberState_MEMBER_STATE_IDLE, detail)
	} else {
		a.set(func(s *memberStatus) {
			if s.state != coordinatorv1.MemberState_MEMBER_STATE_READY {
				s.state, s.detail, s.round = coordinatorv1.MemberState_MEMBER_STATE_READY, "", 0
			}
		})
	}
	return errNothing
}

// idle runs what a leave may interrupt.
func (a *Agent) idle(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.mu.Lock()
	a.interrupt = cancel
	if a.orders.leave != nil || a.orders.shutdown {
		cancel(errLeaving)
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.interrupt = nil
		a.mu.Unlock()
	}()
	err := do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errLeaving) {
		return errLeaving
	}
	return err
}

// holds says whether the replica is at the target.
func (a *Agent) holds(t target) bool {
	version, digest, ok := a.cfg.Replica.Held()
	switch {
	case !ok:
		return false
	case t.newest:
		return true
	}
	return version == t.version && (len(t.digest) == 0 || bytes.Equal(t.digest, digest[:]))
}

// pushLeftover pushes an update that no round of this process waits for.
func (a *Agent) pushLeftover(ctx context.Context) error {
	u := a.cfg.Replica.Pending()
	a.set(func(s *memberStatus) {
		s.state, s.detail = coordinatorv1.MemberState_MEMBER_STATE_UPLOADING, ""
		s.round, s.steps, s.samples = u.Round, u.Steps, u.Samples
	})
	ctx, cancel := context.WithTimeoutCause(ctx, pushBudget, errPushLate)
	defer cancel()
	outcome, err := a.push(ctx)
	switch {
	case errors.Is(err, errPushLate):
		// Whether it counted shows in the commit that follows its base.
		a.givenUp = u.UpdateID
		a.log.Warn("no answer to an update, going on", "update", u.UpdateID, "round", u.Round)
	case err != nil:
		return err
	}
	a.set(func(s *memberStatus) { s.reportNothing(u.Round, u.Steps, u.Samples, outcome) })
	return nil
}

// offered pushes first weights that the trainer has offered.
func (a *Agent) offered(ctx context.Context, seed trainerv1.Seed) error {
	if err := a.idle(ctx, func(ctx context.Context) error { return a.pushSeed(ctx, seed.Path) }); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.orders.seed = false
	if a.orders.target == nil {
		a.orders.target = &target{newest: true}
	}
	poke(a.kick)
	return nil
}

// reason names an outcome with the coordinator's words.
func reason(r *coordinatorv1.PushResult) string {
	return fmt.Sprintf("%s: %s", r.GetReason(), r.GetMessage())
}
