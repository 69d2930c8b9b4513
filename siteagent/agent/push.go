package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
)

// errPushLate ends the tries to push.
var errPushLate = errors.New("the coordinator has not answered the push in time")

// push brings the pending update to the coordinator, over as many sessions as it
// takes, and settles the answer with the replica. The outcome is for people.
func (a *Agent) push(ctx context.Context) (outcome string, err error) {
	u := a.cfg.Replica.Pending()
	f, err := a.cfg.Replica.OpenPending()
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := u.Header(a.cfg.Replica.State().Layout.Digest())
	res, err := a.deliver(ctx, h, f)
	if err != nil {
		return "", err
	}
	log := a.log.With("round", u.Round, "update", u.UpdateID, "bytes", u.Bytes, "steps", u.Steps, "samples", u.Samples)
	switch res.GetStatus() {
	case coordinatorv1.PushResult_STATUS_ACCEPTED:
		log.Info("update accepted")
		a.metrics.rounds.WithLabelValues(outcomeAccepted).Inc()
		if err := a.cfg.Replica.Accept(); err != nil {
			log.Error("the answer is not on disk; after a restart the update is pushed again and counts once", "error", err)
		}
		return "", nil
	case coordinatorv1.PushResult_STATUS_STALE:
		log.Warn("update came too late, its work stays in the residual", "reason", res.GetReason(), "message", res.GetMessage())
		a.metrics.rounds.WithLabelValues(outcomeStale).Inc()
	default:
		log.Error("update refused, its work stays in the residual", "reason", res.GetReason(), "message", res.GetMessage())
		a.metrics.rounds.WithLabelValues(outcomeRefused).Inc()
	}
	return reason(res), a.cfg.Replica.Drop()
}

// pushSeed offers first weights. That others were faster is as good.
func (a *Agent) pushSeed(ctx context.Context, path string) error {
	f, err := tensor.OpenFile(path)
	if err != nil {
		return err
	}
	layout, err := tensor.NewLayout(tensor.RolesFor(f.Specs(), f.Metadata()))
	_ = f.Close()
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	fi, err := file.Stat()
	if err != nil {
		return err
	}
	digest := layout.Digest()
	res, err := a.deliver(ctx, &coordinatorv1.PushHeader{
		Kind: coordinatorv1.PushHeader_KIND_SEED, UpdateId: newID(), PayloadBytes: uint64(fi.Size()), LayoutDigest: digest[:],
	}, file)
	if err != nil {
		return err
	}
	if res.GetStatus() == coordinatorv1.PushResult_STATUS_ACCEPTED || res.GetReason() == string(v1alpha1.ReasonAlreadySeeded) {
		a.log.Info("first weights are known", "reason", res.GetReason())
		return nil
	}
	return errors.New(reason(res))
}

// deliver sends one payload until there is an answer that stands: broken streams
// resume at the coordinator's offset, new sessions bring a new token.
func (a *Agent) deliver(ctx context.Context, h *coordinatorv1.PushHeader, r io.ReaderAt) (*coordinatorv1.PushResult, error) {
	b := a.cfg.newBackOff()
	var fenced *session
	for {
		s, err := a.session(ctx, fenced)
		if err != nil {
			return nil, err
		}
		h.SessionToken, h.Epoch = s.token, s.epoch
		res, err := deliverOnce(ctx, s, h, r)
		switch {
		case err == nil && !again(res):
			return res, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil && res.GetReason() == string(v1alpha1.ReasonFencedEpoch), status.Code(err) == codes.Unauthenticated:
			fenced = s // its token is dead, even if we do not know it yet
		case err == nil:
			a.log.Warn("push is repeated", "round", h.GetRound(), "update", h.GetUpdateId(), "reason", res.GetReason(), "message", res.GetMessage())
		case final(err):
			return &coordinatorv1.PushResult{
				Status: coordinatorv1.PushResult_STATUS_REFUSED, Reason: string(v1alpha1.ReasonMalformed), Message: status.Convert(err).Message(),
			}, nil
		default:
			a.log.Info("push broke, resuming", "round", h.GetRound(), "update", h.GetUpdateId(), "error", err)
		}
		if !pause(ctx, b.NextBackOff()) {
			return nil, context.Cause(ctx)
		}
	}
}

// again says whether a refusal is about the transfer rather than the update.
func again(r *coordinatorv1.PushResult) bool {
	if r.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED {
		return false
	}
	switch v1alpha1.Reason(r.GetReason()) {
	case v1alpha1.ReasonFencedEpoch, v1alpha1.ReasonChecksumMismatch, v1alpha1.ReasonTruncated,
		v1alpha1.ReasonUnexpectedOffset, v1alpha1.ReasonSuperseded, v1alpha1.ReasonDiskFull:
		return true
	}
	return false
}

// final says whether an error will be the same next time.
func final(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}

// deliverOnce is one Push on one session.
func deliverOnce(ctx context.Context, s *session, h *coordinatorv1.PushHeader, r io.ReaderAt) (*coordinatorv1.PushResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.Push(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&coordinatorv1.PushRequest{Header: h}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if res := first.GetResult(); res != nil {
		return res, nil
	}
	resume := first.GetResume()
	if resume == nil || resume.GetOffset() > h.GetPayloadBytes() {
		return nil, fmt.Errorf("agent: coordinator answers a push header with %v", first)
	}
	err = wire.SendPayload(func(offset uint64, crc uint32, payload []byte) error {
		return stream.Send(&coordinatorv1.PushRequest{Offset: offset, Crc32C: crc, Payload: payload})
	}, r, int64(h.GetPayloadBytes()), int64(resume.GetOffset()))
	// io.EOF: the coordinator has ended the stream early and said why.
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	last, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if last.GetResult() == nil {
		return nil, fmt.Errorf("agent: coordinator ends a push with %v", last)
	}
	return last.GetResult(), nil
}

// newID is unique per update.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
