package engine

import (
	"context"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Observer hears what there is to count. It is called on the engine's goroutine
// and must not block.
type Observer interface {
	// UpdateAnswered: an update was Accepted, Stale or Refused, and why. The site is
	// empty when its session is not known.
	UpdateAnswered(site string, outcome UpdateOutcome, reason v1alpha1.Reason)
	RoundCommitted(RoundTimes)
	// RolledBack: the model has gone back, and why.
	RolledBack(reason v1alpha1.Reason)
}

// UpdateOutcome is how an update was answered.
type UpdateOutcome string

// Outcomes.
const (
	UpdateAccepted UpdateOutcome = "accepted"
	UpdateStale    UpdateOutcome = "stale"
	UpdateRefused  UpdateOutcome = "refused"
)

// RoundTimes is where the time of a committed round went; the three add up to
// the time from its grants to its commit.
type RoundTimes struct {
	Participants int
	// Training of the member that trained longest.
	Training time.Duration
	// Merging and making the commit durable.
	Merging time.Duration
	// Waiting is the rest: transfers, and members that wait for others.
	Waiting time.Duration
	// Loss by the members' own training, weighted by samples; nil if none told.
	Loss *float64
}

// answered tells the observer of an update that was not taken.
func (e *Engine) answered(h *coordinatorv1.PushHeader, res *coordinatorv1.PushResult) {
	if e.hooks.Observe == nil || res == nil || h.GetKind() == coordinatorv1.PushHeader_KIND_SEED {
		return
	}
	outcome := UpdateRefused
	switch res.GetStatus() {
	case coordinatorv1.PushResult_STATUS_ACCEPTED:
		return // counted once, where it is
	case coordinatorv1.PushResult_STATUS_STALE:
		outcome = UpdateStale
	}
	site := ""
	if s := e.sessions.Token(h.GetSessionToken()); s != nil {
		site = s.Site
	}
	e.hooks.Observe.UpdateAnswered(site, outcome, v1alpha1.Reason(res.GetReason()))
}

// answer is answered for callers beside the engine's goroutine.
func (e *Engine) answer(ctx context.Context, h *coordinatorv1.PushHeader, res *coordinatorv1.PushResult) error {
	if e.hooks.Observe == nil {
		return nil
	}
	return e.do(ctx, func() { e.answered(h, res) })
}

// observeCommit tells where a round's time went.
func (e *Engine) observeCommit(now, started time.Time, uploads []*Upload, merging time.Duration) {
	if e.hooks.Observe == nil {
		return
	}
	t := RoundTimes{Participants: len(uploads), Merging: merging}
	var loss, samples float64
	for _, u := range uploads {
		t.Training = max(t.Training, time.Duration(u.header.GetTrainingSeconds()*float64(time.Second)))
		if u.header.Loss != nil {
			n := float64(u.header.GetSamples())
			loss, samples = loss+u.header.GetLoss()*n, samples+n
		}
	}
	if samples > 0 {
		t.Loss = new(loss / samples)
	}
	// A late joiner's clock and ours may differ by a moment.
	t.Training = min(t.Training, max(0, now.Sub(started)-merging))
	t.Waiting = max(0, now.Sub(started)-t.Training-merging)
	e.hooks.Observe.RoundCommitted(t)
}
