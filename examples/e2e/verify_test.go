package e2e

import (
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"testing"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/merge"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// verify merges the archived updates of a stopped coordinator again, from the
// oldest state that is kept on, in an order of its own, in one go and without any process
// being killed: theta and momentum must have the digest that the coordinator
// promised at every version. It returns the manifests.
func (c *cluster) verify() []checkpoint.Manifest {
	c.t.Helper()
	manifests, samples, err := replayAll(c.store())
	if err != nil {
		c.t.Fatalf("commit log: %v", err)
	}
	checkCounting(c.t, manifests, samples)
	return manifests
}

func replayAll(dir string) (_ []checkpoint.Manifest, samplesBefore uint64, _ error) {
	r, err := checkpoint.Read(dir)
	if err != nil {
		return nil, 0, err
	}
	manifests, err := r.Manifests(0)
	if err != nil || len(manifests) == 0 {
		return nil, 0, err
	}
	// The first weights, or the rollback behind which older versions were pruned.
	base, err := r.Restore(manifests[0].Version - 1)
	if err != nil {
		return nil, 0, err
	}
	defer base.Close()
	st, residual := base.State, base.Residual
	past := states{}
	defer past.close()
	past.keep(base.Snapshot.Version, st, residual)
	for i, man := range manifests {
		if man.Version != base.Snapshot.Version+uint64(i)+1 {
			return nil, 0, fmt.Errorf("version %d is the %dth after %d", man.Version, i+1, base.Snapshot.Version)
		}
		d := codec.NewDomain(st.Layout, man.Algorithm.Downlink.Transform)
		if residual == nil {
			residual = make([]float32, d.Len())
		}
		if man.Kind == checkpoint.KindRollback {
			if err := past.restore(r, man, st, residual); err != nil {
				return nil, 0, err
			}
			if digest := st.Digest(); hex.EncodeToString(digest[:]) != man.Digest {
				return nil, 0, fmt.Errorf("version %d: version %d has digest %x, the rollback to it %s", man.Version, man.Rollback.To, digest, man.Digest)
			}
			past.keep(man.Version, st, residual)
			continue
		}
		archived, _, err := r.OpenUpdates(man.Version)
		if err != nil {
			return nil, 0, err
		}
		var updates []merge.Update
		for j, a := range archived {
			defer a.Close()
			p, err := codec.Parse(d, man.Algorithm.Uplink, a, a.Size, nil)
			if err != nil {
				return nil, 0, fmt.Errorf("version %d, %s: %w", man.Version, a.Member, err)
			}
			updates = append(updates, merge.Update{Member: a.Member, Weight: man.Members[j].Weight, Payload: p})
		}
		slices.Reverse(updates)
		if _, err := merge.Merge(st, residual, merge.Config{Params: man.Algorithm, Uplink: d, Downlink: d}, updates, io.Discard); err != nil {
			return nil, 0, fmt.Errorf("version %d: %w", man.Version, err)
		}
		if digest := st.Digest(); hex.EncodeToString(digest[:]) != man.Digest {
			return nil, 0, fmt.Errorf("version %d: merged again it has digest %x, the coordinator promised %s", man.Version, digest, man.Digest)
		}
		past.keep(man.Version, st, residual)
	}
	return manifests, base.Snapshot.CommittedSamples, nil
}

// states are what rollbacks may go back to, by version.
type states map[uint64]pastState

type pastState struct {
	state    *tensor.State
	residual []float32
}

func (s states) keep(version uint64, st *tensor.State, residual []float32) {
	c := tensor.NewState(st.Layout)
	copyState(c, st)
	s[version] = pastState{c, slices.Clone(residual)}
}

// restore makes the state that a rollback goes back to; if that version is pruned,
// the rollback's own snapshot is all there is.
func (s states) restore(r *checkpoint.Reader, man checkpoint.Manifest, st *tensor.State, residual []float32) error {
	p, ok := s[man.Rollback.To]
	if !ok {
		rec, err := r.Restore(man.Version)
		if err != nil {
			return err
		}
		defer rec.Close()
		p = pastState{rec.State, rec.Residual}
	}
	copyState(st, p.state)
	clear(residual)
	copy(residual, p.residual)
	return nil
}

func (s states) close() {
	for _, p := range s {
		p.state.Close()
	}
}

func copyState(to, from *tensor.State) {
	copy(to.Theta, from.Theta)
	copy(to.Momentum, from.Momentum)
	copy(to.Buffers, from.Buffers)
	copy(to.Integers, from.Integers)
}

// checkCounting: no update counts twice, rounds only grow, samples add up.
func checkCounting(t *testing.T, manifests []checkpoint.Manifest, samples uint64) {
	t.Helper()
	seen := map[string]uint64{}
	var round uint64
	for _, m := range manifests {
		if m.Round < round || m.Round == round && m.Kind != checkpoint.KindRollback {
			t.Errorf("version %d is of round %d after round %d", m.Version, m.Round, round)
		}
		round = m.Round
		for _, mm := range m.Members {
			if v, dup := seen[mm.UpdateID]; dup {
				t.Errorf("update %s counts in versions %d and %d", mm.UpdateID, v, m.Version)
			}
			seen[mm.UpdateID] = m.Version
			samples += mm.Samples
		}
		if m.CommittedSamples != samples {
			t.Errorf("version %d says %d samples, its updates sum to %d", m.Version, m.CommittedSamples, samples)
		}
	}
}

func contributed(manifests []checkpoint.Manifest, member string, after uint64) bool {
	return slices.ContainsFunc(manifests, func(m checkpoint.Manifest) bool {
		return m.Version > after && slices.ContainsFunc(m.Members, func(x checkpoint.ManifestMember) bool { return x.Member == member })
	})
}
