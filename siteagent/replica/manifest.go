package replica

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"girassol.dev/internal/algorithm"
)

// Manifest is what a member needs of a commit's manifest: the JSON that the
// coordinator's commit log writes and PullHeader carries.
type Manifest struct {
	Version uint64 `json:"version"`
	Round   uint64 `json:"round"`
	// Digest of the state at Version, hexadecimal.
	Digest    string               `json:"digest"`
	Algorithm algorithm.Parameters `json:"algorithm"`
	Members   []ManifestMember     `json:"members"`
}

// ManifestMember is one member whose update was merged.
type ManifestMember struct {
	UpdateID string `json:"updateID"`
}

// ParseManifest reads a manifest and refuses one without a usable digest.
func ParseManifest(b []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("replica: manifest: %w", err)
	}
	if _, err := m.digest(); err != nil {
		return m, err
	}
	return m, nil
}

func (m Manifest) digest() (d [32]byte, err error) {
	b, err := hex.DecodeString(m.Digest)
	if err != nil || len(b) != len(d) {
		return d, fmt.Errorf("replica: manifest of version %d: digest %.80q is no SHA-256", m.Version, m.Digest)
	}
	return [32]byte(b), nil
}

// lists says whether the commit merged the update.
func (m Manifest) lists(id string) bool {
	for _, member := range m.Members {
		if member.UpdateID == id {
			return true
		}
	}
	return false
}
