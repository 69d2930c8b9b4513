package protocol

import (
	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/session"
)

// push is an update's header, with the payload that follows it.
type push struct {
	token, name, id    string
	epoch, round, base uint64
	weight             float64
	steps              uint64
	agreement          *float64
	payload            []byte
	attempt            int
}

// upload is an update on its way in, or accepted.
type upload struct {
	push
	s        *session.Session
	name     string
	accepted bool
	order    int // of acceptance
}

// answer to a push.
type answer struct {
	id      string
	attempt int
	status  coordinatorv1.PushResult_Status
	reason  v1alpha1.Reason
}

const (
	acceptedStatus = coordinatorv1.PushResult_STATUS_ACCEPTED
	staleStatus    = coordinatorv1.PushResult_STATUS_STALE
	refusedStatus  = coordinatorv1.PushResult_STATUS_REFUSED
)

// beginUpdate gives where to put the bytes, or the answer.
func (c *coordinator) beginUpdate(p *push) (*upload, *answer) {
	say := func(st coordinatorv1.PushResult_Status, reason v1alpha1.Reason) (*upload, *answer) {
		return nil, &answer{id: p.id, attempt: p.attempt, status: st, reason: reason}
	}
	s := c.table.Token(p.token)
	if c.w.fault == TakesFencedEpoch && s == nil {
		for _, cn := range c.conns {
			if cn.s.Member == p.name {
				s = cn.s
			}
		}
	} else if s == nil || s.Epoch != p.epoch {
		return say(refusedStatus, v1alpha1.ReasonFencedEpoch)
	}
	if s == nil {
		return say(refusedStatus, v1alpha1.ReasonFencedEpoch)
	}
	name, number := s.Member, p.round
	if c.w.fault == SpeaksForOthers {
		name = p.name
	}
	if c.w.fault == TakesStaleRound {
		number = c.machine.Status().Round
	}
	if _, ok := c.counted[name+" "+p.id]; ok && c.w.fault != TakesStaleRound {
		return say(acceptedStatus, v1alpha1.ReasonReady)
	}
	if old := c.uploads[name]; old != nil && old.id == p.id && old.accepted {
		return say(acceptedStatus, v1alpha1.ReasonReady)
	}
	if reason, ok := c.expecting(name, number); !ok {
		if reason == v1alpha1.ReasonStaleRound {
			return say(staleStatus, reason)
		}
		return say(refusedStatus, reason)
	}
	if p.base != c.model.version && c.w.fault != TakesStaleRound {
		return say(staleStatus, v1alpha1.ReasonStaleRound)
	}
	u := &upload{push: *p, s: s, name: name}
	u.round = number
	c.uploads[name] = u
	return u, nil
}

func (c *coordinator) expecting(name string, number uint64) (v1alpha1.Reason, bool) {
	if c.w.fault == TakesLateUpdate && c.machine.Working(name) && c.machine.Status().Round == number {
		return "", true
	}
	return c.machine.Expecting(c.w.now, name, number)
}

// finishUpdate counts a complete upload.
func (c *coordinator) finishUpdate(u *upload) *answer {
	say := func(st coordinatorv1.PushResult_Status, reason v1alpha1.Reason) *answer {
		return &answer{id: u.id, attempt: u.attempt, status: st, reason: reason}
	}
	current := c.uploads[u.name]
	if current != nil && current.accepted && current.id == u.id && current.round == u.round {
		return say(acceptedStatus, v1alpha1.ReasonReady)
	}
	if current != nil && current != u && current.id == u.id && current.round == u.round {
		return say(refusedStatus, v1alpha1.ReasonSuperseded)
	}
	if c.table.Member(u.name) != u.s && c.w.fault != TakesFencedEpoch && c.w.fault != SpeaksForOthers {
		return say(refusedStatus, v1alpha1.ReasonFencedEpoch)
	}
	if reason, ok := c.expecting(u.name, u.round); !ok || current != u {
		if reason == "" {
			reason = v1alpha1.ReasonStaleRound
		}
		return say(staleStatus, reason)
	}
	u.accepted, u.order = true, len(c.uploads)
	c.w.ids++
	u.order = c.w.ids
	c.w.logf("update %s of %s for round %d is accepted", u.id, u.name, u.round)
	c.w.check.accept(c.w, c, u)
	c.act(c.machine.Accepted(c.w.now, u.name, u.steps))
	return say(acceptedStatus, v1alpha1.ReasonReady)
}
