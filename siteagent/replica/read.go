package replica

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"girassol.dev/internal/tensor"
)

// Copy is what a replica's folder holds. Close its State.
type Copy struct {
	State      *tensor.State
	Federation string
	Version    uint64
	Digest     string
}

// Read loads the newest sound generation under dir, also while an agent is at work
// there, and changes nothing: for tools.
func Read(dir string) (Copy, error) {
	for {
		before := generations(dir)
		var faults []error
		for _, g := range before {
			c, err := readCopy(g.dir)
			if err == nil {
				return c, nil
			}
			faults = append(faults, fmt.Errorf("%s: %w", filepath.Base(g.dir), err))
		}
		if !slices.Equal(before, generations(dir)) {
			continue // an agent has replaced what was being read
		}
		if len(before) == 0 {
			return Copy{}, fmt.Errorf("replica: %s holds no model: the agent has pulled none yet, or was given as --data another folder", dir)
		}
		return Copy{}, fmt.Errorf("replica: %s holds no model that can be read; the agent pulls a whole one at its next start: %w", dir, errors.Join(faults...))
	}
}

func readCopy(dir string) (Copy, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return Copy{}, err
	}
	rec, err := readRecord(b)
	if err != nil {
		return Copy{}, fmt.Errorf("%s: %w", recordName, err)
	}
	if rec.Model == nil {
		return Copy{}, errors.New("no model")
	}
	st, err := loadState(dir, rec)
	if err != nil {
		return Copy{}, err
	}
	digest := st.Digest()
	if got := hex.EncodeToString(digest[:]); got != rec.Digest {
		st.Close()
		return Copy{}, fmt.Errorf("model and deltas make digest %s, the record says %s", got, rec.Digest)
	}
	return Copy{State: st, Federation: rec.Federation, Version: rec.Version, Digest: rec.Digest}, nil
}
