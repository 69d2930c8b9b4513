package engine

import (
	"encoding/hex"
	"errors"
	"maps"

	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
)

func (e *Engine) nextManifest(a round.Commit, uploads []*Upload) checkpoint.Manifest {
	man := checkpoint.Manifest{
		Version: e.model.version + 1, Round: a.Round, Kind: checkpoint.KindCommit,
		LayoutDigest: hex.EncodeToString(e.model.layout[:]), Algorithm: e.cfg.Algorithm, Term: e.store.Term(),
		CommittedSamples: e.samples, RoundsVoid: e.machine.Status().Voids, RoundsCommitted: e.machine.Status().Committed + 1,
		SiteStats: maps.Clone(e.stats),
	}
	var agreements []float64
	sites := map[string]bool{}
	for _, u := range uploads {
		h := u.header
		man.Members = append(man.Members, checkpoint.ManifestMember{
			Member: u.name, Site: u.site, UpdateID: h.GetUpdateId(), Weight: h.GetWeight(), Steps: h.GetSteps(), Samples: h.GetSamples(),
			Loss: finite(h.Loss), TrainingSeconds: h.GetTrainingSeconds(), EnergyJoules: h.GetEnergyJoules(), EnergySource: h.GetEnergySource(),
			PayloadBytes: u.spool.Size(), Agreement: finite(h.Agreement), Metrics: h.GetMetrics(), Sections: sections(h.GetTensors()),
		})
		man.CommittedSamples += h.GetSamples()
		if v := finite(h.Agreement); v != nil && !a.Alone {
			agreements = append(agreements, *v)
		}
		st := man.SiteStats[u.site]
		if !sites[u.site] {
			st.Rounds++
			sites[u.site] = true
		}
		st.Samples += h.GetSamples()
		st.TrainingSeconds += h.GetTrainingSeconds()
		man.SiteStats[u.site] = st
	}
	man.Agreement = algorithm.NextAgreement(e.agreement, agreements)
	man.Evaluation = evaluate(uploads)
	if man.Evaluation == nil {
		man.Evaluation = e.evaluated
	}
	if e.hooks.Ledger != nil {
		man.Ledger = e.hooks.Ledger()
	}
	e.consume(&man, uploads)
	return man
}

// evaluate joins the held-out results of a round, weighted by samples; nil when
// there is none.
func evaluate(uploads []*Upload) *checkpoint.Evaluation {
	var out *checkpoint.Evaluation
	var lossSum, lossN float64
	sums, weights := map[string]float64{}, map[string]float64{}
	for _, u := range uploads {
		ev := u.header.GetEvaluation()
		if ev.GetSamples() == 0 || ev.GetVersion() != u.header.GetBaseVersion() {
			continue
		}
		if out == nil {
			out = &checkpoint.Evaluation{Version: ev.GetVersion()}
		}
		n := float64(ev.GetSamples())
		out.Samples += ev.GetSamples()
		if v := finite(ev.Loss); v != nil {
			lossSum += n * *v
			lossN += n
		}
		for k, v := range ev.GetMetrics() {
			if finite(&v) != nil {
				sums[k] += n * v
				weights[k] += n
			}
		}
	}
	if out == nil {
		return nil
	}
	if lossN > 0 {
		loss := lossSum / lossN
		out.Loss = &loss
	}
	for k := range sums {
		if out.Metrics == nil {
			out.Metrics = map[string]float64{}
		}
		out.Metrics[k] = sums[k] / weights[k]
	}
	return out
}

func finite(v *float64) *float64 {
	if v == nil || *v != *v || *v-*v != 0 {
		return nil
	}
	return v
}

// adopt takes what a manifest says of the run so far.
func (e *Engine) adopt(man checkpoint.Manifest) {
	e.manifest = man
	e.samples, e.agreement, e.stats = man.CommittedSamples, man.Agreement, maps.Clone(man.SiteStats)
	if e.stats == nil {
		e.stats = map[string]checkpoint.SiteStats{}
	}
	e.evaluated = man.Evaluation
	e.settleData(man)
	e.remember(man)
}

// recentVersions is how far back a repeated update id is recognised.
const recentVersions = 64

func (e *Engine) remember(man checkpoint.Manifest) {
	if man.Version+recentVersions < e.model.version {
		return
	}
	for _, mm := range man.Members {
		e.counted[mm.Member+"\x00"+mm.UpdateID] = man.Version
	}
	maps.DeleteFunc(e.counted, func(_ string, v uint64) bool { return v+recentVersions < e.model.version })
}

func (e *Engine) announceCommit(man checkpoint.Manifest) {
	v := man.Version
	e.announce(events.Event{Type: events.RoundCommitted, Round: man.Round, Version: &v, Digest: man.Digest, Reason: string(v1alpha1.ReasonCommitted)})
}

// maybeSnapshot writes a snapshot beside the engine when it is time: the model
// does not change before the next merge, which waits for it.
func (e *Engine) maybeSnapshot() {
	m := e.model
	// Recovery should not read more deltas than a whole state; an archive is kept
	// for reading again, so there only the number counts.
	due := m.version-e.snapshotAt >= e.cfg.SnapshotEvery ||
		!e.cfg.ArchiveUpdates && e.deltaBytes > 8*int64(m.state.Layout.Parameters())
	select {
	case <-e.snapshot:
	default:
		due = false // the one before is still being written
	}
	if !due {
		return
	}
	done := make(chan struct{})
	e.snapshot = done
	man, before, bytes := e.manifest, e.snapshotAt, e.deltaBytes
	e.snapshotAt, e.deltaBytes = m.version, 0
	e.background.Go(func() {
		defer close(done)
		if err := e.store.WriteSnapshot(man.Version, man, m.state, m.residual); err != nil {
			e.post(func() {
				e.snapshotAt, e.deltaBytes = before, e.deltaBytes+bytes
				e.snapshotFailed(man.Version, err)
			})
		}
	})
}

// snapshotFailed: the commits are durable, so training goes on and the next
// commit tries again.
func (e *Engine) snapshotFailed(version uint64, err error) {
	if errors.Is(err, checkpoint.ErrFenced) {
		e.fail(v1alpha1.ReasonFenced, err)
		return
	}
	e.log.Error("snapshot failed; the next commit tries again", "version", version, "error", err)
}

func mustHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic("engine: own digest is not hexadecimal: " + s)
	}
	return b
}
