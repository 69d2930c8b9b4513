package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/tensor"
)

func (e *Engine) beginSeed(h *coordinatorv1.PushHeader) (*Upload, *coordinatorv1.PushResult) {
	s, res := e.speaker(h)
	switch {
	case res != nil:
		return nil, res
	case e.model != nil:
		return nil, refused(v1alpha1.ReasonAlreadySeeded, "the federation has its first weights; pull version %d", e.model.version)
	case e.wishes.effective(s.Site).Membership != round.Admit:
		return nil, refused(v1alpha1.ReasonNotGranted, "site %s is not admitted", s.Site)
	case h.GetPayloadBytes() == 0 || h.GetPayloadBytes() > uint64(e.cfg.MaxModelBytes):
		return nil, refused(v1alpha1.ReasonTooLarge, "a model of %d bytes; at most %d are taken", h.GetPayloadBytes(), e.cfg.MaxModelBytes)
	}
	return e.openUpload(s, h), nil
}

// finishSeed reads, checks and keeps offered weights beside the engine, one
// offer at a time: they may take long and as much memory as the model.
func (e *Engine) finishSeed(ctx context.Context, u *Upload) (*coordinatorv1.PushResult, error) {
	select {
	case e.seeding <- struct{}{}:
		defer func() { <-e.seeding }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.stopped:
		return nil, ErrStopped
	}
	var res *coordinatorv1.PushResult
	err := e.do(ctx, func() {
		if res = e.stillWanted(u); res == nil {
			e.background.Add(1)
		}
	})
	if err != nil || res != nil {
		return res, err
	}
	defer e.background.Done()
	m, man, failed := e.readSeed(u)
	err = e.do(context.WithoutCancel(ctx), func() {
		res = e.seedRead(u, m, man, failed)
		m = nil
	})
	if m != nil { // nobody took it over
		m.close()
	}
	return res, err
}

// stillWanted says why an offer that has arrived is not, nil if it is.
func (e *Engine) stillWanted(u *Upload) *coordinatorv1.PushResult {
	switch {
	case e.model != nil:
		return refused(v1alpha1.ReasonAlreadySeeded, "the federation has its first weights; pull version %d", e.model.version)
	case e.sessions.Member(u.name) != u.member:
		return refused(v1alpha1.ReasonFencedEpoch, "the session of %s was fenced or lost during the upload; push again in the new one", u.name)
	case e.uploads[u.name] != u:
		return refused(v1alpha1.ReasonSuperseded, "a newer upload of %s has taken over", u.name)
	}
	return nil
}

// readSeed makes a model of an upload and keeps it as version 0.
func (e *Engine) readSeed(u *Upload) (*model, checkpoint.Manifest, error) {
	st, err := loadModel(u)
	if err != nil {
		return nil, checkpoint.Manifest{}, err
	}
	m, man, err := e.keepSeed(st)
	if err != nil && !errors.Is(err, checkpoint.ErrFenced) {
		if l, _ := e.load(); l != nil {
			l.model.close()
			err = fmt.Errorf("%w: check the disk and start again: %w", errUnknownDurability, err)
		}
	}
	return m, man, err
}

// seedRead makes a kept seed the model, or answers why there is none.
func (e *Engine) seedRead(u *Upload, m *model, man checkpoint.Manifest, err error) *coordinatorv1.PushResult {
	if e.uploads[u.name] == u {
		delete(e.uploads, u.name)
		u.close()
	}
	if err != nil {
		e.log.Warn("first weights refused", "member", u.name, "error", err)
		switch {
		case errors.Is(err, checkpoint.ErrFenced):
			e.fail(v1alpha1.ReasonFenced, err)
		case errors.Is(err, errUnknownDurability):
			e.fail(v1alpha1.ReasonCommitLogFailed, err)
		}
		return refused(seedReason(err), "%v", err)
	}
	e.adoptSeed(m, man, u.name)
	e.dropUploads() // other offers; they learn the reason
	now := time.Now()
	e.act(now, e.machine.SetModel(now))
	return acceptedResult()
}

func loadModel(u *Upload) (*tensor.State, error) {
	f, err := tensor.ParseFile(u.spool, u.spool.Size())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return tensor.LoadState(f)
}

// errNotKept says that good weights could not be made durable.
var errNotKept = errors.New("the first weights cannot be kept")

func seedReason(err error) v1alpha1.Reason {
	var m *tensor.MismatchError
	switch {
	case errors.As(err, &m):
		return m.Reason
	case checkpoint.Full(err):
		return v1alpha1.ReasonDiskFull
	case errors.Is(err, errNotKept):
		return v1alpha1.ReasonCommitLogFailed
	}
	return v1alpha1.ReasonMalformed
}

// loadInitial takes the first weights from a file.
func (e *Engine) loadInitial(path string) error {
	f, err := tensor.OpenFile(path)
	if err != nil {
		return fmt.Errorf("spec.model.path: %w", err)
	}
	defer f.Close()
	st, err := tensor.LoadState(f)
	if err != nil {
		return fmt.Errorf("spec.model.path %s: %w", path, err)
	}
	m, man, err := e.keepSeed(st)
	if err != nil {
		return fmt.Errorf("spec.model.path %s: %w", path, err)
	}
	e.adoptSeed(m, man, "spec.model.path")
	return nil
}

// keepSeed makes the first weights version 0, durable before anybody hears of
// it. It takes st over and touches nothing of the engine.
func (e *Engine) keepSeed(st *tensor.State) (*model, checkpoint.Manifest, error) {
	m := e.newModel(st, nil, e.needsResidual(nil))
	man := checkpoint.Manifest{
		Version: 0, Kind: checkpoint.KindSeed, Digest: hex.EncodeToString(m.digest[:]), LayoutDigest: hex.EncodeToString(m.layout[:]),
		Algorithm: e.cfg.Algorithm.ForVersion(0), Term: e.store.Term(), UnixMilli: time.Now().UnixMilli(),
	}
	if err := e.store.WriteSnapshot(0, man, st, m.residual); err != nil {
		m.close()
		return nil, man, fmt.Errorf("%w: %w", errNotKept, err)
	}
	return m, man, nil
}

func (e *Engine) adoptSeed(m *model, man checkpoint.Manifest, from string) {
	e.model = m
	e.memory.Bound(uploadMemory(m))
	e.adopt(man)
	e.log.Info("first weights taken", "from", from, "parameters", m.state.Layout.Parameters(), "tensors", len(m.state.Layout.Tensors()), "digest", man.Digest[:12])
	e.tellCommitted(&coordinatorv1.Committed{Version: 0, Digest: m.digestCopy(), Reason: string(v1alpha1.ReasonCommitted)}, nil)
	e.announceCommit(man)
}
