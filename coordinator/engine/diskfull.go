package engine

import (
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/codec"
)

// On a full disk the run stands still and goes on by itself once there is room. A
// round whose merge found no room keeps its updates and is merged then; members that
// upload try again. Nothing is lost, and nobody trains for nothing.

// roomEvery so often the disk is asked.
const roomEvery = 5 * time.Second

// standstill is a run that waits for room.
type standstill struct {
	since time.Time
	// merge is the round whose commit found none, nil if it was something else.
	merge *round.Commit
}

// diskFull stands still until so many bytes fit.
func (e *Engine) diskFull(now time.Time, cause error, need int64, merge *round.Commit) {
	if e.still != nil {
		if merge != nil {
			e.still.merge = merge
		}
		return
	}
	e.still = &standstill{since: now, merge: merge}
	text := fmt.Sprintf("the coordinator's disk is full; goes on by itself with %d MB free: %v", (need+1e6)/1e6, cause)
	e.log.Error("paused", "reason", v1alpha1.ReasonDiskFull, "needsBytes", need, "error", cause)
	e.announce(events.Event{Type: events.Paused, Round: e.machine.Status().Round, Reason: string(v1alpha1.ReasonDiskFull), Message: text})
	e.background.Go(func() { e.waitForRoom(need) })
	e.act(now, e.machine.Obstruct(now, v1alpha1.ReasonDiskFull, text))
}

func (e *Engine) waitForRoom(need int64) {
	tick := time.NewTicker(e.roomEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.stopped:
			return
		case <-tick.C:
		}
		if e.store.HasRoom(need) == nil {
			e.post(func() { e.roomAgain(time.Now()) })
			return
		}
	}
}

// roomAgain goes on: first with the merge that waits.
func (e *Engine) roomAgain(now time.Time) {
	was := e.still
	e.still = nil
	e.log.Info("resumed", "reason", v1alpha1.ReasonDiskFull, "after", now.Sub(was.since).Round(time.Second))
	e.announce(events.Event{Type: events.Resumed, Round: e.machine.Status().Round, Reason: string(v1alpha1.ReasonDiskFull)})
	if was.merge != nil && e.machine.Status().State == round.Committing {
		e.commit(*was.merge)
	}
	e.act(now, e.machine.Clear(now))
}

// mergeNeeds is the most that a commit of these updates writes.
func (e *Engine) mergeNeeds(members []string) int64 {
	need := codec.MaxSize(e.model.domain, e.params().Downlink)
	if e.archives(e.params()) {
		for _, name := range members {
			if u := e.uploads[name]; u != nil {
				need += u.Size()
			}
		}
	}
	return need
}

// noRoom answers an upload that the disk cannot take; its sender tries again.
func (e *Engine) noRoom(now time.Time, cause error, need int64) *coordinatorv1.PushResult {
	e.diskFull(now, cause, need, nil)
	return refused(v1alpha1.ReasonDiskFull, "the coordinator's disk is full; push again, it goes on where it stopped")
}

// StorageFailed is the answer to a sender whose bytes could not be kept.
func (e *Engine) StorageFailed(u *Upload, cause error) *coordinatorv1.PushResult {
	if !checkpoint.Full(cause) {
		return stale(v1alpha1.ReasonCommitLogFailed, "the coordinator cannot store the upload: %v", cause)
	}
	e.post(func() { e.noRoom(time.Now(), cause, u.Size()) })
	return refused(v1alpha1.ReasonDiskFull, "the coordinator's disk is full; push again, it goes on where it stopped")
}
