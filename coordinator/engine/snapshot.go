package engine

import (
	"errors"
	"fmt"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/merge"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
)

// A snapshot is made of the one before and the commits since, block by block, as
// they lie in the commit log. It neither reads nor holds the model, so that no merge
// ever waits for the disk to take it, and memory stays at a few blocks.

// errHurried ends a snapshot that a better one follows.
var errHurried = errors.New("the coordinator is stopping")

// mostFiles that a snapshot holds open; with more, or with a damaged base, it is
// written from memory and the next merge waits for it.
const mostFiles = 512

// maybeSnapshot writes a snapshot beside the engine when it is time.
func (e *Engine) maybeSnapshot() {
	m := e.model
	// Recovery should not read more deltas than a whole state; an archive is kept
	// for reading again, so there only the number counts.
	due := m.version-e.snapshotAt >= e.cfg.SnapshotEvery ||
		!e.cfg.ArchiveUpdates && e.deltaBytes > 8*int64(m.state.Layout.Parameters())
	select {
	case <-e.snapshot:
	default:
		due = false // the one before is still being written
	}
	if !due {
		return
	}
	done := make(chan struct{})
	e.snapshot = done
	man, before, bytes, residual := e.manifest, e.snapshotAt, e.deltaBytes, m.residual != nil
	write, fromMemory := func() error { return e.condense(man, m.domain, residual) }, e.fromMemory
	if fromMemory {
		e.modelBusy, e.fromMemory = done, false
		write = func() error { return e.store.WriteSnapshot(man.Version, man, m.state, m.residual) }
	}
	e.snapshotAt, e.deltaBytes = m.version, 0
	e.background.Go(func() {
		defer close(done)
		if err := write(); err != nil {
			e.post(func() {
				e.snapshotAt, e.deltaBytes = before, e.deltaBytes+bytes
				e.fromMemory = fromMemory || errors.Is(err, checkpoint.ErrNoBase)
				e.snapshotFailed(man.Version, err)
			})
		}
	})
}

// snapshotFailed: the commits are durable, so training goes on and the next
// commit tries again.
func (e *Engine) snapshotFailed(version uint64, err error) {
	switch {
	case errors.Is(err, checkpoint.ErrFenced):
		e.fail(v1alpha1.ReasonFenced, err)
	case errors.Is(err, errHurried):
	default:
		e.log.Error("snapshot failed; the next commit tries again", "version", version, "error", err)
	}
}

// condense makes a version's snapshot of the newest one and the commits since. It
// touches nothing of the engine that changes.
func (e *Engine) condense(man checkpoint.Manifest, domain *codec.Domain, residual bool) (err error) {
	a, err := e.store.Advance(man, residual)
	if err != nil {
		return err
	}
	defer a.Abort()
	if err := e.store.HasRoom(a.Size()); err != nil {
		return err
	}
	commits, err := e.openCommits(a.Base().Version, man.Version, domain, residual)
	defer commits.close()
	if err != nil {
		return fmt.Errorf("%w: %w", checkpoint.ErrNoBase, err)
	}
	n := min(domain.Len(), codec.BlockSize)
	theta, momentum := make([]float32, n), make([]float32, n)
	r, scratch := make([]float32, n), make([]float32, n)
	tensors := domain.Layout().Tensors()
	for _, b := range domain.Blocks() {
		select {
		case <-e.hurry:
			return errHurried
		default:
		}
		t, at := tensors[b.Tensor], b.ParamLo-domain.Layout().Offset(b.Tensor)
		theta, momentum, r := theta[:b.ParamHi-b.ParamLo], momentum[:b.ParamHi-b.ParamLo], r[:b.Len()]
		if err := a.Read(t.Name, at, theta, momentum); err != nil {
			return err
		}
		if residual {
			if err := a.ReadResidual(b.Lo, r); err != nil {
				return err
			}
		}
		for _, c := range commits {
			if err := c.block(b, theta, momentum, r, scratch[:b.Len()], residual); err != nil {
				return err
			}
		}
		if err := a.Write(t.Name, at, theta, momentum); err != nil {
			return err
		}
		if residual {
			if err := a.WriteResidual(b.Lo, r); err != nil {
				return err
			}
		}
	}
	buffers, integers := make([]float32, domain.Layout().Buffers()), make([]byte, domain.Layout().IntegerBytes())
	last := commits[len(commits)-1].delta
	if err := errors.Join(last.Buffers(buffers), last.Integers(integers)); err != nil {
		return err
	}
	if err := a.WriteAux(buffers, integers); err != nil {
		return err
	}
	return a.Finish()
}

// opened is a commit of the log whose files are open.
type opened struct {
	delta    *codec.Payload
	outer    *replica.Outer
	lossless bool
	mean     *merge.Mean // of what was sent, where the residual needs it
	files    []checkpoint.ReadAtCloser
}

type openedCommits []*opened

func (cs openedCommits) close() {
	for _, c := range cs {
		for _, f := range c.files {
			_ = f.Close()
		}
	}
}

// openCommits opens those after one version up to another, which is at least one.
func (e *Engine) openCommits(after, to uint64, d *codec.Domain, residual bool) (openedCommits, error) {
	var out openedCommits
	files := 0
	for v := after + 1; v <= to; v++ {
		c := &opened{}
		out = append(out, c)
		if err := e.openCommit(c, v, d, residual); err != nil {
			return out, fmt.Errorf("commit of version %d: %w", v, err)
		}
		if files += len(c.files); files > mostFiles {
			return out, fmt.Errorf("more than %d files since version %d", mostFiles, after)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no commit between %d and %d", after, to)
	}
	return out, nil
}

func (e *Engine) openCommit(c *opened, version uint64, d *codec.Domain, residual bool) error {
	f, size, man, err := e.store.OpenDelta(version)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	c.lossless, c.outer = man.Algorithm.Downlink.Lossless(), replica.NewOuter(d, man.Algorithm)
	if c.delta, err = codec.Parse(d, man.Algorithm.Downlink, f, size, nil); err != nil || c.lossless || !residual {
		return err
	}
	archived, _, err := e.store.OpenUpdates(version)
	if err != nil {
		return err
	}
	for _, a := range archived {
		c.files = append(c.files, a)
	}
	updates, err := archivedUpdates(d, man, archived)
	if err != nil {
		return err
	}
	c.mean, err = merge.NewRobustMean(d, updates, man.Algorithm.Robust)
	return err
}

// block does to one block what the commit did: R = R + Q - D, then the outer step.
func (c *opened) block(b codec.Block, theta, momentum, r, scratch []float32, residual bool) error {
	if c.mean != nil {
		if err := c.mean.Block(b, scratch); err != nil {
			return err
		}
		for i, q := range scratch {
			r[i] += q
		}
	}
	clear(scratch)
	if err := c.delta.AddRange(scratch, b.Lo, b.Hi, 1); err != nil {
		return err
	}
	switch {
	case c.mean != nil:
		for i, x := range scratch {
			r[i] -= x
		}
	case residual:
		clear(r) // all of it went into this delta
	}
	c.outer.Block(b, theta, momentum, scratch)
	return nil
}
