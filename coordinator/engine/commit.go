package engine

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/merge"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
)

// commit merges a round's updates beside the engine's goroutine. Until its end
// is posted back nothing else touches the model.
func (e *Engine) commit(a round.Commit) {
	uploads := make([]*Upload, 0, len(a.Members))
	for _, name := range a.Members {
		uploads = append(uploads, e.uploads[name])
	}
	man := e.nextManifest(a, uploads)
	snapshot := e.snapshot
	e.background.Go(func() {
		<-snapshot // it reads the model that the merge changes
		start := time.Now()
		done, err := e.merge(man, uploads)
		took := time.Since(start)
		e.post(func() { e.mergeEnded(a, done, uploads, took, err) })
	})
}

// merge steps the model and makes the commit durable. When it fails, the model
// in memory may be half a step on.
func (e *Engine) merge(man checkpoint.Manifest, uploads []*Upload) (checkpoint.Manifest, error) {
	m := e.model
	updates := make([]merge.Update, 0, len(uploads))
	for _, u := range uploads {
		updates = append(updates, merge.Update{Member: u.name, Weight: u.header.GetWeight(), Payload: u.payload, Agreement: u.header.Agreement})
	}
	tx, err := e.store.Begin(man.Version)
	if err != nil {
		return man, err
	}
	if _, err := merge.Merge(m.state, m.residual, m.merge, updates, tx.Delta()); err != nil {
		tx.Abort()
		return man, err
	}
	if e.archives() {
		for _, u := range uploads {
			if err := tx.AddUpdate(u.name, io.NewSectionReader(u.spool, 0, u.spool.Size())); err != nil {
				tx.Abort()
				return man, err
			}
		}
	}
	digest := m.state.Digest()
	man.Digest = hex.EncodeToString(digest[:])
	man.UnixMilli = time.Now().UnixMilli()
	if err := tx.Finish(man); err != nil {
		return man, err
	}
	// What the store filled in.
	all, err := e.store.Manifests(man.Version - 1)
	if err != nil || len(all) == 0 {
		return man, fmt.Errorf("the manifest of version %d cannot be read back: %w", man.Version, err)
	}
	return all[0], nil
}

// archives says whether commits keep the updates: recovery of the downlink
// residual merges them again.
func (e *Engine) archives() bool {
	return e.cfg.ArchiveUpdates || !e.cfg.Algorithm.Downlink.Lossless()
}

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

func (e *Engine) mergeEnded(a round.Commit, man checkpoint.Manifest, uploads []*Upload, took time.Duration, err error) {
	now := time.Now()
	if err != nil {
		e.mergeFailed(now, a, err)
		return
	}
	m := e.model
	m.version = man.Version
	copy(m.digest[:], mustHex(man.Digest))
	e.adopt(man)
	e.deltaBytes += man.DeltaBytes
	senders := map[string]bool{}
	for _, u := range uploads {
		senders[u.name] = true
	}
	e.dropUploads()
	e.log.Info("round committed", "round", a.Round, "version", man.Version, "digest", man.Digest[:12], "members", a.Members,
		"samples", man.CommittedSamples, "deltaBytes", man.DeltaBytes, "took", took.Round(time.Microsecond))
	e.tellCommitted(&coordinatorv1.Committed{Round: a.Round, Version: man.Version, Digest: m.digestCopy(), Reason: string(v1alpha1.ReasonCommitted)}, senders)
	e.announceCommit(man)
	e.maybeSnapshot()
	e.act(now, e.machine.Committed(now))
}

// mergeFailed puts the model back to the newest commit: a failed merge must
// change nothing.
func (e *Engine) mergeFailed(now time.Time, a round.Commit, err error) {
	e.log.Error("merge failed", "round", a.Round, "error", err)
	if errors.Is(err, checkpoint.ErrFenced) {
		e.fail(v1alpha1.ReasonFenced, err)
		return
	}
	var ue *merge.UpdateError
	if errors.Is(err, merge.ErrNoWeight) || errors.As(err, &ue) {
		e.act(now, e.machine.CommitFailed(now, v1alpha1.ReasonNothingToMerge, err.Error()))
		return
	}
	e.model.close()
	if rerr := e.reload(); rerr != nil {
		e.fail(v1alpha1.ReasonCommitLogFailed, fmt.Errorf("after a failed merge (%w) the model cannot be recovered: %w", err, rerr))
		return
	}
	e.act(now, e.machine.CommitFailed(now, v1alpha1.ReasonCommitLogFailed, err.Error()))
}

// adopt takes what a manifest says of the run so far.
func (e *Engine) adopt(man checkpoint.Manifest) {
	e.manifest = man
	e.samples, e.agreement, e.stats = man.CommittedSamples, man.Agreement, maps.Clone(man.SiteStats)
	if e.stats == nil {
		e.stats = map[string]checkpoint.SiteStats{}
	}
	e.evaluated = man.Evaluation
	e.remember(man)
}

// recentVersions is how far back a repeated update id is recognised.
const recentVersions = 64

func (e *Engine) remember(man checkpoint.Manifest) {
	for _, mm := range man.Members {
		e.counted[mm.Member+"\x00"+mm.UpdateID] = man.Version
	}
	for k, v := range e.counted {
		if v+recentVersions < man.Version {
			delete(e.counted, k)
		}
	}
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
