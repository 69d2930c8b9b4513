package protocol

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"time"
	"unsafe"

	"girassol.dev/coordinator/merge"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
)

// checker is what somebody outside knows, who sees everything and forgets nothing.
type checker struct {
	err error

	digests   map[uint64][32]byte // of versions that were written
	residuals map[uint64]uint64   // hashes of the coordinator's residual at them
	announced map[uint64][32]byte
	epochs    map[string]uint64       // the newest of each member
	rounds    map[uint64]*coordinator // who granted it
	stops     map[[2]uint64]time.Time // by epoch and round
	updates   map[string]*known
	books     [5]book
}

// known is an update as its member made it.
type known struct {
	m           *member
	round, base uint64
	weight      float64
	sent        []float32
	merged      uint64 // version, 0 for none
	settled     bool
}

// book is a member's conservation: what it worked is what it sent and what it has.
type book struct{ worked, settled []float64 }

var seed = maphash.MakeSeed()

func (k *checker) init(w *World) {
	k.digests, k.residuals, k.announced = map[uint64][32]byte{}, map[uint64]uint64{}, map[uint64][32]byte{}
	k.epochs, k.rounds, k.stops = map[string]uint64{}, map[uint64]*coordinator{}, map[[2]uint64]time.Time{}
	k.updates = map[string]*known{}
	for i := range k.books {
		k.books[i] = book{make([]float64, w.domain.Len()), make([]float64, w.domain.Len())}
	}
}

func (k *checker) broken() error { return k.err }

func (k *checker) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

func hashOf(v []float32) uint64 {
	return maphash.Bytes(seed, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v)))
}

// session: epochs of a member grow, over all restarts.
func (k *checker) session(w *World, c *coordinator, s *session.Session) {
	if !c.owns() {
		return // fenced: its sessions come to nothing
	}
	if s.Epoch <= k.epochs[s.Member] {
		k.fail("%s gets session %d after session %d", s.Member, s.Epoch, k.epochs[s.Member])
	}
	k.epochs[s.Member] = s.Epoch
}

// grant: a round's number is given by one coordinator only, and its stop time lies ahead.
func (k *checker) grant(w *World, c *coordinator, g round.Grant, epoch uint64) {
	if !g.StopAt.After(w.now) || g.Deadline.Before(g.StopAt) {
		k.fail("a grant of round %d at %s stops at %s and ends at %s", g.Round, w.now, g.StopAt, g.Deadline)
	}
	if w.disk.wishes[site(g.Member)] != round.Admit && c.owns() {
		k.fail("%s is granted round %d, its site is to %s", g.Member, g.Round, w.disk.wishes[site(g.Member)])
	}
	k.stops[[2]uint64{epoch, g.Round}] = g.StopAt
	if !c.owns() {
		return // fenced: what it grants comes to nothing
	}
	if by, ok := k.rounds[g.Round]; ok && by != c {
		k.fail("round %d is granted again, by the coordinator of term %d", g.Round, c.term)
	}
	k.rounds[g.Round] = c
}

func site(member string) string { return member[:1] }

// step: none after the stop time. On sound clocks that is the coordinator's, give or
// take what the estimate of their offset may be wrong.
func (k *checker) step(w *World, m *member, g *grant) {
	if by := g.received.Add(time.Duration(g.GetStopInMs()) * time.Millisecond); !w.now.Before(by) {
		k.fail("%s does a step of round %d at %s, it was to stop at %s", m, g.GetRound(), clock(w.now), clock(by))
	}
	by, known := k.stops[[2]uint64{g.GetEpoch(), g.GetRound()}]
	if g.slack < 0 || !known || !w.skewed.IsZero() {
		return
	}
	if by = by.Add(g.slack + 2*time.Millisecond); !w.now.Before(by) {
		k.fail("%s does a step of round %d at %s, by the coordinator's clock it was to stop at %s", m, g.GetRound(), clock(w.now), clock(by))
	}
}

func clock(t time.Time) string { return fmt.Sprintf("%.3fs", t.Sub(epochStart).Seconds()) }

// work is what a member has added to its residual, from where it started.
func (k *checker) work(m *member, start, end []float32) {
	diff, g := make([]float32, len(start)), make([]float32, m.w.domain.Len())
	for i := range diff {
		diff[i] = start[i] - end[i]
	}
	m.w.domain.Forward(g, diff)
	for i, v := range g {
		k.books[m.index].worked[i] += float64(v)
	}
}

func (k *checker) staged(w *World, m *member, u *update, steps uint64) {
	_, sent := w.decode(w.params.Uplink, u.payload)
	k.updates[u.id] = &known{m: m, round: u.round, base: u.base, weight: float64(steps * uint64(1+m.index)), sent: sent}
	k.conserved(m)
}

// settled: only what was merged leaves a residual, and once.
func (k *checker) settled(w *World, m *member, u *update) {
	x := k.updates[u.id]
	if x.merged == 0 {
		k.fail("%s takes update %s out of its residual, which no commit has", m, u.id)
	}
	if x.settled {
		k.fail("%s takes update %s out of its residual twice", m, u.id)
	}
	x.settled = true
	for i, v := range x.sent {
		k.books[m.index].settled[i] += float64(v)
	}
	k.conserved(m)
}

// conserved: u + what left it is all the work that went into it.
func (k *checker) conserved(m *member) {
	b := &k.books[m.index]
	for i, u := range m.kept.residual.Vector() {
		if off := math.Abs(b.worked[i] - b.settled[i] - float64(u)); !(off <= 1e-4*(1+math.Abs(b.worked[i]))) {
			k.fail("%s: of its work %g, %g was merged and %g is left: %g is missing or too much", m, b.worked[i], b.settled[i], u, off)
			return
		}
	}
}

// accept: an update counts for whoever made it, in its round, in its session, in time.
func (k *checker) accept(w *World, c *coordinator, u *upload) {
	x := k.updates[u.id]
	st := c.machine.Status()
	live := c.table.Member(u.name)
	switch {
	case x.m.name != u.name:
		k.fail("update %s of %s counts for %s", u.id, x.m.name, u.name)
	case live == nil || live.Epoch != u.epoch || live.Token != u.token:
		k.fail("update %s of %s was sent in session %d, which is not its live one", u.id, u.name, u.epoch)
	case x.round != st.Round || x.base != c.model.version:
		k.fail("update %s is of round %d on version %d and counts in round %d on version %d", u.id, x.round, x.base, st.Round, c.model.version)
	case !w.now.Before(st.Deadline):
		k.fail("update %s counts at %s, the round's deadline was %s", u.id, clock(w.now), clock(st.Deadline))
	}
}

// commit: versions grow by one, rounds grow, each update counts once, with its real
// weight, in any order; what came up and was held back goes down or is held back.
func (k *checker) commit(w *World, before model, wk *work) {
	man := wk.man
	if man.version != w.disk.newest()+1 {
		k.fail("version %d is written after version %d", man.version, w.disk.newest())
		return
	}
	if last := w.disk.lastRound(); man.round <= last {
		k.fail("version %d is of round %d, the one before of round %d", man.version, man.round, last)
	}
	for _, m := range wk.members {
		x := k.updates[m.id]
		switch {
		case x.merged != 0:
			k.fail("update %s counts in version %d and in version %d", m.id, x.merged, man.version)
		case x.m.name != m.name:
			k.fail("update %s of %s counts for %s", m.id, x.m.name, m.name)
		case x.round != man.round || x.base+1 != man.version:
			k.fail("update %s of round %d on version %d counts in version %d of round %d", m.id, x.round, x.base, man.version, man.round)
		case x.weight != m.weight:
			k.fail("update %s has weight %g, its work is worth %g", m.id, m.weight, x.weight)
		}
		x.merged = man.version
	}
	if k.err != nil {
		return
	}
	again, residual := cloneState(before.state), slices.Clone(before.residual)
	turned := slices.Clone(wk.members)
	slices.Reverse(turned)
	if _, err := w.merge(again, residual, turned, false); err != nil || again.Digest() != man.digest {
		k.fail("version %d depends on the order of its updates (%v)", man.version, err)
	}
	k.balance(w, before, wk)
	k.wrote(w, man.version, man.digest, wk.next.residual)
}

// balance is R + Q = D + R'.
func (k *checker) balance(w *World, before model, wk *work) {
	updates := make([]merge.Update, 0, len(wk.members))
	for _, m := range wk.members {
		p, _ := w.decode(w.params.Uplink, m.payload)
		updates = append(updates, merge.Update{Member: m.name, Weight: m.weight, Payload: p})
	}
	mean, err := merge.NewMean(w.domain, updates)
	if err != nil {
		k.fail("version %d: %v", wk.man.version, err)
		return
	}
	_, down := w.decode(w.params.Downlink, wk.man.delta)
	q := make([]float32, w.domain.Len())
	for _, b := range w.domain.Blocks() {
		if err := mean.Block(b, q[b.Lo:b.Hi]); err != nil {
			k.fail("version %d: %v", wk.man.version, err)
			return
		}
	}
	for i := range q {
		in, out := float64(before.residual[i])+float64(q[i]), float64(down[i])+float64(wk.next.residual[i])
		if !(math.Abs(in-out) <= 1e-6*(1+math.Abs(in))) {
			k.fail("version %d: %g and %g come in, %g goes down and %g stays", wk.man.version, before.residual[i], q[i], down[i], wk.next.residual[i])
			return
		}
	}
}

func (k *checker) wrote(_ *World, version uint64, digest [32]byte, residual []float32) {
	if d, ok := k.announced[version]; ok && d != digest {
		k.fail("version %d was announced with digest %x and is written with %x", version, d[:6], digest[:6])
	}
	k.digests[version], k.residuals[version] = digest, hashOf(residual)
}

// promised: what a member was told of is on disk and stays as it is.
func (k *checker) promised(version uint64, digest [32]byte) {
	if d, ok := k.digests[version]; ok && d != digest {
		k.fail("version %d is announced with digest %x, it has %x", version, digest[:6], d[:6])
	}
	k.announced[version] = digest
}

// recovered: bit for bit what was committed, and nothing that was told is lost.
func (k *checker) recovered(w *World, m model) {
	switch {
	case m.digest != k.digests[m.version]:
		k.fail("the recovered version %d has digest %x, it was written with %x", m.version, m.digest[:6], k.digests[m.version])
	case hashOf(m.residual) != k.residuals[m.version]:
		k.fail("version %d is recovered with another residual", m.version)
	}
	for v := range k.announced {
		if v > m.version {
			k.fail("version %d was announced, the newest one recovered is %d", v, m.version)
		}
	}
}

// holds: a member's state is the coordinator's of that version.
func (k *checker) holds(m *member, got [32]byte) {
	if want, ok := k.digests[m.kept.version]; !ok || got != want {
		k.fail("%s holds version %d with digest %x, the coordinator's is %x", m, m.kept.version, got[:6], want[:6])
	}
}

// timely: no round and no drain outlives its deadline, whatever arrives or does not.
func (k *checker) timely(w *World) {
	for _, c := range w.coords {
		if !w.now.Before(c.deadline) {
			if st := c.machine.Status(); st.State == round.Collecting {
				k.fail("round %d collects at %s, its deadline was %s", st.Round, clock(w.now), clock(st.Deadline))
			}
		}
		for _, m := range w.members {
			by, drains := c.drainBy[m.site]
			if drains && !w.now.Before(by) && c.machine.Working(m.name) {
				k.fail("%s works at %s, its drain was to end by %s", m, clock(w.now), clock(by))
			}
			by, leaves := c.leaveBy[m.name]
			if leaves && !w.now.Before(by) && c.machine.Working(m.name) {
				k.fail("%s works at %s, it was to have left by %s", m, clock(w.now), clock(by))
			}
		}
	}
}

// end is what must hold once all faults are over and everybody has had time: all
// hold the newest version, and each merged update has left its maker's residual.
func (k *checker) end(w *World, version uint64) {
	newest := w.disk.newest()
	if newest < version+2 {
		c := w.current()
		k.fail("nothing is committed after version %d, with all faults over: %s", newest, c.machine.Status().Message)
		return
	}
	for _, m := range w.members[:4] {
		if !m.kept.held || m.kept.version != newest {
			k.fail("%s holds version %d, the newest is %d", m, m.kept.version, newest)
			return
		}
		k.holds(m, m.kept.state.Digest())
	}
	for id, x := range k.updates {
		p := x.m.kept.pending
		if x.merged == 0 || x.settled || p != nil && p.id == id {
			continue
		}
		k.fail("update %s is in version %d and still in the residual of %s: it would count twice", id, x.merged, x.m)
	}
}
