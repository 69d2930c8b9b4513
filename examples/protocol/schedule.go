package protocol

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"girassol.dev/coordinator/round"
)

// Step is one thing that happens. A and B choose what it happens to, among what
// there is when it does.
type Step struct {
	Op   Op
	A, B uint32
}

// Op is a kind of step.
type Op int

// The kinds, and how often each comes in a hundred or so.
const (
	Service Op = iota // a while without faults
	Advance
	Deliver
	Drop
	Duplicate
	Break
	Pause // of the coordinator's process: time passes, its timers do not run
	Commit
	CommitFails
	CrashCoordinator
	StartCoordinator
	Usurp // another coordinator opens the store beside the first
	CrashMember
	StartMember
	Train
	Work
	Beat
	Dial
	Cut
	Mend
	Drain
	Exclude
	Admit
	Leave
	Hint // an event ends a round early
	PauseRun
	ResumeRun
	JumpClock
	Forge
	ops
)

var weights = [ops]int{
	Service: 30, Advance: 8, Deliver: 14, Drop: 4, Duplicate: 4, Break: 3, Pause: 2, Commit: 6, CommitFails: 1, CrashCoordinator: 3, StartCoordinator: 4,
	Usurp: 1, CrashMember: 3, StartMember: 4, Train: 8, Work: 8, Beat: 6, Dial: 2, Cut: 2, Mend: 4, Drain: 3, Exclude: 1, Admit: 4, Leave: 1,
	Hint: 1, PauseRun: 1, ResumeRun: 3, JumpClock: 1, Forge: 2,
}

var opNames = [ops]string{
	"service", "advance", "deliver", "drop", "duplicate", "break", "pause", "commit", "commit-fails", "crash-coordinator", "start-coordinator", "usurp",
	"crash-member", "start-member", "train", "work", "beat", "dial", "cut", "mend", "drain", "exclude", "admit", "leave", "hint", "pause-run", "resume-run", "jump-clock", "forge",
}

func (s Step) String() string { return fmt.Sprintf("%s(%d,%d)", opNames[s.Op], s.A, s.B) }

// Schedule draws a seed's steps.
func Schedule(seed uint64) []Step {
	rng := rand.New(rand.NewPCG(seed, 2))
	total := 0
	for _, n := range weights {
		total += n
	}
	steps := make([]Step, 20+rng.IntN(60))
	for i := range steps {
		at := rng.IntN(total)
		op := Op(0)
		for at >= weights[op] {
			at -= weights[op]
			op++
		}
		steps[i] = Step{op, rng.Uint32N(1 << 16), rng.Uint32N(1 << 16)}
	}
	return steps
}

// Run does the steps, then ends all faults and looks whether the federation comes to
// itself. It returns what did not hold.
func (w *World) Run(steps []Step) error {
	for _, s := range steps {
		w.do(s)
		if w.check.err != nil {
			return w.check.err
		}
	}
	w.heal()
	return w.check.err
}

// healed bounds how long a federation without faults takes to two more commits.
const healed = 60 * time.Second

// heal ends all faults.
func (w *World) heal() {
	w.logf("all faults end")
	clear(w.cut)
	w.healing = true
	for len(w.coords) > 0 && (len(w.coords) > 1 || !w.coords[0].owns()) {
		w.coords[0].die()
	}
	if w.current() == nil {
		w.startCoordinator()
	}
	w.members[4].crash()
	c := w.current()
	w.disk.paused = false
	c.act(c.machine.Resume(w.now))
	for _, site := range w.round.Sites {
		w.disk.wishes[site] = round.Admit
		c.setMembership(site, round.Admit, 0)
	}
	version := w.disk.newest()
	for end := w.now.Add(healed); w.now.Before(end) && w.disk.newest() < version+2 && w.check.err == nil; {
		w.service(beatEvery)
	}
	// Let the round at work end, and everybody hear of it.
	w.disk.paused = true
	c.act(c.machine.Pause(w.now))
	for end := w.now.Add(healed); w.now.Before(end) && w.check.err == nil && !w.quiet(); {
		w.service(beatEvery)
	}
	if w.check.err == nil {
		w.check.end(w, version)
	}
}

// quiet says that no round is at work and everybody holds the newest version.
func (w *World) quiet() bool {
	if w.current().machine.Status().State != round.Waiting {
		return false
	}
	for _, m := range w.members[:4] {
		if !m.kept.held || m.kept.version != w.disk.newest() || m.run != nil || m.push != nil {
			return false
		}
	}
	return true
}

func (w *World) do(s Step) {
	m := w.members[int(s.A)%len(w.members)]
	site := w.round.Sites[int(s.A)%len(w.round.Sites)]
	c := w.current()
	if len(w.coords) > 1 {
		c = w.coords[int(s.B)%len(w.coords)]
	}
	switch s.Op {
	case Service:
		w.service(time.Duration(1+s.A%8) * beatEvery / 2)
	case Advance:
		w.advance(time.Duration(s.A%3000) * time.Millisecond)
	case Pause:
		w.now = w.now.Add(time.Duration(s.A%12000) * time.Millisecond)
		for _, m := range w.members {
			m.tick()
		}
	case Deliver, Drop, Duplicate:
		w.network(s)
	case Break:
		if m.conn != nil {
			m.hangUp()
		}
	case CrashMember:
		m.crash()
	case StartMember:
		m.start()
	case Train:
		for range 1 + s.B%3 {
			m.train()
		}
	case Work:
		m.worker()
	case Beat:
		m.beat()
	case Dial:
		m.dial()
	case Leave:
		if m.up && !m.leaving {
			m.leaving, m.leaveBy = true, w.now.Add(grace)
		}
	case Hint:
		if r := m.run; r != nil {
			r.finish(w.now)
		}
	case Cut:
		w.cut[site] = true
	case Mend:
		delete(w.cut, site)
	case JumpClock:
		w.jump(s)
	case Forge:
		w.forge(m, w.members[int(s.B)%len(w.members)])
	default:
		w.govern(s, c, site)
	}
	w.flush()
}

// govern is what happens to coordinators and what people wish.
func (w *World) govern(s Step, c *coordinator, site string) {
	switch s.Op {
	case StartCoordinator:
		if w.current() == nil {
			w.startCoordinator()
		}
		return
	case Usurp:
		if len(w.coords) == 1 {
			w.startCoordinator()
		}
		return
	}
	if c == nil {
		return
	}
	switch s.Op {
	case Commit:
		c.commitOn(false)
	case CommitFails:
		c.commitOn(true)
	case CrashCoordinator:
		w.Crashes++
		c.die()
	case Drain, Exclude, Admit:
		want := map[Op]round.Membership{Drain: round.Drain, Exclude: round.Exclude, Admit: round.Admit}[s.Op]
		if c == w.current() {
			w.disk.wishes[site] = want
		}
		c.setMembership(site, want, time.Duration(s.B%6000)*time.Millisecond)
	case PauseRun:
		w.disk.paused = true
		c.act(c.machine.Pause(w.now))
	case ResumeRun:
		w.disk.paused = false
		c.act(c.machine.Resume(w.now))
	}
}

// network delivers, loses or repeats any message on its way, in any order.
func (w *World) network(s Step) {
	if len(w.net) == 0 {
		return
	}
	i := int(s.A) % len(w.net)
	switch s.Op {
	case Deliver:
		w.deliver(i, false)
	case Duplicate:
		w.deliver(i, true)
	case Drop:
		w.net = slices.Delete(w.net, i, i+1)
	}
}

// jump sets a wall clock.
func (w *World) jump(s Step) {
	by := time.Duration(int64(s.B)-1<<15) * 10 * time.Millisecond
	w.skewed = w.now
	if i := int(s.A) % (len(w.members) + 1); i < len(w.members) {
		w.members[i].skew += by
	} else {
		w.skew += by
	}
}

// forge is a member that sends its update under another's name, or with another's epoch.
func (w *World) forge(m, other *member) {
	u := m.kept.pending
	if u == nil || !m.welcom || m == other {
		return
	}
	p := m.header(u, 0)
	p.name = other.name
	w.send(&message{conn: m.conn, push: p})
	q := *p
	q.epoch = other.epoch
	w.send(&message{conn: m.conn, push: &q})
}

// Shrink takes steps away as long as the schedule still fails.
func Shrink(steps []Step, fails func([]Step) bool) []Step {
	for size := len(steps) / 2; size > 0; size /= 2 {
		for lo := 0; lo < len(steps); {
			less := slices.Concat(steps[:lo], steps[min(lo+size, len(steps)):])
			if fails(less) {
				steps = less
			} else {
				lo += size
			}
		}
	}
	return steps
}
