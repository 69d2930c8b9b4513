package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Recall is for how many versions back it is known which updates were merged, also
// when their commits are pruned: a member that comes back asks whether its update
// counted, and a wrong no would have it sent twice. Members ask until 64 versions have
// passed over an update; what they pull may be older than the newest version by then.
const Recall = 128

// countedFile lists the updates of pruned commits.
const countedFile = "counted.json"

// Counted is an update that a version holds.
type Counted struct {
	Version  uint64 `json:"version"`
	Member   string `json:"member"`
	UpdateID string `json:"updateID"`
}

// Counted are the updates of the commits that were pruned, as far as they are within
// Recall of the newest version then, ascending. Those of commits that are there stand
// in their manifests.
func (r *Reader) Counted() ([]Counted, error) {
	path := r.path(countedFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: reading %s: %w", path, err)
	}
	var out []Counted
	if len(b) > maxManifest {
		err = fmt.Errorf("has more than %d bytes", maxManifest)
	} else {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w; remove it, and updates of pruned commits that come again are not known again", path, err)
	}
	return out, nil
}

// keepCounted notes the updates of commits that are about to be pruned. It is called
// with mu held.
func (s *Store) keepCounted(versions []uint64) error {
	if s.newest == nil || len(versions) == 0 {
		return nil
	}
	old := func(v uint64) bool { return v+Recall < *s.newest }
	all, err := s.Counted()
	if err != nil {
		// Nothing can be done about what it held.
		s.log.Error("the list of counted updates begins anew", "error", err)
	}
	for _, v := range versions {
		if old(v) {
			continue
		}
		m, err := s.manifest(commitsDir, v)
		if err != nil {
			s.log.Error("the updates of a damaged commit are not known again", "version", v, "error", err)
			continue
		}
		for _, mm := range m.Members {
			all = append(all, Counted{v, mm.Member, mm.UpdateID})
		}
	}
	all = slices.DeleteFunc(all, func(c Counted) bool { return old(c.Version) })
	slices.SortFunc(all, func(a, b Counted) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Member, b.Member))
	})
	b, err := json.Marshal(slices.Compact(all)) // a commit may be kept, and come again
	if err != nil {
		return err
	}
	s.pruned++
	staged := s.path(stagingDir, fmt.Sprintf("counted-%d", s.pruned))
	_, err = s.disk.writeFile(staged, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	if err == nil {
		err = s.disk.rename(staged, s.path(countedFile))
	}
	if err != nil {
		return errors.Join(err, s.disk.remove(staged))
	}
	return s.disk.syncDir(s.path())
}
