package checkpoint

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// ErrNoBase says that there is no snapshot from which the wanted one can be made.
var ErrNoBase = errors.New("checkpoint: no snapshot to go on from")

// Advance makes the snapshot of a version from the one before, read and written
// piece by piece: whoever steps the pieces needs neither the state in memory nor
// anybody to stand still. Finish it or Abort it; it is for one goroutine.
type Advance struct {
	s    *Store
	m    Manifest
	base Manifest
	dir  string

	old, oldResidual   *tensor.File
	next, nextResidual *tensor.Successor
	files              []file
	layout             *tensor.Layout
	digest             *tensor.Digester
	buffers            []float32
	integers           []byte
	err                error
	done               bool
}

// Advance begins the snapshot of m.Version, m being that version's manifest, from
// the newest one. The error wraps ErrNoBase if that is damaged, of another layout,
// or lacks a residual that is wanted.
func (s *Store) Advance(m Manifest, residual bool) (_ *Advance, err error) {
	a := &Advance{s: s, m: m}
	defer func() {
		if err != nil {
			a.Abort()
			err = fmt.Errorf("checkpoint: snapshot of version %d: %w", m.Version, err)
		}
	}()
	s.mu.Lock()
	err = s.mayMake(m.Version, func(v uint64) error { return s.snapshotFits(v, m.Kind) })
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := a.openBase(residual); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoBase, err)
	}
	if a.dir, err = os.MkdirTemp(s.path(stagingDir), "snapshot-"+versionName(m.Version)+"-"); err != nil {
		return nil, err
	}
	if a.next, err = a.create(stateFile, a.old); err != nil {
		return nil, err
	}
	if a.oldResidual != nil {
		a.nextResidual, err = a.create(residualFile, a.oldResidual)
	}
	return a, err
}

func (a *Advance) openBase(residual bool) error {
	snapshots, err := a.s.versions(snapshotsDir)
	if err != nil {
		return err
	}
	if len(snapshots) == 0 {
		return errors.New("there is none")
	}
	name := versionName(snapshots[len(snapshots)-1])
	if a.base, err = a.s.manifest(snapshotsDir, snapshots[len(snapshots)-1]); err != nil {
		return err
	}
	switch {
	case a.base.State == nil:
		return fmt.Errorf("version %d lists no state", a.base.Version)
	case a.base.LayoutDigest != a.m.LayoutDigest:
		return fmt.Errorf("version %d has layout %s", a.base.Version, a.base.LayoutDigest)
	case residual && a.base.Residual == nil:
		return fmt.Errorf("version %d has no residual", a.base.Version)
	}
	// The state's digest tells whether what it is made of was good; of the residual
	// nothing else does.
	if a.old, err = tensor.OpenFile(a.s.path(snapshotsDir, name, stateFile)); err != nil {
		return err
	}
	if a.layout, err = a.old.StateLayout(); err != nil {
		return err
	}
	a.digest = tensor.NewDigester(a.layout)
	if !residual {
		return nil
	}
	if err := a.s.checkSum(*a.base.Residual, snapshotsDir, name, residualFile); err != nil {
		return err
	}
	a.oldResidual, err = tensor.OpenFile(a.s.path(snapshotsDir, name, residualFile))
	return err
}

func (a *Advance) create(name string, like *tensor.File) (*tensor.Successor, error) {
	f, err := a.s.disk.create(filepath.Join(a.dir, name))
	if err != nil {
		return nil, err
	}
	a.files = append(a.files, f)
	return tensor.NewSuccessor(like, f)
}

// Size of what will be written, in bytes.
func (a *Advance) Size() int64 {
	n := a.base.State.Bytes
	if a.nextResidual != nil {
		n += a.base.Residual.Bytes
	}
	return n
}

// Base is the manifest of the snapshot that it goes on from.
func (a *Advance) Base() Manifest { return a.base }

// Read reads elements of a parameter, from its element at on, as they were in the
// base.
func (a *Advance) Read(name string, at int, theta, momentum []float32) error {
	return errors.Join(a.old.ReadF32(name, at, theta), a.old.ReadF32(tensor.MomentumPrefix+name, at, momentum))
}

// Write writes them as they are in the new version. All elements must come, in the
// layout's order.
func (a *Advance) Write(name string, at int, theta, momentum []float32) error {
	if a.err != nil {
		return a.err
	}
	a.digest.Theta(theta)
	a.digest.Momentum(momentum)
	a.err = errors.Join(diverged(theta), diverged(momentum))
	if a.err == nil {
		a.err = errors.Join(a.next.WriteF32(name, at, theta), a.next.WriteF32(tensor.MomentumPrefix+name, at, momentum))
	}
	return a.err
}

// ReadResidual reads elements of the base's residual.
func (a *Advance) ReadResidual(at int, r []float32) error {
	return a.oldResidual.ReadF32(residualTensor, at, r)
}

// WriteResidual writes them as they are in the new version; all must come.
func (a *Advance) WriteResidual(at int, r []float32) error {
	if a.err == nil {
		a.err = errors.Join(diverged(r), a.nextResidual.WriteF32(residualTensor, at, r))
	}
	return a.err
}

func diverged(v []float32) error {
	if i := kernel.Finite(v); i >= 0 {
		return fmt.Errorf("the state holds %g: it diverged; roll back to an earlier version", v[i])
	}
	return nil
}

// WriteAux writes buffers and integers as they are in the new version.
func (a *Advance) WriteAux(buffers []float32, integers []byte) error {
	a.buffers, a.integers = buffers, integers
	a.err = errors.Join(a.err, diverged(buffers))
	for i, spec := range a.layout.Tensors() {
		if a.err != nil {
			break
		}
		switch at := a.layout.Offset(i); spec.Role {
		case tensor.Buffer:
			a.err = a.next.WriteF32(spec.Name, 0, buffers[at:][:spec.Elements()])
		case tensor.Integer:
			a.err = a.next.WriteBytes(spec.Name, integers[at:][:spec.Elements()*spec.DType.Size()])
		}
	}
	return a.err
}

// Finish makes the snapshot durable and visible, as WriteSnapshot does. What was
// written must have the digest of the manifest.
func (a *Advance) Finish() error {
	defer a.Abort()
	if err := a.finish(); err != nil {
		return fmt.Errorf("checkpoint: snapshot of version %d: %w", a.m.Version, err)
	}
	if err := a.s.prune(); err != nil {
		return fmt.Errorf("checkpoint: snapshot of version %d is written; deleting older ones: %w", a.m.Version, err)
	}
	return nil
}

func (a *Advance) finish() error {
	if a.err != nil {
		return a.err
	}
	digest := a.digest.Sum(a.buffers, a.integers)
	if got := hex.EncodeToString(digest[:]); got != a.m.Digest {
		return fmt.Errorf("%w: version %d and the commits after it lead to digest %s, the manifest says %s", ErrNoBase, a.base.Version, got, a.m.Digest)
	}
	sums := make([]FileSum, len(a.files))
	for i, f := range a.files {
		name := stateFile
		if i > 0 {
			name = residualFile
		}
		err := errors.Join(f.Sync(), f.Close())
		a.files[i] = nil
		if err == nil {
			sums[i], err = sumOf(filepath.Join(a.dir, name))
		}
		if err != nil {
			return err
		}
	}
	m := a.m
	m.Term, m.State, m.Residual = a.s.term, &sums[0], nil
	m.DeltaBytes, m.DeltaCRC32C, m.Updates = 0, 0, nil
	if len(sums) > 1 {
		m.Residual = &sums[1]
	}
	d := a.s.disk
	if err := d.writeManifest(filepath.Join(a.dir, manifestFile), m); err != nil {
		return err
	}
	if err := d.syncDir(a.dir); err != nil {
		return err
	}
	return a.s.publish(a.dir, snapshotsDir, m.Version, func(v uint64) error { return a.s.snapshotFits(v, m.Kind) })
}

// sumOf reads a file back.
func sumOf(path string) (FileSum, error) {
	f, err := os.Open(path)
	if err != nil {
		return FileSum{}, err
	}
	defer func() { _ = f.Close() }()
	h := crc32.New(castagnoli)
	n, err := io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return FileSum{Bytes: n, CRC32C: h.Sum32()}, err
}

// Abort drops the snapshot. After Finish it does nothing.
func (a *Advance) Abort() {
	if a.done {
		return
	}
	a.done = true
	for _, f := range []*tensor.File{a.old, a.oldResidual} {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, f := range a.files {
		if f != nil {
			_ = f.Close()
		}
	}
	if a.dir == "" {
		return
	}
	if err := a.s.disk.remove(a.dir); err != nil {
		a.s.log.Warn("staging folder stays until the next start", "dir", a.dir, "error", err)
	}
}
