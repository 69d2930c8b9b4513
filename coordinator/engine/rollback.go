package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/corpus"
	"girassol.dev/coordinator/gate"
	"girassol.dev/coordinator/round"
)

// A rollback makes the state of an older version the newest one, under a new
// number: theta, momentum, buffers, the downlink residual, agreement and the
// position in the data are those of then. What has been spent stays spent: samples,
// rounds, energy and emissions go on counting. Members forget what they had not
// sent, which is work on a state that was given up.

// rollbacks are those at work and wanted.
type rollbacks struct {
	// atWork is on its way beside the engine, nil without one.
	atWork *rollback
	// wanted waits for the merge at work, nil without one.
	wanted *rollback
	// failed says how the newest one failed; empty after a success.
	failed string
}

// rollback is one return to an older version.
type rollback struct {
	to      uint64
	reason  v1alpha1.Reason
	message string
	// answer is for a person who waits; nil for the gate.
	answer chan rollbackAnswer
}

type rollbackAnswer struct {
	done RolledBack
	err  error
}

// RolledBack is what a rollback has made.
type RolledBack struct {
	// Version that was made, and the one whose state it has.
	Version, To uint64
	Digest      []byte
}

// Rollback makes an older version's state the newest, nil meaning the one before.
// It waits for a merge at work; when ctx ends before the rollback has begun there
// will be none. A RefusedError names the versions that can be had.
func (e *Engine) Rollback(ctx context.Context, version *uint64, message string) (RolledBack, error) {
	kept, err := e.store.Kept()
	if err != nil {
		return RolledBack{}, err
	}
	var rb *rollback
	var refused error
	err = e.do(ctx, func() {
		if rb, refused = e.wish(version, message, kept); refused == nil {
			e.rollbacks.wanted = rb
			if e.machine.Status().State != round.Committing {
				e.startWanted(time.Now())
			}
		}
	})
	if err := errors.Join(err, refused); err != nil {
		return RolledBack{}, err
	}
	select {
	case a := <-rb.answer:
		return a.done, a.err
	case <-e.stopped:
		return RolledBack{}, ErrStopped
	case <-ctx.Done():
		_ = e.do(context.WithoutCancel(ctx), func() {
			if e.rollbacks.wanted == rb {
				e.rollbacks.wanted = nil
			}
		})
		return RolledBack{}, ctx.Err()
	}
}

// wish checks a person's.
func (e *Engine) wish(version *uint64, message string, kept []checkpoint.Manifest) (*rollback, error) {
	refuse := func(format string, args ...any) error {
		return &RefusedError{v1alpha1.ReasonRolledBack, fmt.Sprintf(format, args...)}
	}
	if e.model == nil {
		return nil, refuse("there is no model yet, so nothing to go back to")
	}
	if e.rollbacks.atWork != nil || e.rollbacks.wanted != nil {
		return nil, refuse("another rollback is at work; see girassol status")
	}
	to := before(e.manifest, kept)
	if version != nil {
		to = *version
	} else if e.manifest.Version == 0 {
		return nil, refuse("version 0 is the first: there is none to go back to")
	}
	var can []uint64
	var found *checkpoint.Manifest
	for i, m := range kept {
		if m.Version < e.model.version {
			can = append(can, m.Version)
			if m.Version == to {
				found = &kept[i]
			}
		}
	}
	switch {
	case to == e.model.version || found != nil && found.Digest == e.manifest.Digest:
		return nil, refuse("the model is in the state of version %d already; others that can be had: %s", to, spans(can))
	case found == nil:
		return nil, &RefusedError{v1alpha1.ReasonVersionNotKept, fmt.Sprintf("version %d is not in the commit log; those that can be had: %s", to, spans(can))}
	}
	return &rollback{to: to, reason: v1alpha1.ReasonRolledBack, message: message, answer: make(chan rollbackAnswer, 1)}, nil
}

// before is the version whose state preceded a version's: a rollback continues
// from what it went back to, which may be a rollback too.
func before(man checkpoint.Manifest, kept []checkpoint.Manifest) uint64 {
	v := man.Version
	for man.Kind == checkpoint.KindRollback {
		v = man.Rollback.To
		i := slices.IndexFunc(kept, func(m checkpoint.Manifest) bool { return m.Version == v })
		if i < 0 {
			break
		}
		man = kept[i]
	}
	return max(v, 1) - 1
}

// spans writes ascending numbers as "1, 4-7".
func spans(vs []uint64) string {
	var out []string
	for i := 0; i < len(vs); {
		j := i
		for j+1 < len(vs) && vs[j+1] == vs[j]+1 {
			j++
		}
		s := fmt.Sprint(vs[i])
		if j > i {
			s = fmt.Sprintf("%d-%d", vs[i], vs[j])
		}
		out, i = append(out, s), j+1
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// thenRollBack tells the machine of a merge's end; a rollback that waited for it
// begins before a next round does.
func (e *Engine) thenRollBack(now time.Time, ended func() []round.Action) []round.Action {
	if e.rollbacks.wanted == nil {
		return ended()
	}
	e.machine.Hold()
	ended()
	e.startWanted(now)
	return e.machine.Release(now)
}

func (e *Engine) startWanted(now time.Time) {
	rb := e.rollbacks.wanted
	e.rollbacks.wanted = nil
	e.rollBack(now, rb)
}

// rollBack ends the round at work and brings the older state back beside the
// engine's goroutine. No merge may be at work.
func (e *Engine) rollBack(now time.Time, rb *rollback) {
	e.rollbacks.atWork = rb
	e.log.Warn("rolling back", "from", e.model.version, "to", rb.to, "reason", rb.reason, "message", rb.message)
	text := fmt.Sprintf("goes back from version %d to the state of version %d", e.model.version, rb.to)
	if rb.message != "" {
		text += ": " + rb.message
	}
	e.act(now, e.machine.RollBack(now, rb.reason, text))
	next, snapshot := e.rollbackManifest(now, rb), e.snapshot
	e.background.Go(func() {
		<-snapshot // one that is being written prunes, and a rollback is a snapshot itself
		m, man, made, err := e.goBack(rb, next)
		taken := e.do(context.Background(), func() { e.wentBack(time.Now(), rb, m, man, made, err) })
		if taken != nil && m != nil {
			m.close()
		}
	})
}

// rollbackManifest has what goes on counting; goBack adds what is of the old
// version.
func (e *Engine) rollbackManifest(now time.Time, rb *rollback) checkpoint.Manifest {
	st := e.machine.Status()
	man := checkpoint.Manifest{
		Version: e.model.version + 1, Round: max(st.Round, e.manifest.Round), Kind: checkpoint.KindRollback,
		LayoutDigest: hex.EncodeToString(e.model.layout[:]), Algorithm: e.params(), Term: e.store.Term(), UnixMilli: now.UnixMilli(),
		CommittedSamples: e.samples, RoundsVoid: st.Voids, RoundsCommitted: st.Committed, SiteStats: maps.Clone(e.stats),
		Gate: e.gateState(), Ledger: e.manifest.Ledger,
		Rollback: &checkpoint.Rollback{Version: e.model.version + 1, To: rb.to, From: e.model.version, Reason: string(rb.reason), Message: rb.message, UnixMilli: now.UnixMilli()},
	}
	if man.Gate != nil && rb.reason == v1alpha1.ReasonEvaluationWorse {
		man.Gate.Rollbacks++
	}
	if e.hooks.Ledger != nil {
		man.Ledger = e.hooks.Ledger()
	}
	return man
}

// goBack makes the model of the older version and keeps it as the newest. It
// touches nothing of the engine. made: the version is in the commit log, though
// there may be an error.
func (e *Engine) goBack(rb *rollback, man checkpoint.Manifest) (_ *model, _ checkpoint.Manifest, made bool, err error) {
	rec, err := e.store.Restore(rb.to)
	if err != nil {
		return nil, man, false, err
	}
	l, err := e.build(rec)
	if err != nil {
		return nil, man, false, err
	}
	m, old := l.model, l.manifests[len(l.manifests)-1]
	man.Digest = hex.EncodeToString(m.digest[:])
	man.Agreement, man.Data = old.Agreement, old.Data
	if e.cfg.Data != nil {
		if _, err := corpus.New(*e.cfg.Data, position(man)); err != nil {
			m.close()
			return nil, man, false, fmt.Errorf("spec.data: %w", err)
		}
	}
	kept, err := e.store.Kept()
	if err != nil {
		m.close()
		return nil, man, false, err
	}
	man.Evaluation = resultOf(old, man.Gate, kept)
	if man.Evaluation != nil {
		man.Evaluation.RoundsCommitted = man.RoundsCommitted // the state at work has a result
	}
	if man.Gate != nil && rb.reason != v1alpha1.ReasonEvaluationWorse {
		// A person has taken charge.
		man.Gate = &gate.State{Best: e.bestOf(man, old, kept)}
		if best := man.Gate.Best; best != nil {
			e.store.Pin(&best.Version) // or the pruning after the rollback could take it
		}
	}
	if made, err = e.store.WriteRollback(man, m.state, m.residual); err != nil {
		m.close()
		return nil, man, made, err
	}
	m.version = man.Version
	return m, man, true, nil
}

// resultOf is a version's held-out result, as a manifest after it or the gate knows
// it; nil when it has none.
func resultOf(man checkpoint.Manifest, g *gate.State, kept []checkpoint.Manifest) *checkpoint.Evaluation {
	same := []uint64{man.Version}
	if man.Kind == checkpoint.KindRollback {
		same = append(same, man.Rollback.To)
	}
	for _, m := range kept {
		if ev := m.Evaluation; ev != nil && slices.Contains(same, ev.Version) {
			found := *ev
			return &found
		}
	}
	if g == nil || g.Best == nil || !slices.Contains(same, g.Best.Version) {
		return nil
	}
	results := map[string]heldOut{} // the manifests after a pinned version are pruned
	for _, m := range g.Best.Measures {
		results[m.Member] = heldOut{Measure: m}
	}
	return join(g.Best.Version, results)
}

// bestOf is the gate's reference once a person has gone back: the best version, or
// where that was left the one that was best then, unless the state's own result is
// better. It is nil when none of them is kept.
func (e *Engine) bestOf(man, old checkpoint.Manifest, kept []checkpoint.Manifest) *gate.Result {
	best := man.Gate.Best
	if best != nil && best.Version > old.Version {
		best = nil
		if old.Gate != nil && old.Gate.Best != nil && slices.ContainsFunc(kept, func(m checkpoint.Manifest) bool { return m.Version == old.Gate.Best.Version }) {
			best = old.Gate.Best
		}
	}
	if man.Evaluation == nil {
		return best
	}
	_, s := e.cfg.Gate.Judge(gate.State{Best: best}, gate.Result{Version: old.Version, Measures: man.Evaluation.Members})
	return s.Best
}

// wentBack takes over what goBack has made durable.
func (e *Engine) wentBack(now time.Time, rb *rollback, m *model, man checkpoint.Manifest, made bool, err error) {
	e.rollbacks.atWork, e.rollbacks.failed = nil, ""
	if err != nil {
		e.rollbackFailed(now, rb, made, err)
		return
	}
	e.model.close()
	e.model = m
	e.deltaBytes, e.snapshotAt = 0, man.Version
	e.adopt(man)
	e.tellEvaluated()
	e.log.Warn("rolled back", "version", man.Version, "to", rb.to, "from", man.Rollback.From, "reason", rb.reason, "digest", man.Digest[:12])
	if e.hooks.Observe != nil {
		e.hooks.Observe.RolledBack(rb.reason)
	}
	e.tellCommitted(&coordinatorv1.Committed{Round: man.Round, Version: man.Version, Digest: m.digestCopy(), Reason: string(v1alpha1.ReasonRolledBack), Message: rb.message}, nil)
	e.announceCommit(man)
	if rb.answer != nil {
		rb.answer <- rollbackAnswer{done: RolledBack{man.Version, rb.to, m.digestCopy()}}
	}
	if c := e.cfg.Gate; c != nil && rb.reason == v1alpha1.ReasonEvaluationWorse && e.gate.Rollbacks >= c.MaxRollbacks {
		e.act(now, e.machine.Fail(now, v1alpha1.ReasonTooManyRollbacks,
			fmt.Sprintf("%d rollbacks in a row led to no better version than %d, whose state is kept as version %d; the last because %s", e.gate.Rollbacks, rb.to, man.Version, rb.message)))
	}
	e.act(now, e.goOn(now))
}

// rollbackFailed: the model is as it was, and training goes on with it.
func (e *Engine) rollbackFailed(now time.Time, rb *rollback, made bool, err error) {
	if rb.answer != nil {
		answer := err
		if errors.Is(err, checkpoint.ErrNotKept) { // damaged, or pruned since it was asked for
			answer = &RefusedError{v1alpha1.ReasonVersionNotKept, err.Error()}
		}
		rb.answer <- rollbackAnswer{err: answer}
	}
	switch {
	case errors.Is(err, checkpoint.ErrFenced):
		e.fail(v1alpha1.ReasonFenced, err)
		return
	case made:
		e.fail(v1alpha1.ReasonCommitLogFailed, fmt.Errorf("version %d: %w: check the disk and start again: %w", e.model.version+1, errUnknownDurability, err))
		return
	case errors.Is(err, checkpoint.ErrNotKept) && rb.reason == v1alpha1.ReasonEvaluationWorse:
		e.gate.Best = nil // the next result is the reference
	}
	e.pin() // goBack may have pinned another
	e.rollbacks.failed = fmt.Sprintf("going back from version %d to %d failed, training goes on: %v", e.model.version, rb.to, err)
	e.log.Error("rollback failed, training goes on", "version", e.model.version, "to", rb.to, "reason", rb.reason, "error", err)
	e.act(now, e.goOn(now))
}

// rollbackStatus is the newest one, nil before the first.
func (e *Engine) rollbackStatus() *coordinatorv1.RollbackStatus {
	r := e.manifest.Rollback
	if r == nil {
		return nil
	}
	return &coordinatorv1.RollbackStatus{Version: r.Version, ToVersion: r.To, FromVersion: r.From, Reason: r.Reason, Message: r.Message, UnixMs: r.UnixMilli}
}

// snapshotRollback writes the whole state anew if the snapshot of the newest
// rollback is gone: who held a version before it can follow no delta.
func (e *Engine) snapshotRollback() error {
	r := e.manifest.Rollback
	if r == nil || e.snapshotAt >= r.Version {
		return nil
	}
	if err := e.store.WriteSnapshot(e.model.version, e.manifest, e.model.state, e.model.residual); err != nil {
		return fmt.Errorf("the snapshot of rollback %d is damaged, and no other can be written: %w", r.Version, err)
	}
	e.snapshotAt, e.deltaBytes = e.model.version, 0
	return nil
}
