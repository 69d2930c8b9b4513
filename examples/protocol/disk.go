package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/merge"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// disk is what a coordinator finds after a crash: whatever was written, whole.
type disk struct {
	term, round uint64
	log         []*commit // of version i+1
	snaps       []snapshot
	wishes      map[string]round.Membership
	paused      bool
}

// commit is a version in the log.
type commit struct {
	version, round, term uint64
	members              []merged
	digest               [32]byte
	delta                []byte // nil once pruned
	agreement            *float64
}

// merged is an update in a commit.
type merged struct {
	name, id          string
	weight            float64
	steps, base, made uint64 // made for this round
	order             int
	agreement         *float64
	payload           []byte
}

type snapshot struct {
	version  uint64
	state    *tensor.State
	residual []float32
}

// model is a coordinator's in memory.
type model struct {
	version   uint64
	digest    [32]byte
	state     *tensor.State
	residual  []float32
	agreement *float64
}

func (d *disk) init(w *World, rng *rand.Rand) {
	d.wishes = map[string]round.Membership{}
	st := tensor.NewState(w.layout)
	for i := range st.Theta {
		st.Theta[i] = float32(rng.NormFloat64())
	}
	d.snaps = []snapshot{{state: st, residual: make([]float32, w.domain.Len())}}
	w.check.wrote(w, 0, st.Digest(), d.snaps[0].residual)
}

func (d *disk) newest() uint64 { return uint64(len(d.log)) }

func (d *disk) lastRound() uint64 {
	if len(d.log) == 0 {
		return 0
	}
	return d.log[len(d.log)-1].round
}

// recover is the newest snapshot and every commit after it, merged again.
func (d *disk) recover(w *World) model {
	snap := d.snaps[len(d.snaps)-1]
	m := model{version: snap.version, state: cloneState(snap.state), residual: slices.Clone(snap.residual)}
	if w.fault == ForgetsResidual {
		clear(m.residual)
	}
	for _, c := range d.log[snap.version:] {
		if _, err := w.merge(m.state, m.residual, c.members, false); err != nil {
			w.check.fail("version %d cannot be merged again: %v", c.version, err)
		}
		m.version = c.version
	}
	m.digest = m.state.Digest()
	if n := len(d.log); n > 0 {
		m.agreement = d.log[n-1].agreement
	}
	w.check.recovered(w, m)
	return m
}

func cloneState(s *tensor.State) *tensor.State {
	c := tensor.NewState(s.Layout)
	c.CopyFrom(s)
	return c
}

// merge merges updates in the order given, which must not matter.
func (w *World) merge(st *tensor.State, residual []float32, members []merged, arrival bool) ([]byte, error) {
	updates := make([]merge.Update, 0, len(members))
	for _, m := range members {
		p, err := codec.Parse(w.domain, w.params.Uplink, bytes.NewReader(m.payload), int64(len(m.payload)), nil)
		if err != nil {
			return nil, err
		}
		name := m.name
		if arrival {
			name = fmt.Sprintf("%09d", m.order)
		}
		updates = append(updates, merge.Update{Member: name, Weight: m.weight, Payload: p, Agreement: m.agreement})
	}
	var out bytes.Buffer
	_, err := merge.Merge(st, residual, merge.Config{Params: w.params, Uplink: w.domain, Downlink: w.domain}, updates, &out)
	return out.Bytes(), err
}

// work is a commit on its way: merged, then written, then told. A crash may come
// between any two.
type work struct {
	action  round.Commit
	members []merged
	next    *model
	man     *commit
	written bool
	told    bool
}

func newWork(c *coordinator, a round.Commit) *work {
	wk := &work{action: a}
	names := a.Members
	if c.w.fault == KeepsCountedUploads {
		names = nil
		for name := range c.uploads {
			if c.uploads[name].accepted {
				names = append(names, name)
			}
		}
		slices.Sort(names)
	}
	for _, name := range names {
		u := c.uploads[name]
		wk.members = append(wk.members, merged{name: name, id: u.id, weight: u.weight, steps: u.steps, base: u.base, made: u.round,
			order: u.order, agreement: u.agreement, payload: u.payload})
	}
	return wk
}

// commitOn takes the commit at work one step on. failing: the disk takes nothing.
func (c *coordinator) commitOn(failing bool) {
	switch wk := c.work; {
	case wk == nil:
	case wk.next == nil:
		c.mergeRound(wk)
	case !wk.written:
		wk.written = c.writeRound(wk, failing)
	default:
		c.committed(wk)
	}
}

// mergeRound steps the model in memory.
func (c *coordinator) mergeRound(wk *work) {
	next := c.model
	next.state, next.residual = cloneState(c.model.state), slices.Clone(c.model.residual)
	delta, err := c.w.merge(next.state, next.residual, wk.members, c.w.fault == MergesInArrivalOrder)
	if err != nil {
		c.work = nil
		reason := v1alpha1.ReasonCommitLogFailed
		var ue *merge.UpdateError
		if errors.Is(err, merge.ErrNoWeight) || errors.As(err, &ue) {
			reason = v1alpha1.ReasonNothingToMerge
		}
		c.w.check.fail("round %d cannot be merged: %v", wk.action.Round, err)
		c.act(c.machine.CommitFailed(c.w.now, reason, err.Error()))
		return
	}
	next.version++
	next.digest = next.state.Digest()
	var agreements []float64
	for _, m := range wk.members {
		if m.agreement != nil && !wk.action.Alone {
			agreements = append(agreements, *m.agreement)
		}
	}
	next.agreement = algorithm.NextAgreement(c.model.agreement, agreements)
	wk.next = &next
	wk.man = &commit{version: next.version, round: wk.action.Round, term: c.term, members: wk.members, digest: next.digest, delta: delta, agreement: next.agreement}
	if c.w.fault == AnnouncesBeforeWrite {
		c.announce(wk)
	}
}

// writeRound makes the commit durable; false if it did not become so.
func (c *coordinator) writeRound(wk *work, failing bool) bool {
	d := &c.w.disk
	if !c.owns() && c.w.fault != IgnoresFencing {
		c.w.logf("coordinator of term %d is fenced", c.term)
		c.die()
		return false
	}
	if failing {
		c.work = nil
		c.w.logf("version %d cannot be written", wk.man.version)
		c.act(c.machine.CommitFailed(c.w.now, v1alpha1.ReasonCommitLogFailed, "the disk is full"))
		return false
	}
	c.w.check.commit(c.w, c.model, wk)
	if wk.man.version != d.newest()+1 {
		return false // the check has said so
	}
	d.log = append(d.log, wk.man)
	if wk.man.version%c.w.snapshot == 0 {
		d.snaps = append(d.snaps, snapshot{wk.man.version, cloneState(wk.next.state), slices.Clone(wk.next.residual)})
	}
	// What a newer snapshot has in it may go.
	if keep := c.w.keep; keep > 0 {
		for _, old := range d.log {
			if old.version+keep <= d.newest() && old.version <= d.snaps[len(d.snaps)-1].version {
				old.delta = nil
			}
		}
	}
	c.w.Commits++
	c.w.logf("version %d of round %d is written", wk.man.version, wk.man.round)
	return true
}

func (c *coordinator) committed(wk *work) {
	c.work = nil
	c.model = *wk.next
	for _, m := range wk.members {
		c.counted[m.name+" "+m.id] = c.model.version
	}
	c.announce(wk)
	if c.w.fault != KeepsCountedUploads {
		clear(c.uploads)
	}
	c.act(c.machine.Committed(c.w.now))
}

func (c *coordinator) announce(wk *work) {
	if wk.told {
		return
	}
	wk.told = true
	senders := map[string]bool{}
	for _, m := range wk.members {
		senders[m.name] = true
	}
	c.tell(&coordinatorv1.Committed{Round: wk.action.Round, Version: wk.next.version, Digest: slices.Clone(wk.next.digest[:])}, senders)
}

// decode is what a payload's receiver reads.
func (w *World) decode(e algorithm.Encoding, payload []byte) (*codec.Payload, []float32) {
	p, err := codec.Parse(w.domain, e, bytes.NewReader(payload), int64(len(payload)), nil)
	if err != nil {
		panic(err)
	}
	v := make([]float32, w.domain.Len())
	if err := p.Decode(v); err != nil {
		panic(err)
	}
	return p, v
}
