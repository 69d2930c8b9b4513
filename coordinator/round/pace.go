package round

import (
	"math"
	"slices"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// slack is the part of a round's length by which members may differ: it is given to
// one that is late before it is called back.
const slack = 0.1

// leastStep is the shortest step time that is believed: everybody's round follows what
// the members say, and one that miscounts its steps must not end those of all at once.
const leastStep = time.Millisecond

// learn takes up the step times of members that may get a grant. A small change is
// averaged with what was known, a great one is taken as it is.
func learn(ms []*member) {
	const small = 1.25
	for _, mb := range ms {
		switch change := float64(mb.step) / float64(mb.pace); {
		case mb.step == mb.learnt:
		case mb.pace > 0 && change < small && change > 1/small:
			mb.pace = (mb.pace + mb.step) / 2
		default:
			mb.pace = mb.step
		}
		mb.learnt = mb.step
	}
}

// plan is how long the local steps should take with all that goes with them, and
// whether that follows measured speeds: all ready members together do LocalSteps
// times their number.
func (m *Machine) plan(ready []*member) (time.Duration, bool) {
	speed, aside, n := 0.0, 0.0, 0 // steps per nanosecond, steps forgone to overheads
	for _, mb := range ready {
		if mb.pace > 0 {
			speed += 1 / float64(mb.pace)
			aside += float64(mb.aside()) / float64(mb.pace)
			n++
		}
	}
	if m.cfg.LocalSteps == 0 || n == 0 {
		return m.cfg.Train, false
	}
	span := (float64(m.cfg.LocalSteps)*float64(n) + aside) / speed
	if span >= float64(m.cfg.Train) {
		return m.cfg.Train, true
	}
	return time.Duration(math.Round(span)), true
}

// budget is the member's number of local steps for what is left of the span: as
// many as its measured step time lets it do, so that all finish together.
func (m *Machine) budget(mb *member, left time.Duration) uint64 {
	switch {
	case m.cfg.LocalSteps == 0:
		return 0
	case mb.pace == 0 || !m.paced:
		return uint64(max(1, math.Round(float64(m.cfg.LocalSteps)*(float64(left)/float64(m.span)))))
	}
	return uint64(max(1, math.Round(float64(left-mb.aside())/float64(mb.pace))))
}

// aside is the overhead to plan with.
func (mb *member) aside() time.Duration { return max(0, mb.overhead) }

// measure takes up what an accepted share took beside its steps. What a process does
// once, loading and compiling, is no part of the rounds that follow: the first of a
// session says nothing, one that took much longer than those before says something if
// the next does so too, and one that took much less says that those before were not
// usual.
func (mb *member) measure(sh *share, most time.Duration) {
	if mb.step == 0 || sh.steps == 0 || sh.evaluates || sh.disturbed {
		return
	}
	steps := float64(sh.steps) * float64(mb.step)
	limit := float64(most / 2)
	seen := time.Duration(min(max(float64(sh.stepsAt.Sub(sh.since))-steps, -limit), limit))
	last := mb.seen
	mb.seen = seen
	switch {
	case mb.fresh:
		mb.fresh = false
	case !mb.measured, seen < mb.overhead/2:
		mb.overhead, mb.measured = seen, true
	case seen > 2*mb.overhead && last <= 2*mb.overhead:
	default:
		mb.overhead = (mb.overhead + seen) / 2
	}
}

// expectedEnd is when members that work at their measured speed have reported.
func (m *Machine) expectedEnd() time.Time {
	if !m.paced {
		return m.stopAt
	}
	return earlier(m.stopAt, m.started.Add(m.span+m.span/4+m.cfg.Settle))
}

// finish is when a member should have done its steps by what is known of it; zero if
// that is too little. It does not depend on the present.
func (m *Machine) finish(name string, sh *share) time.Time {
	mb := m.members[name]
	if mb.step == 0 {
		return time.Time{}
	}
	return sh.stepsAt.Add(times(mb.step, sh.maxSteps-sh.steps))
}

// times multiplies within the range of a span.
func times(d time.Duration, n uint64) time.Duration {
	return time.Duration(min(float64(d)*float64(n), float64(math.MaxInt64/4)))
}

// commonEnd is when the round's members are done together: at the planned end, or
// when half of them have reported if that is later, as it is where speeds were not
// known or all have become slower. Zero: that is still to come.
func (m *Machine) commonEnd() time.Time {
	var done []time.Time
	n := 0
	for _, sh := range m.shares {
		switch {
		case sh.outcome == accepted && sh.steps >= sh.maxSteps:
			done = append(done, sh.stepsAt)
			n++
		case sh.outcome == pending && sh.awayUntil.IsZero():
			n++
		}
		// The others ended early or are not at work: they say nothing.
	}
	half := (n - 1) / 2
	if half >= len(done) {
		return time.Time{}
	}
	slices.SortFunc(done, time.Time.Compare)
	end := done[half]
	if planned := m.started.Add(m.span); m.paced && planned.After(end) {
		end = planned
	}
	return end
}

// late is when a member that lags behind is asked for what it has: at the common
// end if the rest of its steps would take longer than the slack, and after the
// slack in any case. Zero: it is not.
func (m *Machine) late(name string, sh *share, end time.Time) time.Time {
	mb := m.members[name]
	working := sh.outcome == pending && sh.awayUntil.IsZero() && mb.connected && mb.state == MemberWorking
	if end.IsZero() || !working || sh.stopped || sh.steps == 0 || sh.steps >= sh.maxSteps {
		return time.Time{}
	}
	grace := end.Add(time.Duration(slack * float64(end.Sub(m.started))))
	at := grace
	if finish := m.finish(name, sh); finish.After(grace) {
		at = end
	}
	if !at.Before(m.stopAt) {
		return time.Time{} // it stops by itself
	}
	return at
}

// callBack stops the members that lag behind: what they have counts, and nobody
// waits for the rest.
func (m *Machine) callBack(now time.Time) []Action {
	var out []Action
	end := m.commonEnd()
	for _, name := range m.shareNames() {
		sh := m.shares[name]
		if at := m.late(name, sh, end); !at.IsZero() && !now.Before(at) {
			sh.stopped = true
			out = append(out, Stop{Member: name, Round: m.round, Reason: v1alpha1.ReasonRoundDeadline})
		}
	}
	return out
}

// nextCallBack is when callBack has something to do; zero without.
func (m *Machine) nextCallBack() time.Time {
	var next time.Time
	end := m.commonEnd()
	for name, sh := range m.shares {
		next = earlier(next, m.late(name, sh, end))
	}
	return next
}
