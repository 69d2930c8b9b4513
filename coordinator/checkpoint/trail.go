package checkpoint

import (
	"errors"
	"fmt"
	"slices"
)

// parent is the version whose state a commit is made from.
func (m Manifest) parent() uint64 {
	if m.Kind == KindRollback {
		return m.Rollback.To
	}
	return m.Version - 1
}

func (r *Reader) recover() (Recovered, error) {
	snapshots, err := r.versions(snapshotsDir)
	if err != nil {
		return Recovered{}, err
	}
	commits, err := r.versions(commitsDir)
	if err != nil {
		return Recovered{}, err
	}
	if len(snapshots) == 0 && len(commits) == 0 {
		return Recovered{}, nil
	}
	newest := slices.Max(slices.Concat(snapshots, commits))
	return r.trail(snapshots, newest, true)
}

// Restore finds how the state of an older version is made, as Recover does of the
// newest, and changes nothing. The error wraps ErrNotKept when it cannot be had.
func (r *Reader) Restore(version uint64) (Recovered, error) {
	snapshots, err := r.versions(snapshotsDir)
	if err != nil {
		return Recovered{}, err
	}
	if !r.has(snapshotsDir, version) && !r.has(commitsDir, version) {
		return Recovered{}, fmt.Errorf("%w: %d", ErrNotKept, version)
	}
	out, err := r.trail(snapshots, version, false)
	if err != nil {
		return Recovered{}, fmt.Errorf("%w: %d: %w", ErrNotKept, version, err)
	}
	return out, nil
}

// trail walks back from a version to the first good snapshot. Of the newest
// version itself a damaged folder is done without.
func (r *Reader) trail(snapshots []uint64, version uint64, newest bool) (Recovered, error) {
	w := walk{r: r, snapshots: snapshots, spare: newest}
	for v := version; ; {
		if _, found := slices.BinarySearch(snapshots, v); found {
			err := r.loadSnapshot(v, &w.out)
			if err == nil {
				return w.forward()
			}
			if errors.Is(err, ErrDigestForm) {
				return Recovered{}, err
			}
			w.damage(snapshotsDir, v, fmt.Sprintf("snapshot of version %d: %v", v, err))
		}
		m, err := r.readCommit(v)
		switch {
		case err == nil:
			w.steps = append(w.steps, m)
			v = m.parent()
			continue
		case errors.Is(err, ErrDigestForm):
			return Recovered{}, err
		case !r.has(commitsDir, v):
			if w.spare && len(w.steps) == 0 && v > 0 && len(w.out.damaged) > 0 {
				v-- // the damaged snapshot was all there was of it
				continue
			}
			return Recovered{}, w.missing(v)
		case w.spare && len(w.steps) == 0 && v > 0:
			w.spare = false
			w.damage(commitsDir, v, fmt.Sprintf("commit of version %d: %v", v, err))
			v--
			continue
		}
		return Recovered{}, w.broken(v, err)
	}
}

// walk is a trail on its way.
type walk struct {
	r         *Reader
	snapshots []uint64
	steps     []Manifest // newest first
	// spare: a damaged newest commit may be done without.
	spare bool
	out   Recovered
}

func (w *walk) damage(sub string, version uint64, what string) {
	w.out.Damage = append(w.out.Damage, what)
	w.out.damaged = append(w.out.damaged, folder{sub, version})
}

func (w *walk) missing(v uint64) error {
	if i, _ := slices.BinarySearch(w.snapshots, v); i == 0 {
		return fmt.Errorf("checkpoint: %s has no good snapshot; bring a copy back into %s, or start with an empty folder: %q",
			w.r.dir, w.r.path(snapshotsDir), w.out.Damage)
	}
	path := w.r.path(commitsDir, versionName(v))
	if len(w.steps) == 0 {
		return fmt.Errorf("checkpoint: %s is missing: bring it back from a copy of the store (damaged: %q)", path, w.out.Damage)
	}
	return fmt.Errorf("checkpoint: %s is missing, the next commit is %d: bring it back from a copy of the store, or move the later folders away to go on from version %d (damaged: %q)",
		path, w.steps[len(w.steps)-1].Version, v-1, w.out.Damage)
}

func (w *walk) broken(v uint64, err error) error {
	follow := len(w.steps)
	for _, d := range w.out.damaged {
		if d.sub == commitsDir {
			follow++
		}
	}
	return fmt.Errorf("checkpoint: version %d is damaged, and %d commits follow it: %w: bring %s back from a copy of the store, or move it and the later folders away to go on from version %d",
		v, follow, err, w.r.path(commitsDir, versionName(v)), v-1)
}

// forward checks that each commit fits the state before it.
func (w *walk) forward() (Recovered, error) {
	slices.Reverse(w.steps)
	out := w.out
	for i, m := range w.steps {
		err := w.r.fits(m, out.Latest())
		switch {
		case err == nil:
			out.Commits = append(out.Commits, m)
		case i == len(w.steps)-1 && w.spare && m.Kind == KindCommit:
			w.damage(commitsDir, m.Version, fmt.Sprintf("commit of version %d: %v", m.Version, err))
			out.Damage, out.damaged = w.out.Damage, w.out.damaged
		default:
			out.Close()
			w.steps = w.steps[i+1:]
			return Recovered{}, w.broken(m.Version, err)
		}
	}
	return out, nil
}

func (r *Reader) fits(m, before Manifest) error {
	switch {
	case m.Kind == KindRollback && m.Digest != before.Digest:
		return fmt.Errorf("%s: the rollback to version %d has digest %s, that version has %s",
			r.path(commitsDir, versionName(m.Version), manifestFile), before.Version, m.Digest, before.Digest)
	case m.LayoutDigest != before.LayoutDigest || m.Term < before.Term:
		return fmt.Errorf("%s: a %s of term %d with layout %s does not follow version %d of term %d with layout %s",
			r.path(commitsDir, versionName(m.Version), manifestFile), m.Kind, m.Term, m.LayoutDigest, before.Version, before.Term, before.LayoutDigest)
	}
	return nil
}

// readCommit reads and verifies a commit by itself.
func (r *Reader) readCommit(version uint64) (Manifest, error) {
	m, err := r.manifest(commitsDir, version)
	switch {
	case err != nil:
		return Manifest{}, err
	case m.Kind == KindSeed:
		return Manifest{}, fmt.Errorf("checkpoint: %s is a %s", r.path(commitsDir, versionName(version), manifestFile), m.Kind)
	case m.Kind == KindRollback:
		return m, nil
	}
	if err := r.checkSum(FileSum{m.DeltaBytes, m.DeltaCRC32C}, commitsDir, versionName(version), deltaFile); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// Kept are the manifests of all versions whose state can be had, ascending. What
// cannot be read is left out.
func (r *Reader) Kept() ([]Manifest, error) {
	snapshots, err := r.versions(snapshotsDir)
	if err != nil {
		return nil, err
	}
	commits, err := r.versions(commitsDir)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(snapshots, commits)
	slices.Sort(all)
	var out []Manifest
	had := map[uint64]bool{}
	for _, v := range slices.Compact(all) {
		m, err := r.manifest(commitsDir, v)
		if _, found := slices.BinarySearch(snapshots, v); found {
			if err != nil {
				m, err = r.manifest(snapshotsDir, v)
			}
			had[v] = err == nil
		} else {
			had[v] = err == nil && had[m.parent()]
		}
		if had[v] {
			out = append(out, m)
		}
	}
	return out, nil
}

// Pin keeps a version's state from being pruned, in the place of the one pinned
// before; nil pins none. It does not survive Close, and waits for no disk.
func (s *Store) Pin(version *uint64) { s.pinned.Store(version) }

// needed are folders up to the older of the two newest snapshots that something
// kept is made of: the pinned version, and rollbacks whose snapshot may turn out
// to be damaged. It is called with mu held.
func (s *Store) needed(older uint64, commits []uint64) map[folder]bool {
	var wanted []uint64
	if pinned := s.pinned.Load(); pinned != nil {
		wanted = append(wanted, *pinned)
	}
	for _, v := range commits {
		if v > older {
			if m, err := s.manifest(commitsDir, v); err == nil && m.Kind == KindRollback {
				wanted = append(wanted, m.parent())
			}
		}
	}
	keep := map[folder]bool{}
	for _, v := range wanted {
		for v <= older {
			if s.has(snapshotsDir, v) {
				keep[folder{snapshotsDir, v}] = true
				break
			}
			m, err := s.manifest(commitsDir, v)
			if err != nil {
				s.log.Warn("a version that should be kept cannot be had", "version", v, "error", err)
				break
			}
			keep[folder{commitsDir, v}] = true
			v = m.parent()
		}
	}
	return keep
}
