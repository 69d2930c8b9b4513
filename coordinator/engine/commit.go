package engine

import (
	"encoding/hex"
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
		LayoutDigest: hex.EncodeToString(e.model.layout[:]), Term: e.store.Term(),
		Algorithm:        e.params().ForCommit(len(uploads), e.agreement),
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
	man.Evaluation, man.Gate, man.Rollback = e.evaluated, e.gateState(), e.manifest.Rollback
	if e.hooks.Ledger != nil {
		man.Ledger = e.hooks.Ledger()
	}
	e.consume(&man, uploads)
	return man
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
	e.adoptEvaluation(man)
	e.settleData(man)
	e.remember(man)
}

// remember the updates of a commit, so that one that comes again is known again.
func (e *Engine) remember(man checkpoint.Manifest) {
	if man.Version+checkpoint.Recall < e.model.version {
		return
	}
	for _, mm := range man.Members {
		e.counted[mm.Member+"\x00"+mm.UpdateID] = man.Version
	}
	maps.DeleteFunc(e.counted, func(_ string, v uint64) bool { return v+checkpoint.Recall < e.model.version })
}

func (e *Engine) announceCommit(man checkpoint.Manifest) { e.announce(VersionEvent(man)) }

// VersionEvent is what is announced of a version.
func VersionEvent(man checkpoint.Manifest) events.Event {
	ev := events.Event{Type: events.RoundCommitted, UnixMilli: man.UnixMilli, Round: man.Round, Version: new(man.Version),
		Digest: man.Digest, Reason: string(v1alpha1.ReasonCommitted)}
	if man.Kind == checkpoint.KindRollback {
		ev.Type, ev.Reason, ev.Message = events.RolledBack, man.Rollback.Reason, man.Rollback.Message
	}
	return ev
}

func mustHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic("engine: own digest is not hexadecimal: " + s)
	}
	return b
}
