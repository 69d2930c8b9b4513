package replica

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// Install takes over a downloaded state (a safetensors file, on the same file
// system as the replica). The residual stays, unless the model is another one. A
// pending update whose commit was passed over counts as merged when it had been
// accepted, else it stays in u. After a rollback both are forgotten.
func (r *Replica) Install(m Manifest, path string) error {
	want := m.Digest
	f, err := tensor.OpenFile(path)
	if err != nil {
		return fmt.Errorf("replica: downloaded state of version %d: %w", m.Version, err)
	}
	defer f.Close()
	st, err := tensor.LoadState(f)
	if err != nil {
		return fmt.Errorf("replica: downloaded state of version %d: %w", m.Version, err)
	}
	if got := st.Digest(); got != want {
		st.Close()
		return fmt.Errorf("replica: downloaded state of version %d has digest %x, its manifest says %x", m.Version, got, want)
	}
	if r.residual != nil && r.residual.Domain().Layout().Digest() != st.Layout.Digest() {
		r.log.Warn("the federation has another model now, the residual of the old one is dropped",
			"version", m.Version, "differences", r.residual.Domain().Layout().Diff(st.Layout))
		r.residual.Close()
		r.residual, r.lastNorm = nil, 0
		r.rec.Update, r.rec.Residual, r.rec.Agreement = nil, nil, nil
	}
	r.forget()
	r.state, r.digest = st, want
	rec := r.rec
	if m.RolledBack > rec.Version {
		r.forgetUnsent(&rec, m)
	} else if u := r.Pending(); u != nil && m.Version > u.BaseVersion {
		merged := m.lists(u.UpdateID) || m.Version > u.BaseVersion+1 && u.Accepted
		r.resolve(&rec, merged, "full pull of version", m.Version)
	}
	rec.Version, rec.Round, rec.Digest = m.Version, m.Round, m.digestText()
	rec.Agreement = nil // there is no delta to measure it on
	return r.change(rec, changes{snapshot: path})
}

// forgetUnsent begins u and the pending update anew after a rollback: they are work
// on a state that was given up, and may be what has spoiled it.
func (r *Replica) forgetUnsent(rec *record, m Manifest) {
	rec.Update, rec.Agreement = nil, nil
	if r.residual == nil {
		return
	}
	r.log.Warn("the federation went back to an older version, unsent work is forgotten",
		"reason", v1alpha1.ReasonRolledBack, "version", m.RolledBack, "held", rec.Version, "norm", r.residual.Norm())
	clear(r.residual.Vector())
	r.residualStale, r.lastNorm = true, 0
}

// Apply steps the replica with a downloaded delta. ErrDiverged leaves it without
// a state.
func (r *Replica) Apply(m Manifest, path string) error {
	want := m.Digest
	if r.state == nil || m.Version != r.rec.Version+1 {
		return r.diverged(m, fmt.Sprintf("its delta does not follow version %d", r.rec.Version))
	}
	rec := r.rec
	d := codec.NewDomain(r.state.Layout, m.Algorithm.Downlink.Transform)
	err := withPayload(path, d, m.Algorithm.Downlink, func(d *codec.Domain, delta *codec.Payload) error {
		if err := replica.Step(r.state, d, m.Algorithm, delta); err != nil {
			return err
		}
		if got := r.state.Digest(); got != want {
			return fmt.Errorf("digest %x, want %x", got, want)
		}
		rec.Agreement = r.agreement(d, delta, m)
		return nil
	})
	if err != nil {
		return r.diverged(m, err.Error())
	}
	r.digest = want
	if u := r.Pending(); u != nil && m.Version > u.BaseVersion {
		// Only the commit that follows its base can hold an update.
		r.resolve(&rec, m.lists(u.UpdateID), "commit of version", m.Version)
	}
	rec.Version, rec.Round, rec.Digest = m.Version, m.Round, m.digestText()
	return r.change(rec, changes{delta: path, algorithm: m.Algorithm})
}

// agreement measures a_i = cos(D, u) where the delta has what our own update, if
// it was merged, did not send.
func (r *Replica) agreement(d *codec.Domain, delta *codec.Payload, m Manifest) *float64 {
	if r.residual == nil || !r.residual.Domain().Equal(d) {
		return nil
	}
	u := r.Pending()
	if u == nil || !m.lists(u.UpdateID) {
		if cos, ok := codec.Agreement(d, delta, nil, r.residual.Vector()); ok {
			return &cos
		}
		return nil
	}
	var out *float64
	err := withPayload(filepath.Join(r.dir, u.Name), d, u.Encoding, func(d *codec.Domain, own *codec.Payload) error {
		if cos, ok := codec.Agreement(d, delta, own, r.residual.Vector()); ok {
			out = &cos
		}
		return nil
	})
	if err != nil {
		r.log.Warn("own update is unreadable, no agreement measured", "update", u.UpdateID, "error", err)
	}
	return out
}

// resolve ends the pending update: merged subtracts what was sent from u in
// memory and marks it so for the disk; otherwise u keeps everything.
func (r *Replica) resolve(rec *record, merged bool, by string, version uint64) {
	u := rec.Update
	if !merged {
		r.log.Info("update was not merged, its work stays in the residual",
			"update", u.UpdateID, "round", u.Round, "accepted", u.Accepted, by, version)
		rec.Update = nil
		return
	}
	err := withPayload(filepath.Join(r.dir, u.Name), r.residual.Domain(), u.Encoding,
		func(_ *codec.Domain, p *codec.Payload) error { return r.residual.Settle(p) })
	if err != nil {
		// What was merged can no longer be told from what was not: to keep u
		// would send it twice.
		r.log.Error("merged update is unreadable, the residual starts at zero", "update", u.UpdateID, "round", u.Round, "error", err)
		clear(r.residual.Vector())
		r.residualStale = true
		rec.Update = nil
		return
	}
	settled := *u
	settled.Settled = true
	rec.Update = &settled
}

// Prepare makes the residual ready for a transform, mapping what it holds, and
// returns rho, the share of it that goes into the working point.
func (r *Replica) Prepare(t algorithm.Transform, agreement *float64, alone bool) (rho float64, err error) {
	if r.state == nil {
		return 0, errors.New("replica: no state to start from")
	}
	if r.residual == nil {
		r.residual = replica.NewResidual(codec.NewDomain(r.state.Layout, t))
		r.residualStale = true
	}
	if old := r.residual; old.Domain().Transform() != t {
		if r.Pending() != nil {
			return 0, fmt.Errorf("replica: update %s is pending, the transform cannot change to %s", r.rec.Update.UpdateID, t)
		}
		parameters := tensor.NewVector(r.state.Layout.Parameters())
		defer tensor.FreeVector(parameters)
		old.Domain().Inverse(parameters, old.Vector())
		r.residual = replica.NewResidual(codec.NewDomain(r.state.Layout, t))
		r.residual.Domain().Forward(r.residual.Vector(), parameters)
		r.residualStale = true
		r.rec.Update = nil // a settled one: the new vector has it subtracted
		old.Close()
	}
	return algorithm.Rho(agreement, alone, r.lastNorm, r.residual.Norm()), nil
}

// Start writes the working point theta - rho*Inverse(u) to dst, which has as
// many elements as the layout has parameters. Prepare comes first.
func (r *Replica) Start(dst []float32, rho float64) { r.residual.Start(dst, r.state.Theta, rho) }

// Work is what a trainer made of a working point: parameters, and buffers and
// integers as they are after training.
type Work struct {
	Start, End []float32
	Buffers    []float32
	Integers   []byte
}

// Stage adds the work to u, encodes an update from u and keeps both on disk in
// one step; u fills in what the payload's file says. When that fails the work is
// in u all the same.
func (r *Replica) Stage(u Update, w Work) (*Update, error) {
	if p := r.Pending(); p != nil {
		return nil, fmt.Errorf("replica: update %s of round %d is still pending", p.UpdateID, p.Round)
	}
	norm, err := r.residual.Absorb(w.Start, w.End)
	if err != nil {
		return nil, fmt.Errorf("replica: result of round %d: %w", u.Round, err)
	}
	r.lastNorm = norm
	r.residualStale = true
	rec := r.rec
	rec.Update = &u
	err = r.change(rec, changes{encode: func(out io.Writer) error {
		_, err := r.residual.Encode(out, u.Encoding, codec.Aux{Buffers: w.Buffers, Integers: w.Integers})
		return err
	}})
	if err != nil {
		return nil, fmt.Errorf("update of round %d stays in the residual: %w", u.Round, err)
	}
	return r.Pending(), nil
}

// Accept notes that the coordinator has accepted the pending update.
func (r *Replica) Accept() error {
	u := r.Pending()
	if u == nil || u.Accepted {
		return nil
	}
	u.Accepted = true
	rec := r.rec
	rec.Update = u
	return r.change(rec, changes{})
}

// Drop ends the pending update without effect: u keeps its work.
func (r *Replica) Drop() error {
	if r.Pending() == nil {
		return nil
	}
	rec := r.rec
	rec.Update = nil
	return r.change(rec, changes{})
}

// changes says what is new beside the record and what is stale anyway.
type changes struct {
	snapshot  string // path of a whole state
	delta     string // path of a delta, under algorithm
	algorithm algorithm.Parameters
	encode    func(io.Writer) error // the payload of rec.Update
}

// change makes rec the truth in memory and on disk. Should the disk fail, memory
// goes on and the next change writes anew.
func (r *Replica) change(rec record, c changes) error {
	if r.residualStale && rec.Update != nil && rec.Update.Settled {
		rec.Update = nil // the vector that is written has it subtracted
	}
	rec.Deltas = slices.Clone(rec.Deltas)
	previous := r.rec
	if r.state == nil {
		// Without a state to go with it nothing is written: the disk stays as it
		// is until the full pull.
		r.rec, r.residualStale = rec, r.residual != nil
		return nil
	}
	err := r.persist(rec, c)
	if err != nil {
		if c.encode != nil {
			rec.Update = nil
		}
		rec.Sequence = previous.Sequence
		r.rec = rec
		r.modelStale, r.residualStale = r.state != nil, r.residual != nil
		return err
	}
	r.modelStale, r.residualStale = false, false
	return nil
}

func (r *Replica) fill(b *builder, rec *record, c changes) error {
	switch {
	case c.snapshot != "":
		ref, err := b.adopt(modelName, c.snapshot)
		if err != nil {
			return err
		}
		rec.Model, rec.Deltas = &ref, nil
	case r.modelStale || rec.Model == nil || c.delta != "" && rec.outgrown():
		ref, err := b.write(modelName, func(w io.Writer) error { return tensor.SaveState(w, r.state, true) })
		if err != nil {
			return err
		}
		rec.Model, rec.Deltas = &ref, nil
	default:
		if err := b.keep(rec.Model.Name); err != nil {
			return err
		}
		for _, d := range rec.Deltas {
			if err := b.keep(d.Name); err != nil {
				return err
			}
		}
		if c.delta != "" {
			ref, err := b.adopt(fmt.Sprintf("delta-%012d.bin", rec.Version), c.delta)
			if err != nil {
				return err
			}
			rec.Deltas = append(rec.Deltas, deltaRef{fileRef: ref, Version: rec.Version, Algorithm: c.algorithm})
		}
	}
	if err := r.fillResidual(b, rec); err != nil {
		return err
	}
	switch {
	case c.encode != nil:
		ref, err := b.write(updateName, c.encode)
		if err != nil {
			return err
		}
		rec.Update.fileRef = ref
	case rec.Update != nil:
		return b.keep(rec.Update.Name)
	}
	return nil
}

func (r *Replica) fillResidual(b *builder, rec *record) error {
	switch {
	case r.residual == nil:
		rec.Residual = nil
		return nil
	case !r.residualStale && rec.Residual != nil:
		return b.keep(rec.Residual.Name)
	}
	ref, err := b.write(residualName, func(w io.Writer) error {
		return tensor.SaveVectors(w, []string{residualTensor}, [][]float32{r.residual.Vector()}, nil)
	})
	rec.Residual = &residualRef{fileRef: ref, Transform: r.residual.Domain().Transform(), LastNorm: r.lastNorm}
	return err
}

// Digest of the held state as text, for logs.
func (r *Replica) Digest() string { return hex.EncodeToString(r.digest[:]) }

// Incoming makes an empty file for a download on the replica's file system.
func (r *Replica) Incoming() (*os.File, error) {
	f, err := os.CreateTemp(r.root, "incoming-*")
	if err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	return f, nil
}
