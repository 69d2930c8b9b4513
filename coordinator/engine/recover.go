package engine

import (
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/merge"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// recover brings back the newest committed state, bit for bit, and the wishes.
func (e *Engine) recover() error {
	if err := os.MkdirAll(e.cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if err := makeSpoolDir(e.spoolDir()); err != nil {
		return err
	}
	var err error
	if e.wishes, err = loadWishes(e.cfg.DataDir); err != nil {
		return err
	}
	if err := e.openAdmission(); err != nil {
		return err
	}
	l, err := e.load()
	if err != nil {
		return fmt.Errorf("federation %s: %w", e.cfg.Federation, err)
	}
	if l != nil {
		e.install(l)
		if err := e.snapshotRollback(); err != nil {
			return fmt.Errorf("federation %s: %w", e.cfg.Federation, err)
		}
	}
	if err := e.openData(); err != nil {
		return err
	}
	last, err := e.readRound()
	if err != nil {
		return err
	}
	e.noted = last
	last = max(last, e.manifest.Round)
	now := time.Now()
	e.machine = round.New(e.cfg.Round, last, e.manifest.RoundsCommitted, e.manifest.RoundsVoid, now)
	e.tellEvaluated()
	_, _ = e.dataDone(now)
	if e.wishes.Paused || e.cfg.Suspended {
		e.machine.Pause(now)
	}
	for _, site := range e.cfg.Round.Sites {
		w := e.wishes.effective(site)
		if _, _, err := e.machine.SetMembership(now, site, w.Membership, time.Time{}, w.Reason, w.Message); err != nil {
			return err
		}
	}
	return nil
}

// loaded is what the commit log holds.
type loaded struct {
	model *model
	// manifests of the newest good snapshot and all commits after it.
	manifests []checkpoint.Manifest
	// known are all commits that the log still has, older ones too.
	known []checkpoint.Manifest
	// counted are the updates of commits that it no longer has.
	counted []checkpoint.Counted
}

// load reads the model from the commit log: the newest good snapshot, then every
// commit after it, all checked against the digest. It is nil when there is none.
// It touches nothing of the engine.
func (e *Engine) load() (*loaded, error) {
	rec, err := e.store.Recover()
	if err != nil {
		return nil, err
	}
	for _, d := range rec.Damage {
		e.log.Error("commit log damaged", "what", d)
	}
	if rec.Empty() {
		return nil, nil
	}
	l, err := e.build(rec)
	if err != nil {
		return nil, err
	}
	latest := rec.Latest()
	e.log.Info("recovered", "version", latest.Version, "digest", latest.Digest[:12], "snapshot", rec.Snapshot.Version, "commits", len(rec.Commits))
	if l.known, err = e.store.Manifests(0); err != nil {
		// They serve only to tell an old update that it was counted.
		e.log.Warn("older commits cannot be read", "error", err)
	}
	if l.counted, err = e.store.Counted(); err != nil {
		e.log.Error("an update of a pruned commit that comes again would not be known again", "error", err)
	}
	return l, nil
}

// build makes the model of what the commit log holds; it takes rec over.
func (e *Engine) build(rec checkpoint.Recovered) (_ *loaded, err error) {
	was := rec.Latest().Algorithm
	is := e.cfg.Algorithm.ForVersion(rec.Latest().Version)
	if was.Downlink.Transform != is.Downlink.Transform {
		rec.Close()
		return nil, fmt.Errorf("spec.algorithm: the run was made with %s (transform %s) and cannot go on with %s (transform %s); keep the strategy or start with an empty data folder",
			was.Strategy, was.Downlink.Transform, is.Strategy, is.Downlink.Transform)
	}
	if !was.Same(is) {
		e.log.Warn("the algorithm is another one than before; from the next round on it holds", "was", was, "is", is)
	}
	m := e.newModel(rec.State, rec.Residual, e.needsResidual(rec.Commits))
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	m.version = rec.Snapshot.Version
	for _, man := range rec.Commits {
		if err := e.replay(m, man); err != nil {
			return nil, fmt.Errorf("replay of version %d: %w", man.Version, err)
		}
		m.version = man.Version
	}
	m.digest = m.state.Digest()
	latest := rec.Latest()
	if got := hex.EncodeToString(m.digest[:]); got != latest.Digest {
		return nil, fmt.Errorf("recovered version %d has digest %s, its manifest says %s: bring the data folder back from a copy, or move the commits after the last good version away", m.version, got, latest.Digest)
	}
	return &loaded{model: m, manifests: append([]checkpoint.Manifest{rec.Snapshot}, rec.Commits...)}, nil
}

// install makes what was loaded the engine's.
func (e *Engine) install(l *loaded) {
	e.model = l.model
	e.memory.Bound(uploadMemory(l.model))
	e.deltaBytes, e.snapshotAt = 0, l.manifests[0].Version
	for _, man := range l.manifests[1:] {
		e.deltaBytes += man.DeltaBytes
	}
	e.adopt(l.manifests[len(l.manifests)-1])
	for _, c := range l.counted {
		e.counted[c.Member+"\x00"+c.UpdateID] = c.Version
	}
	for _, man := range slices.Concat(l.known, l.manifests) {
		e.remember(man)
	}
}

// needsResidual says whether there is, or will be after a replay, anything that a
// delta leaves for later. A lossless downlink leaves nothing, and a vector as
// large as the model would be kept for zeros.
func (e *Engine) needsResidual(replayed []checkpoint.Manifest) bool {
	return e.cfg.Algorithm.Keeps() ||
		slices.ContainsFunc(replayed, func(m checkpoint.Manifest) bool { return !m.Algorithm.Downlink.Lossless() })
}

func (e *Engine) newModel(st *tensor.State, residual []float32, needed bool) *model {
	domain := codec.NewDomain(st.Layout, e.cfg.Algorithm.Downlink.Transform)
	if residual == nil && needed {
		residual = tensor.NewVector(domain.Len())
	}
	// Now, while nobody waits, and not in the first commit.
	tensor.Populate(st.Momentum)
	tensor.Populate(residual)
	return &model{
		state: st, residual: residual, domain: domain, layout: st.Layout.Digest(), digest: st.Digest(),
	}
}

// close gives the memory back.
func (m *model) close() {
	m.state.Close()
	tensor.FreeVector(m.residual)
	m.residual = nil
}

// replay makes one commit anew: with a lossy downlink by merging the archived
// updates again, which also gives the residual; else by applying its delta.
func (e *Engine) replay(m *model, man checkpoint.Manifest) error {
	if man.Kind == checkpoint.KindRollback {
		return nil // the state is the one it goes back to
	}
	if man.Algorithm.Downlink.Lossless() {
		delta, size, _, err := e.store.OpenDelta(man.Version)
		if err != nil {
			return err
		}
		defer delta.Close()
		p, err := codec.Parse(m.domain, man.Algorithm.Downlink, delta, size, nil)
		if err != nil {
			return err
		}
		clear(m.residual) // all of it went into this delta
		return replica.Step(m.state, m.domain, man.Algorithm, p)
	}
	archived, _, err := e.store.OpenUpdates(man.Version)
	if err != nil {
		return err
	}
	for _, a := range archived {
		defer a.Close()
	}
	updates, err := archivedUpdates(m.domain, man, archived)
	if err != nil {
		return err
	}
	_, err = merge.Merge(m.state, m.residual, m.mergeConfig(man), updates, io.Discard)
	return err
}

// archivedUpdates are the updates of a commit as they were merged.
func archivedUpdates(d *codec.Domain, man checkpoint.Manifest, archived []checkpoint.ArchivedUpdate) ([]merge.Update, error) {
	sections := map[string][]codec.Section{}
	weights := map[string]float64{}
	for _, mm := range man.Members {
		sections[mm.Member], weights[mm.Member] = mm.Sections, mm.Weight
	}
	updates := make([]merge.Update, 0, len(archived))
	for _, a := range archived {
		p, err := codec.Parse(d, man.Algorithm.Uplink, a, a.Size, sections[a.Member])
		if err != nil {
			return nil, fmt.Errorf("archived update of %s: %w", a.Member, err)
		}
		updates = append(updates, merge.Update{Member: a.Member, Weight: weights[a.Member], Payload: p})
	}
	return updates, nil
}

// Commits are the manifests after a version, for announcements that were missed.
func (e *Engine) Commits(after uint64) ([]checkpoint.Manifest, error) {
	return e.store.Manifests(after)
}
