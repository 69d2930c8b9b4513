package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
)

// ErrNotKept says that a version is not in the store: not yet made, or pruned.
var ErrNotKept = errors.New("checkpoint: version is not in the store")

// ReadAtCloser is an open file of the store. It stays readable while its folder
// is pruned.
type ReadAtCloser interface {
	io.ReaderAt
	io.Closer
}

// Reader reads a store, also one that a coordinator is writing. It may be used
// by several goroutines at once.
type Reader struct{ dir string }

// Read gives read-only access to the store in dir, without locking it: for
// tools.
func Read(dir string) (*Reader, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return &Reader{dir: dir}, nil
}

// versions lists a folder, ascending. Names that are no versions are not ours.
func (r *Reader) versions(sub string) ([]uint64, error) {
	entries, err := os.ReadDir(r.path(sub))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var out []uint64
	for _, e := range entries {
		v, err := strconv.ParseUint(e.Name(), 10, 64)
		if err == nil && versionName(v) == e.Name() {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (r *Reader) manifest(sub string, version uint64) (Manifest, error) {
	path := r.path(sub, versionName(version), manifestFile)
	f, err := os.Open(path)
	if err != nil {
		return Manifest{}, fmt.Errorf("checkpoint: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return Manifest{}, fmt.Errorf("checkpoint: reading %s: %w", path, err)
	}
	if len(b) > maxManifest {
		return Manifest{}, fmt.Errorf("checkpoint: %s has more than %d bytes", path, maxManifest)
	}
	m, err := ParseManifest(b)
	if err == nil && m.Version != version {
		err = fmt.Errorf("is of version %d", m.Version)
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return m, nil
}

// Manifests gives the commits and rollbacks with a version above after, ascending
// and without gaps. The first may be later than after+1: older ones are pruned.
func (r *Reader) Manifests(after uint64) ([]Manifest, error) {
	versions, err := r.versions(commitsDir)
	if err != nil {
		return nil, err
	}
	var out []Manifest
	for _, v := range versions {
		if v <= after {
			continue
		}
		m, err := r.manifest(commitsDir, v)
		if errors.Is(err, fs.ErrNotExist) && !r.has(commitsDir, v) {
			// Pruned since it was listed, as all before it now are.
			out = nil
			continue
		}
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && out[n-1].Version != v-1 {
			out = nil // those before are kept for a pinned version
		}
		out = append(out, m)
	}
	return out, nil
}

func (r *Reader) has(sub string, version uint64) bool {
	_, err := os.Stat(r.path(sub, versionName(version)))
	return err == nil
}

// OpenDelta opens the encoded merge that makes version out of the one before;
// close it. The error wraps ErrNotKept when the store has no such commit.
func (r *Reader) OpenDelta(version uint64) (ReadAtCloser, int64, Manifest, error) {
	m, err := r.manifest(commitsDir, version)
	if err != nil {
		return nil, 0, Manifest{}, r.orNotKept(commitsDir, version, err)
	}
	if m.Kind == KindRollback {
		return nil, 0, Manifest{}, fmt.Errorf("%w: %d is a rollback and has no delta", ErrNotKept, version)
	}
	f, err := r.openSized(m.DeltaBytes, commitsDir, versionName(version), deltaFile)
	if err != nil {
		return nil, 0, Manifest{}, r.orNotKept(commitsDir, version, err)
	}
	return f, m.DeltaBytes, m, nil
}

// ArchivedUpdate is one accepted payload; close it.
type ArchivedUpdate struct {
	ReadAtCloser
	Member string
	Size   int64
}

// OpenUpdates opens the archived payloads of a commit in the order in which
// they were added; empty when none were.
func (r *Reader) OpenUpdates(version uint64) ([]ArchivedUpdate, Manifest, error) {
	m, err := r.manifest(commitsDir, version)
	if err != nil {
		return nil, Manifest{}, r.orNotKept(commitsDir, version, err)
	}
	var out []ArchivedUpdate
	for i, u := range m.Updates {
		f, err := r.openSized(u.Bytes, commitsDir, versionName(version), updatesDir, updateName(i))
		if err != nil {
			for _, o := range out {
				_ = o.Close()
			}
			return nil, Manifest{}, r.orNotKept(commitsDir, version, err)
		}
		out = append(out, ArchivedUpdate{f, u.Member, u.Bytes})
	}
	return out, m, nil
}

// OpenSnapshot opens the newest snapshot's state, a safetensors file; close it.
// The error wraps ErrNotKept when there is none.
func (r *Reader) OpenSnapshot() (ReadAtCloser, int64, Manifest, error) {
	for {
		snapshots, err := r.versions(snapshotsDir)
		if err != nil {
			return nil, 0, Manifest{}, err
		}
		if len(snapshots) == 0 {
			return nil, 0, Manifest{}, fmt.Errorf("%w: no snapshot", ErrNotKept)
		}
		v := snapshots[len(snapshots)-1]
		m, err := r.manifest(snapshotsDir, v)
		if err == nil && m.State == nil {
			err = fmt.Errorf("checkpoint: %s lists no state", r.path(snapshotsDir, versionName(v), manifestFile))
		}
		var f ReadAtCloser
		if err == nil {
			f, err = r.openSized(m.State.Bytes, snapshotsDir, versionName(v), stateFile)
		}
		if err == nil {
			return f, m.State.Bytes, m, nil
		}
		if r.has(snapshotsDir, v) {
			return nil, 0, Manifest{}, err
		}
		// Pruned since it was listed: then there is a newer one.
	}
}

// SnapshotIsShorter says whether the newest snapshot lies on the way from the version
// before first to last, and has fewer bytes than the deltas from first up to it. What
// comes after it is the same either way.
func (r *Reader) SnapshotIsShorter(first, last uint64) bool {
	snapshots, err := r.versions(snapshotsDir)
	if err != nil || len(snapshots) == 0 {
		return false
	}
	at := snapshots[len(snapshots)-1]
	if at < first || at > last {
		return false
	}
	m, err := r.manifest(snapshotsDir, at)
	if err != nil || m.State == nil {
		return false
	}
	deltas := int64(0)
	for v := first; v <= at && deltas <= m.State.Bytes; v++ {
		c, err := r.manifest(commitsDir, v)
		if err != nil || c.Kind == KindRollback {
			return true // there is no other way
		}
		deltas += c.DeltaBytes
	}
	return deltas > m.State.Bytes
}

// openSized opens a file that the manifest says has size bytes.
func (r *Reader) openSized(size int64, parts ...string) (*os.File, error) {
	f, err := os.Open(r.path(parts...))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		err = fmt.Errorf("has %d bytes, the manifest says %d", info.Size(), size)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("checkpoint: %s: %w", r.path(parts...), err)
	}
	return f, nil
}

func (r *Reader) orNotKept(sub string, version uint64, err error) error {
	if errors.Is(err, fs.ErrNotExist) && !r.has(sub, version) {
		return fmt.Errorf("%w: %d", ErrNotKept, version)
	}
	return err
}
