package engine

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/merge"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
)

// commitAgreed merges a round's updates beside the engine's goroutine. Until its
// end is posted back nothing else touches the model.
func (e *Engine) commitAgreed(a round.Commit) {
	uploads := make([]*Upload, 0, len(a.Members))
	for _, name := range a.Members {
		uploads = append(uploads, e.uploads[name])
	}
	man := e.nextManifest(a, uploads)
	started := e.machine.Status().Started
	busy := e.modelBusy
	e.background.Go(func() {
		<-busy
		start := time.Now()
		done, err := e.merge(man, uploads)
		took := time.Since(start)
		if err == nil {
			e.post(func() { e.committed(time.Now(), started, a, done, uploads, took) })
			return
		}
		f := e.putBack(err)
		e.post(func() { e.mergeFailed(time.Now(), a, f) })
	})
}

// merge steps the model and makes the commit durable. Unless its error wraps
// errUntouched, the model in memory may be half a step on.
func (e *Engine) merge(man checkpoint.Manifest, uploads []*Upload) (checkpoint.Manifest, error) {
	m := e.model
	updates := make([]merge.Update, 0, len(uploads))
	for _, u := range uploads {
		updates = append(updates, merge.Update{Member: u.name, Weight: u.header.GetWeight(), Payload: u.payload, Agreement: u.header.Agreement})
	}
	tx, err := e.store.Begin(man.Version)
	if err != nil {
		return man, fmt.Errorf("%w: %w", errUntouched, err)
	}
	defer tx.Abort() // nothing once it is finished
	merged, err := merge.Merge(m.state, m.residual, m.mergeConfig(man), updates, tx.Delta())
	if err != nil {
		if !errors.Is(err, merge.ErrPartial) {
			err = fmt.Errorf("%w: %w", errUntouched, err)
		}
		return man, err
	}
	if len(merged.Clipped) > 0 {
		e.log.Warn("updates of too large a norm were scaled down", "version", man.Version, "members", merged.Clipped)
	}
	if e.archives(man.Algorithm) {
		for _, u := range uploads {
			if err := tx.AddUpdate(u.name, io.NewSectionReader(u.spool, 0, u.spool.Size())); err != nil {
				return man, err
			}
		}
	}
	man.Digest = hex.EncodeToString(merged.Digest[:])
	man.UnixMilli = time.Now().UnixMilli()
	if err := tx.Finish(man); err != nil {
		return man, err
	}
	// What the store filled in.
	all, err := e.store.Manifests(man.Version - 1)
	if err == nil && len(all) == 0 {
		err = checkpoint.ErrNotKept
	}
	if err != nil {
		return man, fmt.Errorf("the manifest of version %d cannot be read back: %w", man.Version, err)
	}
	return all[0], nil
}

// errUnknownDurability: what could not be synced may or may not survive.
var errUnknownDurability = errors.New("it is in the commit log, but not known to be durable")

// errUntouched says that a merge failed before it changed anything.
var errUntouched = errors.New("nothing was merged")

// archives says whether a commit keeps the updates: recovery of the downlink
// residual merges them again.
func (e *Engine) archives(p algorithm.Parameters) bool {
	return e.cfg.ArchiveUpdates || !p.Downlink.Lossless()
}

// committed takes over what a merge has made durable.
func (e *Engine) committed(now, started time.Time, a round.Commit, man checkpoint.Manifest, uploads []*Upload, took time.Duration) {
	m := e.model
	m.version = man.Version
	copy(m.digest[:], mustHex(man.Digest))
	e.adopt(man)
	e.deltaBytes += man.DeltaBytes
	senders := e.senders()
	e.learnNorms(a.Round, uploads)
	e.observeCommit(now, started, uploads, took)
	e.dropUploads()
	e.log.Info("round committed", "round", a.Round, "version", man.Version, "digest", man.Digest[:12], "members", a.Members,
		"samples", man.CommittedSamples, "deltaBytes", man.DeltaBytes, "took", took.Round(time.Microsecond))
	e.tellCommitted(&coordinatorv1.Committed{Round: a.Round, Version: man.Version, Digest: m.digestCopy(), Reason: string(v1alpha1.ReasonCommitted)}, senders)
	e.announceCommit(man)
	e.maybeSnapshot()
	e.act(now, e.thenRollBack(now, func() []round.Action { return e.endRound(now) }))
}

// failure is a merge that was not committed.
type failure struct {
	err error
	// reloaded is the newest commit read again, nil if the model was untouched.
	reloaded *loaded
	// lost: it could not be read again.
	lost error
}

// putBack takes the model back to the newest commit, for a failed merge must
// change nothing. It runs beside the engine, while the model is the merge's.
func (e *Engine) putBack(err error) failure {
	f := failure{err: err}
	if errors.Is(err, errUntouched) || errors.Is(err, checkpoint.ErrFenced) {
		return f
	}
	e.model.close()
	if f.reloaded, f.lost = e.load(); f.reloaded == nil && f.lost == nil {
		f.lost = errors.New("the commit log is empty")
	}
	return f
}

func (e *Engine) mergeFailed(now time.Time, a round.Commit, f failure) {
	e.log.Error("merge failed", "round", a.Round, "members", a.Members, "error", f.err)
	reason := v1alpha1.ReasonCommitLogFailed
	var ue *merge.UpdateError
	switch version := e.model.version; {
	case errors.Is(f.err, checkpoint.ErrFenced):
		e.fail(v1alpha1.ReasonFenced, f.err)
		return
	case f.lost != nil:
		e.fail(reason, fmt.Errorf("after a failed merge (%w) the model cannot be recovered: %w", f.err, f.lost))
		return
	case f.reloaded != nil:
		e.install(f.reloaded)
		e.tellEvaluated() // a result since then is forgotten
		if e.model.version != version {
			// To call the round void would have its members send their work again, on
			// top of a commit that holds it. The next start finds out what stays.
			e.fail(reason, fmt.Errorf("round %d, version %d: %w: check the disk and start again: %w", a.Round, e.model.version, errUnknownDurability, f.err))
			return
		}
	}
	if checkpoint.Full(f.err) {
		e.diskFull(now, f.err, e.mergeNeeds(a.Members), &a)
		return
	}
	if errors.Is(f.err, merge.ErrNoWeight) || errors.As(f.err, &ue) {
		reason = v1alpha1.ReasonNothingToMerge
	}
	e.act(now, e.thenRollBack(now, func() []round.Action { return e.machine.CommitFailed(now, reason, f.err.Error()) }))
}
