package engine

import (
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/corpus"
	"girassol.dev/coordinator/round"
)

// The ledger of a shared corpus, where the federation keeps one: leases go out
// with grants, what an accepted update used is consumed by the commit that merges
// it, and its position lies in that commit's manifest. So a crash, a void round or
// a rollback needs nothing of its own.

// openData goes on from the newest manifest.
func (e *Engine) openData() error {
	if e.cfg.Data == nil {
		return nil
	}
	l, err := corpus.New(*e.cfg.Data, position(e.manifest))
	if err != nil {
		return fmt.Errorf("federation %s: spec.data: %w", e.cfg.Federation, err)
	}
	e.data = l
	e.settleData(e.manifest)
	return nil
}

func position(man checkpoint.Manifest) corpus.Position {
	if man.Data == nil {
		return corpus.Position{}
	}
	return *man.Data
}

// settleData makes a manifest's position the ledger's; the round that held leases
// is over.
func (e *Engine) settleData(man checkpoint.Manifest) {
	if e.data == nil {
		return
	}
	var uses []corpus.Use
	for _, m := range man.Members {
		if len(m.Consumed) > 0 {
			uses = append(uses, corpus.Use{Member: m.Member, Ranges: m.Consumed, Steps: m.Steps, Seconds: m.TrainingSeconds})
		}
	}
	if err := e.data.Settle(position(man), uses); err != nil {
		e.fail(v1alpha1.ReasonCommitLogFailed, fmt.Errorf("spec.data: version %d: %w", man.Version, err))
	}
}

// consume writes into a commit's manifest what its updates have used.
func (e *Engine) consume(man *checkpoint.Manifest, uploads []*Upload) {
	if e.data == nil {
		man.Data = e.manifest.Data // kept, for a ledger that is only away for a time
		return
	}
	var uses []corpus.Use
	for i, u := range uploads {
		man.Members[i].Consumed = ranges(u.header.GetConsumed())
		uses = append(uses, corpus.Use{Ranges: man.Members[i].Consumed})
	}
	at := e.data.After(uses)
	man.Data = &at
}

// lease divides what is free among the members of the grants that lead actions.
func (e *Engine) lease(now time.Time, actions []round.Action) {
	if e.data == nil {
		return
	}
	var claims []corpus.Claim
	for _, a := range actions {
		g, ok := a.(round.Grant)
		if !ok {
			break
		}
		claims = append(claims, corpus.Claim{Member: g.Member, Steps: g.MaxSteps, Seconds: g.StopAt.Sub(now).Seconds()})
	}
	for _, name := range e.machine.Status().Granted {
		if e.machine.Over(name) {
			e.data.Return(name)
		}
	}
	e.data.Lease(claims)
}

// withhold takes back the grants for which there was no data.
func (e *Engine) withhold(now time.Time, members []string) {
	if len(members) == 0 {
		return
	}
	e.log.Info("no data for members", "members", members, "reason", v1alpha1.ReasonDataExhausted)
	e.act(now, e.machine.Withhold(now, members))
}

// checkData refuses an update that used other samples than those leased to it.
func (e *Engine) checkData(member string, h *coordinatorv1.PushHeader) *coordinatorv1.PushResult {
	switch {
	case e.data != nil:
		if err := e.data.Check(member, ranges(h.GetConsumed())); err != nil {
			return refused(v1alpha1.ReasonDataNotLeased, "%v", err)
		}
	case len(h.GetConsumed()) > 0:
		return refused(v1alpha1.ReasonDataNotLeased, "the federation keeps no data ledger (spec.data), so that no samples can be consumed")
	}
	return nil
}

// endRound tells the machine of a durable commit, which the last one is when all
// passes are done.
func (e *Engine) endRound(now time.Time) []round.Action {
	if e.rollbacks.wanted == nil { // it may give samples back
		if out, done := e.dataDone(now); done {
			return out
		}
	}
	return e.machine.Committed(now)
}

// goOn ends a rollback: with samples given back there is something to do again.
func (e *Engine) goOn(now time.Time) []round.Action {
	if e.data == nil {
		return e.machine.RolledBack(now)
	}
	e.machine.Hold()
	e.machine.RolledBack(now)
	if _, done := e.dataDone(now); !done {
		e.machine.Reopen(now)
	}
	return e.machine.Release(now)
}

func (e *Engine) dataDone(now time.Time) ([]round.Action, bool) {
	if e.data == nil || !e.data.Done() {
		return nil, false
	}
	return e.machine.Complete(now, fmt.Sprintf("all %d passes over the %d samples are done", e.cfg.Data.Passes, e.cfg.Data.Samples)), true
}

func (e *Engine) dataStatus() *coordinatorv1.DataStatus {
	if e.data == nil {
		return nil
	}
	st := e.data.Status()
	return &coordinatorv1.DataStatus{Pass: st.Pass, Samples: st.Samples, Consumed: st.Consumed, Leased: st.Leased}
}

func ranges(in []*coordinatorv1.DataRange) corpus.Ranges {
	var out corpus.Ranges
	for _, r := range in {
		out = append(out, corpus.Range{Pass: r.GetPass(), Begin: r.GetBegin(), End: r.GetEnd()})
	}
	return out
}

// leased is a member's lease for its grant.
func (e *Engine) leased(member string) []*coordinatorv1.DataRange {
	if e.data == nil {
		return nil
	}
	var out []*coordinatorv1.DataRange
	for _, r := range e.data.Leased(member) {
		out = append(out, &coordinatorv1.DataRange{Pass: r.Pass, Begin: r.Begin, End: r.End})
	}
	return out
}
