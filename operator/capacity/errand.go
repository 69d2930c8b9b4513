package capacity

import (
	"math/rand/v2"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/provisioning"
	"girassol.dev/operator/membership"
)

const (
	// pollDefault is the default of capacity.webhook.pollSeconds.
	pollDefault = 15 * time.Second
	// Waits after no answer double from the first to the last; so do those after a
	// refusal, which a person has to see to.
	unreachableFirst, unreachableLast = 5 * time.Second, 5 * time.Minute
	refusedFirst, refusedLast         = time.Minute, 30 * time.Minute
	// secretLast bounds the waits for a Secret that is to be put right.
	secretLast = 30 * time.Second
	// inFlight is when to look for an answer if nobody listens to Changed.
	inFlight = 2 * time.Second
	// forgotten sites are those that nobody has looked at for so long.
	forgotten = 24 * time.Hour
)

// errand is one wish on its way to a provisioner.
type errand struct {
	key        string
	wish       v1alpha1.ProvisioningWish
	generation int64
	// taken: the provisioner has the wish. outcome is empty until it said one.
	taken   bool
	outcome provisioning.Outcome
	poll    string
	// fault of the last question, how many in a row, and when to ask again.
	fault    *membership.Fault
	failures int
	next     time.Time
}

// newErrand takes up what Site.status remembers.
func newErrand(s *v1alpha1.Site) *errand {
	p := s.Status.Provisioning
	e := &errand{key: p.Key, wish: p.Wish, generation: s.Generation, taken: p.AskedAt != nil, poll: p.PollURL}
	if p.State == v1alpha1.ProvisioningDone {
		e.taken, e.outcome = true, provisioning.Done
	}
	return e
}

// ended: there is no more to ask.
func (e *errand) ended() bool {
	return e.outcome == provisioning.Done || e.outcome == provisioning.Failed
}

func (e *errand) state(now time.Time, busy bool) State {
	st := State{
		Capacity: membership.Capacity{
			Managed: true,
			Asked:   e.taken,
			Idle:    e.wish == v1alpha1.WishRelease && e.outcome == provisioning.Done,
			Failed:  e.outcome == provisioning.Failed,
			Done:    e.outcome == provisioning.Done,
			Fault:   e.fault,
		},
		PollURL: e.poll,
	}
	switch {
	case e.ended():
	case busy:
		st.Recheck = inFlight
	default:
		st.Recheck = max(time.Second, e.next.Sub(now))
	}
	return st
}

// reply is what came of a question: an answer, or a fault.
type reply struct {
	answer provisioning.Answer
	fault  *membership.Fault
	// again is the least wait before the next question, as the other side asks.
	again time.Duration
	// lost: what is at the poll URL is no longer known there.
	lost bool
}

// hear takes a reply over and sets when to ask again.
func (e *errand) hear(r reply, pause time.Duration, now time.Time) {
	if r.lost {
		e.poll = ""
	}
	if r.fault != nil {
		e.fault = r.fault
		first, last := unreachableFirst, unreachableLast
		switch r.fault.Reason {
		case v1alpha1.ReasonProvisionerRefused:
			first, last = refusedFirst, refusedLast
		case v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonSecretInvalid:
			last = secretLast
		}
		wait := min(last, first<<min(e.failures, 16))
		wait = max(wait+time.Duration(rand.Int64N(int64(wait)/5)), min(r.again, last))
		e.failures++
		e.next = now.Add(wait)
		return
	}
	e.taken, e.failures, e.fault = true, 0, nil
	e.next = now.Add(pause)
	e.conclude(r.answer.State, r.answer.Message)
	if r.answer.Poll != "" {
		e.poll = r.answer.Poll
	}
}

// conclude takes an outcome; what has ended does not begin again.
func (e *errand) conclude(o provisioning.Outcome, message string) {
	if e.ended() && o == provisioning.Pending {
		return
	}
	e.taken, e.outcome = true, o
	e.fault = nil
	if o == provisioning.Failed {
		text := "the provisioner gave up on the wish"
		if message != "" {
			text += ": " + clip(message)
		}
		e.fault = &membership.Fault{Reason: v1alpha1.ReasonProvisionerFailed, Message: text}
	}
}
