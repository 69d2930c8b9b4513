package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/admission"
	"girassol.dev/coordinator/session"
	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

// Upload is one update on its way in. Its fields do not change.
type Upload struct {
	header *coordinatorv1.PushHeader
	member *session.Session
	name   string // member
	site   string
	spool  *spool.Spool
	// check reads it as it arrives; nil for first weights and for tensors in an order
	// of the sender's, which are read when all is there.
	check  *check
	writer *spool.Writer
	offset int64
	// payload is set once the update was accepted; the engine's goroutine owns it.
	payload *codec.Payload
	// encoding is the round's; unset for first weights.
	encoding algorithm.Encoding
	// quota counts its bytes, nil for first weights; an update has most of them or fewer.
	quota *admission.Site
	most  int64
	// measured is set before it is settled, where spec.admission bounds norms.
	measured *admission.Measure
}

// Offset is from where the sender goes on.
func (u *Upload) Offset() int64 { return u.offset }

// Size is the announced size of the payload in bytes.
func (u *Upload) Size() int64 { return u.spool.Size() }

// Append takes the next bytes, in pieces that are the caller's again when it returns;
// where it fails, nothing is kept. A *codec.Error says that the bytes cannot be used,
// whatever follows.
func (u *Upload) Append(pieces [][]byte) error {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	if err := u.meter(n); err != nil {
		return err
	}
	at, kept, err := u.writer.Append(pieces)
	if err != nil || u.check == nil {
		return err
	}
	return u.check.take(kept, at)
}

// Write is Append of one piece.
func (u *Upload) Write(p []byte) (int, error) {
	if err := u.Append([][]byte{p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// close gives up what has arrived.
func (u *Upload) close() {
	if u.check != nil {
		u.check.close()
	}
	u.spool.Close()
}

// Dropped is the answer to who was still sending when the upload was given up.
func (u *Upload) Dropped() *coordinatorv1.PushResult {
	if u.header.GetKind() == coordinatorv1.PushHeader_KIND_SEED {
		return refused(v1alpha1.ReasonAlreadySeeded, "the federation got its first weights while these arrived")
	}
	return stale(v1alpha1.ReasonStaleRound, "round %d ended while the update arrived", u.header.GetRound())
}

func refused(reason v1alpha1.Reason, format string, args ...any) *coordinatorv1.PushResult {
	return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_REFUSED, Reason: string(reason), Message: fmt.Sprintf(format, args...)}
}

func stale(reason v1alpha1.Reason, format string, args ...any) *coordinatorv1.PushResult {
	return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_STALE, Reason: string(reason), Message: fmt.Sprintf(format, args...)}
}

func acceptedResult() *coordinatorv1.PushResult {
	return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_ACCEPTED, Reason: string(v1alpha1.ReasonReady)}
}

// BeginPush checks an update's header. It returns either where to put the bytes
// or, when none are wanted, the answer.
func (e *Engine) BeginPush(ctx context.Context, h *coordinatorv1.PushHeader) (*Upload, *coordinatorv1.PushResult, error) {
	var u *Upload
	var res *coordinatorv1.PushResult
	err := e.do(ctx, func() {
		if h.GetKind() == coordinatorv1.PushHeader_KIND_SEED {
			u, res = e.beginSeed(h)
		} else {
			u, res = e.beginUpdate(time.Now(), h)
		}
		if res != nil && res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
			e.answered(h, res)
			e.log.Warn("update not taken", "round", h.GetRound(), "update", cutTo(h.GetUpdateId(), maxUpdateID), "reason", res.GetReason(), "message", res.GetMessage())
		}
	})
	return u, res, err
}

func (e *Engine) beginUpdate(now time.Time, h *coordinatorv1.PushHeader) (*Upload, *coordinatorv1.PushResult) {
	s, res := e.speaker(h)
	if res != nil {
		return nil, res
	}
	e.heed(s, h)
	id := h.GetUpdateId()
	if v, ok := e.counted[s.Member+"\x00"+id]; ok {
		r := acceptedResult()
		r.Message = fmt.Sprintf("already part of version %d", v)
		return nil, r
	}
	old := e.uploads[s.Member]
	if old != nil && old.header.GetUpdateId() == id && old.payload != nil {
		return nil, acceptedResult()
	}
	if reason, ok := e.machine.Expecting(now, s.Member, h.GetRound()); !ok {
		st := e.machine.Status()
		if reason == v1alpha1.ReasonStaleRound {
			return nil, stale(reason, "round %d is not collecting from %s (round %d, %s)", h.GetRound(), s.Member, st.Round, st.State)
		}
		return nil, refused(reason, "round %d does not expect this update of %s", h.GetRound(), s.Member)
	}
	if res := e.quarantined(s.Site, h.GetRound()); res != nil {
		e.act(now, e.machine.Refused(now, s.Member, h.GetRound()))
		return nil, res
	}
	if h.GetEvaluation() != nil && h.GetPayloadBytes() == 0 {
		e.act(now, e.machine.Refused(now, s.Member, h.GetRound()))
		return nil, refused(v1alpha1.ReasonNothingToMerge, "the evaluation is taken; no update came with it")
	}
	if res := cmp.Or(e.checkHeader(h), e.checkData(s.Member, h), e.bytesQuota(s, h)); res != nil {
		if !retryable(v1alpha1.Reason(res.GetReason())) {
			e.act(now, e.machine.Refused(now, s.Member, h.GetRound()))
		}
		return nil, res
	}
	return e.openUpload(s, h), nil
}

// openUpload goes on with the bytes of the member's upload, or begins a new one
// in its place.
func (e *Engine) openUpload(s *session.Session, h *coordinatorv1.PushHeader) *Upload {
	u := &Upload{header: h, member: s, name: s.Member, site: s.Site}
	if h.GetKind() != coordinatorv1.PushHeader_KIND_SEED {
		u.encoding = e.params().Uplink
	}
	if old := e.uploads[s.Member]; old != nil && sameUpload(old.header, h) {
		u.spool, u.check = old.spool, old.check
	} else {
		if old != nil {
			// Gone from the table as well: a closed spool must not be gone on with.
			delete(e.uploads, s.Member)
			old.close()
		}
		u.spool = spool.New(e.spoolDir(), int64(h.GetPayloadBytes()), e.memory)
		if h.GetKind() != coordinatorv1.PushHeader_KIND_SEED && len(h.GetTensors()) == 0 {
			u.check = newCheck(u.spool, e.model.domain, u.encoding)
		}
	}
	if h.GetKind() != coordinatorv1.PushHeader_KIND_SEED {
		u.quota, u.most = e.admitting.sites[s.Site], codec.MaxSize(e.model.domain, u.encoding)
	}
	u.writer, u.offset = u.spool.Attempt()
	e.uploads[s.Member] = u
	return u
}

// sameUpload says whether an attempt goes on with the bytes of an older one.
func sameUpload(a, b *coordinatorv1.PushHeader) bool {
	return a.GetUpdateId() == b.GetUpdateId() && a.GetRound() == b.GetRound() && a.GetPayloadBytes() == b.GetPayloadBytes()
}

// speaker finds the session that a header belongs to.
func (e *Engine) speaker(h *coordinatorv1.PushHeader) (*session.Session, *coordinatorv1.PushResult) {
	s := e.sessions.Token(h.GetSessionToken())
	switch {
	case s == nil:
		return nil, refused(v1alpha1.ReasonFencedEpoch, "no live session has this token: it was fenced by a newer one or lost; open a session and push again")
	case s.Epoch != h.GetEpoch():
		return nil, refused(v1alpha1.ReasonFencedEpoch, "epoch %d of %s is not its live session's %d", h.GetEpoch(), s.Member, s.Epoch)
	case h.GetUpdateId() == "" || len(h.GetUpdateId()) > maxUpdateID:
		return nil, refused(v1alpha1.ReasonMalformed, "update id must have 1 to %d bytes, has %d", maxUpdateID, len(h.GetUpdateId()))
	}
	return s, nil
}

// retryable says whether the same update may come again and be good.
func retryable(r v1alpha1.Reason) bool {
	switch r {
	case v1alpha1.ReasonStaleRound, v1alpha1.ReasonChecksumMismatch, v1alpha1.ReasonTruncated, v1alpha1.ReasonUnexpectedOffset, v1alpha1.ReasonCommitLogFailed:
		return true
	}
	return false
}

// FinishPush checks a complete upload and counts it.
func (e *Engine) FinishPush(ctx context.Context, u *Upload) (*coordinatorv1.PushResult, error) {
	if !u.spool.Complete() {
		res := refused(v1alpha1.ReasonTruncated, "the stream ended before all %d bytes arrived; push again, it goes on where it stopped", u.spool.Size())
		return res, e.answer(ctx, u.header, res)
	}
	if u.header.GetKind() == coordinatorv1.PushHeader_KIND_SEED {
		return e.finishSeed(ctx, u)
	}
	payload, err := e.checked(ctx, u)
	if errors.Is(err, ErrStopped) || ctx.Err() != nil {
		return nil, err
	}
	if err == nil {
		u.measured, err = e.measure(u, payload)
	}
	return e.settleUpload(ctx, u, payload, err)
}

// checked is the payload of a complete update, or what is wrong with it.
func (e *Engine) checked(ctx context.Context, u *Upload) (*codec.Payload, error) {
	if u.check != nil {
		select {
		case <-u.check.done:
			return u.check.payload, u.check.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// The model's domain never changes, so the check may run beside the engine.
	var domain *codec.Domain
	if err := e.do(ctx, func() { domain = e.model.domain }); err != nil {
		return nil, err
	}
	return codec.Parse(domain, u.encoding, u.spool, u.spool.Size(), sections(u.header.GetTensors()))
}

// RefusePush ends an update of which some bytes cannot be used, before the rest came:
// fault is a *codec.Error or a *RefusedError.
func (e *Engine) RefusePush(ctx context.Context, u *Upload, fault error) (*coordinatorv1.PushResult, error) {
	return e.settleUpload(ctx, u, nil, fault)
}

func (e *Engine) settleUpload(ctx context.Context, u *Upload, payload *codec.Payload, fault error) (res *coordinatorv1.PushResult, err error) {
	err = e.do(ctx, func() {
		res = e.finishUpdate(time.Now(), u, payload, fault)
		e.answered(u.header, res)
	})
	return res, err
}

func (e *Engine) finishUpdate(now time.Time, u *Upload, payload *codec.Payload, err error) *coordinatorv1.PushResult {
	current := e.uploads[u.name]
	if current != nil && current.payload != nil && sameUpload(current.header, u.header) {
		return acceptedResult()
	}
	if e.sessions.Member(u.name) != u.member {
		return refused(v1alpha1.ReasonFencedEpoch, "the session of %s was fenced or lost during the upload; push again in the new one", u.name)
	}
	if current != nil && current != u && sameUpload(current.header, u.header) {
		return refused(v1alpha1.ReasonSuperseded, "a newer attempt of %s to push the same update has taken over", u.name)
	}
	if reason, ok := e.machine.Expecting(now, u.name, u.header.GetRound()); !ok || current != u {
		return stale(v1alpha1.Reason(firstNonEmpty(string(reason), string(v1alpha1.ReasonStaleRound))), "round %d ended while the update arrived", u.header.GetRound())
	}
	if err != nil {
		res := spoiled(err)
		e.log.Warn("update not taken", "member", u.name, "round", u.header.GetRound(), "reason", res.GetReason(), "error", err)
		delete(e.uploads, u.name)
		u.close()
		e.act(now, e.machine.Refused(now, u.name, u.header.GetRound()))
		return res
	}
	if b := e.judgeNorm(u); b != nil {
		e.breached(u, *b)
		delete(e.uploads, u.name)
		u.close()
		e.act(now, e.machine.Refused(now, u.name, u.header.GetRound()))
		return refused(b.Reason, "%s", b.Message)
	}
	if res := e.quarantined(u.site, u.header.GetRound()); res != nil {
		delete(e.uploads, u.name)
		u.close()
		e.act(now, e.machine.Refused(now, u.name, u.header.GetRound()))
		return res
	}
	u.payload = payload
	e.log.Info("update accepted", "member", u.name, "round", u.header.GetRound(), "update", u.header.GetUpdateId(),
		"samples", u.header.GetSamples(), "steps", u.header.GetSteps(), "bytes", u.spool.Size())
	if e.hooks.Observe != nil {
		e.hooks.Observe.UpdateAnswered(u.site, UpdateAccepted, v1alpha1.ReasonReady)
	}
	e.act(now, e.machine.Accepted(now, u.name, u.header.GetSteps()))
	return acceptedResult()
}

// spoiled is the answer to an update that cannot be used: a refusal where its bytes or
// its sender are to blame, and not where the coordinator cannot read back what it kept.
func spoiled(err error) *coordinatorv1.PushResult {
	var ce *codec.Error
	var re *RefusedError
	switch {
	case errors.As(err, &ce):
		return refused(ce.Reason, "%v", err)
	case errors.As(err, &re):
		return refused(re.Reason, "%v", err)
	}
	return stale(v1alpha1.ReasonCommitLogFailed, "the coordinator cannot read the upload back: %v", err)
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (e *Engine) spoolDir() string { return filepath.Join(e.cfg.DataDir, "spool") }

func makeSpoolDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}
