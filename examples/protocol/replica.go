package protocol

import (
	"bytes"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

type state = tensor.State

// upload begins to push the pending update of the round at work.
func (m *member) upload() {
	m.run.uploading, m.run.training = true, false
	m.state, m.steps = round.MemberWorking, m.kept.pending.steps
	m.deliver(m.run.g.collect)
}

// deliver pushes the pending update until there is an answer, or it is time.
func (m *member) deliver(by time.Time) {
	m.push = &delivery{id: m.kept.pending.id, by: by}
	m.pushOn()
}

// pushOn tries again where the last try broke with its session.
func (m *member) pushOn() {
	p := m.push
	if r := m.run; r != nil && r.abort {
		m.push = nil
		m.endRound(r.steps)
		return
	}
	if !m.welcom || p.sent && p.epoch == m.epoch && m.w.now.Before(p.again) {
		return
	}
	u := m.kept.pending
	m.trials++
	p.attempt, p.sent, p.epoch, p.again = m.trials, true, m.epoch, m.w.now.Add(lossAfter)
	m.w.send(&message{conn: m.conn, push: m.header(u, p.attempt)})
}

func (m *member) header(u *update, attempt int) *push {
	return &push{token: m.token, name: m.name, epoch: m.epoch, id: u.id, round: u.round, base: u.base,
		weight: u.weight, steps: u.steps, agreement: u.agreement, payload: u.payload, attempt: attempt}
}

// pushLate ends the tries. The update stays pending.
func (m *member) pushLate() {
	m.push = nil
	if m.run != nil {
		m.endRound(m.run.steps)
		return
	}
	u := m.kept.pending
	m.givenUp = u.id
	m.nothing(u.round, u.steps)
}

// answered settles what the coordinator says of a push.
func (m *member) answered(a *answer) {
	p := m.push
	if p == nil || !p.sent || a.id != p.id || a.attempt != p.attempt {
		return
	}
	m.w.logf("%s hears of %s: %s", m, a.id, a.reason)
	u := m.kept.pending
	switch {
	case a.status == acceptedStatus:
		u.accepted = true
	case a.status == refusedStatus && a.reason == v1alpha1.ReasonFencedEpoch:
		// Its token is dead, even if it does not know it yet.
		m.hangUp()
		return
	case a.status == refusedStatus && a.reason == v1alpha1.ReasonSuperseded:
		p.sent = false // another attempt of its own goes on
		return
	case a.status == staleStatus && m.w.fault == DropsStaleWork:
		m.settle(u)
		m.kept.pending = nil
	default:
		m.w.Stale++
		m.drop(string(a.reason))
	}
	m.push = nil
	if m.run != nil {
		m.endRound(m.run.steps)
		return
	}
	m.nothing(u.round, u.steps)
}

// drop ends the pending update without effect: the residual keeps its work.
func (m *member) drop(why string) {
	if u := m.kept.pending; u != nil {
		m.w.logf("%s keeps the work of %s: %s", m, u.id, why)
		m.kept.pending = nil
	}
}

// settle takes a merged update out of the residual.
func (m *member) settle(u *update) {
	p, err := codec.Parse(m.w.domain, m.w.params.Uplink, bytes.NewReader(u.payload), int64(len(u.payload)), nil)
	if err == nil {
		err = m.kept.residual.Settle(p)
	}
	if err != nil {
		m.w.check.fail("%s: %v", m, err)
	}
	m.w.check.settled(m.w, m, u)
}

// sync brings the replica to a version by the deltas it has missed, or by the whole
// state where those are pruned. It needs the session and its coordinator.
func (m *member) sync(t target) {
	if !m.up || !m.welcom || m.conn == nil || m.conn.c == nil || m.conn.c.dead || m.w.cut[m.site] {
		return
	}
	if m.conn.c.table.Token(m.token) == nil {
		return
	}
	d := &m.w.disk
	full := 0
	for !m.holds(t) {
		k := &m.kept
		if k.held && k.version < t.version && k.version < d.newest() {
			if c := d.log[k.version]; c.delta != nil {
				m.apply(c)
				continue
			}
		}
		if full++; full > 2 {
			return
		}
		if !m.settlePassedOver(d) {
			return
		}
		m.install(d)
		if k.version > t.version {
			return
		}
	}
}

// apply steps the replica by a delta.
func (m *member) apply(c *commit) {
	k := &m.kept
	m.stepBy(c)
	if got := k.state.Digest(); got != c.digest {
		m.w.check.fail("%s: the delta of version %d leads to digest %x, the coordinator's is %x", m, c.version, got[:6], c.digest[:6])
		return
	}
	u := k.pending
	mine := u != nil && c.lists(u.id)
	delta, _ := m.w.decode(m.w.params.Downlink, c.delta)
	var own *codec.Payload
	if mine {
		own, _ = m.w.decode(m.w.params.Uplink, u.payload)
	}
	if k.measured = nil; true {
		if cos, ok := codec.Agreement(m.w.domain, delta, own, k.residual.Vector()); ok {
			k.measured = &cos
		}
	}
	k.version, k.digest = c.version, c.digest
	m.w.check.holds(m, k.digest)
	if u != nil && c.version > u.base {
		m.resolve(mine)
	}
}

func (m *member) stepBy(c *commit) {
	p, _ := m.w.decode(m.w.params.Downlink, c.delta)
	if err := replica.Step(m.kept.state, m.w.domain, m.w.params, p); err != nil {
		m.w.check.fail("%s: %v", m, err)
	}
}

// applyAgain is a fault: the same delta twice.
func (m *member) applyAgain() {
	if v := m.kept.version; v > 0 && v <= m.w.disk.newest() && m.w.disk.log[v-1].delta != nil {
		m.stepBy(m.w.disk.log[v-1])
		m.w.check.holds(m, m.kept.state.Digest())
	}
}

// settlePassedOver asks the coordinator what became of the pending update, before a
// whole state is taken over that does not tell; false if it has not answered.
func (m *member) settlePassedOver(d *disk) bool {
	u, snap := m.kept.pending, d.snaps[len(d.snaps)-1]
	if u == nil || m.w.fault == AsksNobody || snap.version <= u.base+1 || d.log[snap.version-1].lists(u.id) {
		return true
	}
	c := m.conn.c
	up, a := c.beginUpdate(m.header(u, 0))
	if up != nil {
		a = c.finishUpdate(up)
	}
	switch {
	case a.status == acceptedStatus:
		u.accepted = true
	case a.reason == v1alpha1.ReasonFencedEpoch, a.reason == v1alpha1.ReasonSuperseded:
		return false
	default:
		m.drop("asked about it: " + string(a.reason))
	}
	return true
}

// install takes over the newest snapshot. What became of an update whose commit is
// passed over follows from the coordinator's answer.
func (m *member) install(d *disk) {
	k := &m.kept
	snap := d.snaps[len(d.snaps)-1]
	m.w.logf("%s pulls the whole state of version %d", m, snap.version)
	k.state, k.version, k.held = cloneState(snap.state), snap.version, true
	k.digest = k.state.Digest()
	k.measured = nil
	if u := k.pending; u != nil && snap.version > u.base {
		lists := snap.version > 0 && d.log[snap.version-1].lists(u.id)
		m.resolve(lists || snap.version > u.base+1 && u.accepted)
	}
	m.w.check.holds(m, k.digest)
}

func (c *commit) lists(id string) bool {
	for _, m := range c.members {
		if m.id == id {
			return true
		}
	}
	return false
}

// resolve ends the pending update.
func (m *member) resolve(merged bool) {
	u := m.kept.pending
	if !merged {
		m.drop("it was not merged")
		return
	}
	m.kept.pending = nil
	if m.w.fault == SendsMergedAgain {
		m.w.check.settled(m.w, m, u)
		return
	}
	m.settle(u)
}
