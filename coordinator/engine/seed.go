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
	"girassol.dev/coordinator/spool"
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
	u := &Upload{header: h, member: s, name: s.Member, site: s.Site}
	if old := e.uploads[s.Member]; old != nil && sameUpload(old.header, h) {
		u.spool = old.spool
	} else {
		if old != nil {
			old.spool.Close()
		}
		sp, err := spool.New(e.spoolDir(), int64(h.GetPayloadBytes()))
		if err != nil {
			return nil, refused(v1alpha1.ReasonCommitLogFailed, "the coordinator cannot store the model: %v", err)
		}
		u.spool = sp
	}
	u.attempt, u.offset = u.spool.Attempt()
	e.uploads[s.Member] = u
	return u, nil
}

func (e *Engine) finishSeed(ctx context.Context, u *Upload) (*coordinatorv1.PushResult, error) {
	st, err := loadModel(u)
	var res *coordinatorv1.PushResult
	doErr := e.do(ctx, func() {
		if e.uploads[u.name] == u {
			delete(e.uploads, u.name)
			defer u.spool.Close()
		}
		switch {
		case err != nil:
			e.log.Warn("first weights refused", "member", u.name, "error", err)
			res = refused(mismatchReason(err), "%v", err)
		case e.model != nil:
			res = refused(v1alpha1.ReasonAlreadySeeded, "the federation has its first weights; pull version %d", e.model.version)
		default:
			if serr := e.adoptSeed(st, u.name); serr != nil {
				res = refused(v1alpha1.ReasonCommitLogFailed, "%v", serr)
				return
			}
			st = nil
			res = acceptedResult()
			now := time.Now()
			e.act(now, e.machine.SetModel(now))
		}
	})
	if st != nil {
		st.Close()
	}
	return res, doErr
}

func loadModel(u *Upload) (*tensor.State, error) {
	f, err := tensor.ParseFile(u.spool, u.spool.Size())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return tensor.LoadState(f)
}

func mismatchReason(err error) v1alpha1.Reason {
	var m *tensor.MismatchError
	if errors.As(err, &m) {
		return m.Reason
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
	return e.adoptSeed(st, "spec.model.path")
}

// adoptSeed makes the first weights version 0, durable before anybody hears of it.
func (e *Engine) adoptSeed(st *tensor.State, from string) error {
	m := e.newModel(st, nil, e.needsResidual(nil))
	man := checkpoint.Manifest{
		Version: 0, Kind: checkpoint.KindSeed, Digest: hex.EncodeToString(m.digest[:]), LayoutDigest: hex.EncodeToString(m.layout[:]),
		Algorithm: e.cfg.Algorithm, Term: e.store.Term(), UnixMilli: time.Now().UnixMilli(),
	}
	if err := e.store.WriteSnapshot(0, man, st, m.residual); err != nil {
		tensor.FreeVector(m.residual)
		return fmt.Errorf("the first weights cannot be kept: %w", err)
	}
	e.model = m
	e.adopt(man)
	e.log.Info("first weights taken", "from", from, "parameters", st.Layout.Parameters(), "tensors", len(st.Layout.Tensors()), "digest", man.Digest[:12])
	e.tellCommitted(&coordinatorv1.Committed{Version: 0, Digest: m.digestCopy(), Reason: string(v1alpha1.ReasonCommitted)}, nil)
	e.announceCommit(man)
	return nil
}
