package replica

import (
	"encoding/hex"
	"fmt"
	"slices"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
)

// Manifest is what a member needs to know of a version.
type Manifest struct {
	Version uint64
	Round   uint64
	// Digest of the state at Version.
	Digest    [32]byte
	Algorithm algorithm.Parameters
	// UpdateIDs that the commit has merged.
	UpdateIDs []string
	// RolledBack is the newest rollback up to Version, 0 for none.
	RolledBack uint64
}

// ParseManifest reads a pull's header and refuses one without a usable digest or
// algorithm.
func ParseManifest(h *coordinatorv1.PullHeader) (Manifest, error) {
	m := Manifest{Version: h.GetVersion(), Round: h.GetRound(), UpdateIDs: h.GetUpdateIds(), RolledBack: h.GetRolledBack()}
	if len(h.GetDigest()) != len(m.Digest) {
		return m, fmt.Errorf("replica: manifest of version %d: a digest has %d bytes, want 32", m.Version, len(h.GetDigest()))
	}
	copy(m.Digest[:], h.GetDigest())
	var err error
	if m.Algorithm, err = algorithm.FromProto(h.GetAlgorithm()); err != nil {
		return m, fmt.Errorf("replica: manifest of version %d: %w", m.Version, err)
	}
	return m, nil
}

func (m Manifest) digestText() string { return hex.EncodeToString(m.Digest[:]) }

// lists says whether the commit merged the update.
func (m Manifest) lists(id string) bool { return slices.Contains(m.UpdateIDs, id) }
