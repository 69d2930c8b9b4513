package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/gate"
	"girassol.dev/coordinator/session"
)

// evaluation is what is known of held-out results.
type evaluation struct {
	// evaluated is the newest joint result, nil before the first.
	evaluated *checkpoint.Evaluation
	// results by member are those of the model at work.
	results map[string]heldOut
	// unjudged: one of them came after the last judgement.
	unjudged bool
	// useless says which answer to the evaluation at work does not count, and why.
	useless string
	gate    gate.State
}

// maxResults of one version by the members of a site.
const maxResults = 512

// heldOut is one member's result.
type heldOut struct {
	gate.Measure
	metrics map[string]float64
}

// heed takes the held-out result that an update's header carries, whatever becomes
// of the update: the result is of the version it was granted on. It counts if that
// is the model at work.
func (e *Engine) heed(s *session.Session, h *coordinatorv1.PushHeader) {
	ev, site := h.GetEvaluation(), e.cfg.Round.EvaluateSite
	// By the round at work: the header's is what its sender says.
	if _, shut := e.admitting.Of(s.Site, e.machine.Status().Round); shut {
		return
	}
	switch {
	case ev == nil || e.model == nil || e.cfg.Round.EvaluateEvery == 0 || site != "" && site != s.Site:
		return
	case ev.GetVersion() != e.model.version:
		e.log.Debug("evaluation of another version", "member", s.Member, "evaluated", ev.GetVersion(), "version", e.model.version)
		return
	case ev.GetSamples() == 0 || ev.GetSamples() > maxCount:
		e.useless = fmt.Sprintf("the evaluation of version %d by %s has %d samples and does not count: a result needs the number of its held-out samples, which is its weight",
			ev.GetVersion(), s.Member, ev.GetSamples())
		e.log.Warn("evaluation without a weight does not count", "member", s.Member, "version", ev.GetVersion(), "samples", ev.GetSamples())
		return
	}
	r := heldOut{Measure: gate.Measure{Member: s.Member, Site: s.Site, Samples: ev.GetSamples(), Loss: ev.Loss}}
	if checkNames(ev.GetMetrics()) == nil {
		r.metrics = maps.Clone(ev.GetMetrics())
		maps.DeleteFunc(r.metrics, func(_ string, v float64) bool { return finite(&v) == nil })
	}
	if old, ok := e.results[s.Member]; ok && old.Samples == r.Samples && equal(old.Loss, r.Loss) {
		return // the same header again, after a broken upload
	}
	if _, ok := e.results[s.Member]; !ok && len(e.results) >= maxResults*len(e.cfg.Round.Sites) {
		e.log.Warn("too many results of one version, this one does not count", "member", s.Member, "version", ev.GetVersion())
		return // of nodes under ever new names
	}
	if e.results == nil {
		e.results = map[string]heldOut{}
	}
	e.results[s.Member], e.unjudged, e.useless = r, true, ""
}

func equal(a, b *float64) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

// join makes one result of a version of its members': means weighted by samples.
func join(version uint64, results map[string]heldOut) *checkpoint.Evaluation {
	out := &checkpoint.Evaluation{Version: version}
	var loss, lossSamples float64
	sums, weights := map[string]float64{}, map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		n := float64(r.Samples)
		out.Samples += r.Samples
		out.Members = append(out.Members, r.Measure)
		if v := finite(r.Loss); v != nil {
			loss, lossSamples = loss+n**v, lossSamples+n
		}
		for k, v := range r.metrics {
			sums[k], weights[k] = sums[k]+n*v, weights[k]+n
		}
	}
	if lossSamples > 0 {
		out.Loss = finite(new(loss / lossSamples))
	}
	for _, k := range slices.Sorted(maps.Keys(sums)) {
		if v := sums[k] / weights[k]; finite(&v) != nil && len(out.Metrics) < maxMetrics {
			if out.Metrics == nil {
				out.Metrics = map[string]float64{}
			}
			out.Metrics[k] = v
		}
	}
	return out
}

// judge takes up the held-out results of the model at work, when there are new
// ones at a round's end. It says whether the model goes back, so that the round's
// updates, made on top of it, are of no use.
func (e *Engine) judge(now time.Time) bool {
	if !e.unjudged || e.model == nil || e.rollbacks.atWork != nil {
		return false
	}
	e.unjudged = false
	ev := join(e.model.version, e.results)
	ev.RoundsCommitted = e.machine.Status().Committed
	e.evaluated = ev
	e.machine.Evaluated(ev.RoundsCommitted)
	e.log.Info("evaluated", "version", ev.Version, "samples", ev.Samples, "loss", number(ev.Loss), "members", len(ev.Members))
	e.announce(events.Event{Type: events.Evaluated, Version: new(ev.Version), Loss: ev.Loss,
		Message: fmt.Sprintf("held-out loss %v over %d samples of %d members", number(ev.Loss), ev.Samples, len(ev.Members))})
	if e.cfg.Gate == nil {
		return false
	}
	var v gate.Verdict
	v, e.gate = e.cfg.Gate.Judge(e.gate, gate.Result{Version: ev.Version, Measures: ev.Members})
	e.pin()
	if v.Kind != gate.Worse {
		e.log.Info("gate", "verdict", v.Kind, "message", v.Message)
		e.rollbacks.failed = "" // what it was to mend is past
		return false
	}
	e.log.Warn("gate", "verdict", v.Kind, "reason", v1alpha1.ReasonEvaluationWorse, "message", v.Message)
	if e.gate.Best == nil || e.gate.Best.Version == e.model.version {
		return false // nothing to go back to, as the verdict says
	}
	e.rollBack(now, &rollback{to: e.gate.Best.Version, reason: v1alpha1.ReasonEvaluationWorse, message: v.Message})
	return true
}

// pin keeps the state of the best version.
func (e *Engine) pin() {
	if e.cfg.Gate == nil || e.gate.Best == nil {
		e.store.Pin(nil)
		return
	}
	e.store.Pin(new(e.gate.Best.Version))
}

// gateState is what a manifest keeps.
func (e *Engine) gateState() *gate.State {
	if e.cfg.Gate == nil {
		return nil
	}
	s := e.gate
	return &s
}

// adoptEvaluation takes over what a manifest knows; results of another version are
// of no use any more.
func (e *Engine) adoptEvaluation(man checkpoint.Manifest) {
	e.evaluation = evaluation{evaluated: man.Evaluation}
	if man.Gate != nil {
		e.gate = *man.Gate
	}
	e.pin()
}

// tellEvaluated lets the machine count from the newest result.
func (e *Engine) tellEvaluated() {
	if e.evaluated == nil {
		e.machine.Unevaluated()
		return
	}
	e.machine.Evaluated(e.evaluated.RoundsCommitted)
}

// evaluationNote is what a person should know of an evaluation that is due.
func (e *Engine) evaluationNote(waits string) string {
	if !e.machine.EvaluationDue() {
		return ""
	}
	return cmp.Or(waits, e.useless)
}

func (e *Engine) gateStatus(note string) *coordinatorv1.GateStatus {
	if e.cfg.Gate == nil {
		return nil
	}
	out := &coordinatorv1.GateStatus{Verdict: string(gate.Waiting), Message: "no version has a held-out result yet"}
	if b := e.gate.Best; b != nil {
		out.Message = fmt.Sprintf("no version was judged since a person went back; the next is held against version %d", b.Version)
	}
	if v := e.gate.Last; v != nil {
		out = &coordinatorv1.GateStatus{Verdict: string(v.Kind), Message: v.Message, Version: v.Version, Loss: v.Loss,
			ReferenceVersion: v.Reference, ReferenceLoss: v.ReferenceLoss}
	}
	if note != "" {
		out.Verdict, out.Message = string(gate.Waiting), note
	}
	return out
}

// number is a loss for the log.
func number(v *float64) any {
	if v == nil {
		return "none"
	}
	return *v
}
