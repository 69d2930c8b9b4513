package engine

import (
	"encoding/hex"
	"fmt"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// ReadModel makes the state of a version, or of the newest, out of the commit log in
// dir, also while a coordinator writes it, and changes nothing. Close the state. The
// error wraps checkpoint.ErrNotKept when the version cannot be had.
func ReadModel(dir string, version *uint64) (_ *tensor.State, _ checkpoint.Manifest, err error) {
	r, err := checkpoint.Read(dir)
	if err != nil {
		return nil, checkpoint.Manifest{}, err
	}
	var rec checkpoint.Recovered
	if version != nil {
		rec, err = r.Restore(*version)
	} else {
		rec, err = r.Latest()
	}
	if err != nil {
		return nil, checkpoint.Manifest{}, err
	}
	if rec.Empty() {
		return nil, checkpoint.Manifest{}, fmt.Errorf("%w: %s holds no model yet", checkpoint.ErrNotKept, dir)
	}
	defer func() {
		if err != nil {
			rec.Close()
		}
	}()
	for _, man := range rec.Commits {
		if err := stepBy(r, rec.State, man); err != nil {
			return nil, checkpoint.Manifest{}, fmt.Errorf("replay of version %d: %w", man.Version, err)
		}
	}
	latest := rec.Latest()
	digest := rec.State.Digest()
	if got := hex.EncodeToString(digest[:]); got != latest.Digest {
		return nil, checkpoint.Manifest{}, fmt.Errorf("version %d has digest %s, its manifest says %s: take another version", latest.Version, got, latest.Digest)
	}
	tensor.FreeVector(rec.Residual)
	return rec.State, latest, nil
}

// stepBy applies one commit's delta, as the sites do.
func stepBy(r *checkpoint.Reader, st *tensor.State, man checkpoint.Manifest) error {
	if man.Kind == checkpoint.KindRollback {
		return nil // the state is the one it goes back to
	}
	f, size, _, err := r.OpenDelta(man.Version)
	if err != nil {
		return err
	}
	defer f.Close()
	d := codec.NewDomain(st.Layout, man.Algorithm.Downlink.Transform)
	delta, err := codec.Parse(d, man.Algorithm.Downlink, f, size, nil)
	if err != nil {
		return err
	}
	return replica.Step(st, d, man.Algorithm, delta)
}
