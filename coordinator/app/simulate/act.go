package simulate

import (
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
)

// act carries out what the round machine asks for.
func (r *run) act(actions []round.Action) {
	r.touched = true
	for _, a := range actions {
		switch a := a.(type) {
		case round.Grant:
			r.grant(r.members[a.Member], a)
		case round.DrainMember:
			r.drain(r.members[a.Member], a.Deadline)
		case round.Commit:
			r.commit(a)
		case round.Void:
			r.open = false
			r.voids++
			for _, s := range r.sites {
				if s.round == a.Round {
					s.lost += s.pending
					s.pending = 0
				}
			}
			r.moved = true
		case round.Ended:
			r.over, r.ended = true, a.Message
		case round.Stop, round.SiteChanged: // nobody is excluded; phases are for people
		}
	}
}

func (r *run) grant(s *site, g round.Grant) {
	if g.Round != r.atWork {
		r.atWork, r.granted, r.open = g.Round, 0, true
	}
	r.granted++
	r.turn(s, training)
	s.round, s.accepted, s.pending, s.trainFrom = g.Round, false, 0, r.now
	end := g.StopAt
	if g.MaxSteps > 0 {
		if steps := float64(g.MaxSteps) * s.Step.Seconds(); steps < end.Sub(r.now).Seconds() {
			end = r.now.Add(time.Duration(g.MaxSteps) * s.Step)
		}
	}
	s.until = end
	r.q.set(end, trained, s.index)
}

// stop ends the training of a grant; what it came to is pending.
func (r *run) stop(s *site) {
	if s.activity != training {
		return
	}
	r.turn(s, syncing)
	took := r.now.Sub(s.trainFrom)
	s.pending = s.rate * took.Seconds()
	var sync time.Duration
	if r.granted > 1 {
		sync = time.Duration(r.c.Sync * float64(took))
	}
	r.q.set(r.now.Add(sync), reported, s.index)
}

// report hands the update in.
func (r *run) report(s *site) {
	if s.activity != syncing {
		return
	}
	r.turn(s, idle)
	r.hold()
	if _, ok := r.m.Expecting(r.now, s.member, s.round); ok {
		s.accepted = true
		steps := s.pending / s.rate / s.Step.Seconds()
		r.act(r.m.Accepted(r.now, s.member, uint64(steps+0.5)))
	} else {
		s.lost += s.pending
		s.pending = 0
		r.moved = true
	}
	if s.draining {
		r.q.set(r.now, off, s.index)
		return
	}
	r.heard(s)
}

// heard says that a member is ready for work.
func (r *run) heard(s *site) {
	r.act(r.m.Heard(r.now, s.member, s.epoch, round.Report{State: round.MemberReady, Round: s.round, Step: s.Step}))
}

// commit merges at once: its time is part of the synchronisation.
func (r *run) commit(c round.Commit) {
	for _, name := range c.Members {
		s := r.members[name]
		s.done += s.pending
		r.committed += s.pending
		s.pending = 0
	}
	r.rounds++
	r.open = false
	if r.complete() && !r.finishing {
		r.finishing = true
		r.act(r.m.Pause(r.now))
	}
	r.act(r.m.Committed(r.now))
}

// drain lets a member finish its step, hand in and go.
func (r *run) drain(s *site, deadline time.Time) {
	s.draining, s.drainBy = true, deadline
	r.q.set(later(deadline, r.now), off, s.index)
	switch s.activity {
	case idle:
		r.q.set(r.now, off, s.index)
	case training:
		steps := (r.now.Sub(s.trainFrom) + s.Step - 1) / s.Step
		end := s.trainFrom.Add(steps * s.Step)
		if end.After(deadline) {
			end = deadline
		}
		if s.until.Before(end) {
			end = s.until
		}
		r.q.set(later(end, r.now), trained, s.index)
	}
}

// off switches a drained site off. Work that was not handed in is lost.
func (r *run) off(s *site) {
	if !s.draining {
		return
	}
	r.q.cancel(trained, s.index)
	r.q.cancel(reported, s.index)
	if s.activity == training {
		s.pending = s.rate * r.now.Sub(s.trainFrom).Seconds()
	}
	r.turn(s, out)
	s.draining = false
	if !s.accepted {
		s.lost += s.pending
		s.pending = 0
		r.moved = true
	}
	r.act(r.m.Lose(r.now, s.member, s.epoch, v1alpha1.ReasonAgentLeaving))
}

// tell lets a site in or out.
func (r *run) tell(s *site, admit bool, reason v1alpha1.Reason, message string) {
	r.advance(s)
	s.admitted = admit
	if len(s.changes) < mostChanges {
		s.changes = append(s.changes, Change{At: r.now, Admit: admit, Window: s.decision.Window, Reason: reason, Message: message})
	}
	want := round.Drain
	if admit {
		want = round.Admit
		switch {
		case s.activity == out:
			s.starts++
			r.turn(s, provisioning)
			r.q.set(r.now.Add(s.Provisioning), ready, s.index)
		case s.draining:
			s.draining = false
			r.q.cancel(off, s.index)
		}
	} else if s.activity == provisioning {
		r.q.cancel(ready, s.index)
		r.turn(s, out)
	}
	r.hold()
	_, actions, err := r.m.SetMembership(r.now, s.Name, want, time.Time{}, reason, message)
	r.fail(err)
	r.act(actions)
}
