package e2e

import (
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/merge"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// verify merges the archived updates of a stopped coordinator again, from the
// first weights on, in an order of its own, in one go and without any process
// being killed: theta and momentum must have the digest that the coordinator
// promised at every version. It returns the manifests.
func (c *cluster) verify() []checkpoint.Manifest {
	c.t.Helper()
	manifests, err := replayAll(c.store())
	if err != nil {
		c.t.Fatalf("commit log: %v", err)
	}
	checkCounting(c.t, manifests)
	return manifests
}

func replayAll(dir string) ([]checkpoint.Manifest, error) {
	f, err := tensor.OpenFile(filepath.Join(dir, "snapshots", fmt.Sprintf("%012d", 0), "state.safetensors"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := tensor.LoadState(f)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	r, err := checkpoint.Read(dir)
	if err != nil {
		return nil, err
	}
	manifests, err := r.Manifests(0)
	if err != nil {
		return nil, err
	}
	var residual []float32
	for i, man := range manifests {
		if man.Version != uint64(i)+1 {
			return nil, fmt.Errorf("version %d follows %d", man.Version, i)
		}
		d := codec.NewDomain(st.Layout, man.Algorithm.Downlink.Transform)
		if residual == nil {
			residual = make([]float32, d.Len())
		}
		archived, _, err := r.OpenUpdates(man.Version)
		if err != nil {
			return nil, err
		}
		var updates []merge.Update
		for j, a := range archived {
			defer a.Close()
			p, err := codec.Parse(d, man.Algorithm.Uplink, a, a.Size, nil)
			if err != nil {
				return nil, fmt.Errorf("version %d, %s: %w", man.Version, a.Member, err)
			}
			updates = append(updates, merge.Update{Member: a.Member, Weight: man.Members[j].Weight, Payload: p})
		}
		slices.Reverse(updates)
		if _, err := merge.Merge(st, residual, merge.Config{Params: man.Algorithm, Uplink: d, Downlink: d}, updates, io.Discard); err != nil {
			return nil, fmt.Errorf("version %d: %w", man.Version, err)
		}
		if digest := st.Digest(); hex.EncodeToString(digest[:]) != man.Digest {
			return nil, fmt.Errorf("version %d: merged again it has digest %x, the coordinator promised %s", man.Version, digest, man.Digest)
		}
	}
	return manifests, nil
}

// checkCounting: no update counts twice, rounds only grow, samples add up.
func checkCounting(t *testing.T, manifests []checkpoint.Manifest) {
	t.Helper()
	seen := map[string]uint64{}
	var round, samples uint64
	for _, m := range manifests {
		if m.Round <= round {
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
