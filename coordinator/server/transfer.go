package server

import (
	"encoding/hex"
	"errors"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/wire"
)

// Push takes an update or the first weights.
func (f *Fleet) Push(stream grpc.BidiStreamingServer[coordinatorv1.PushRequest, coordinatorv1.PushResponse]) error {
	ctx := stream.Context()
	first, err := recv(f, f.firstMessage(), stream.Recv)
	if err != nil {
		return err
	}
	h := first.GetHeader()
	wire.Release(first)
	for _, m := range []proto.Message{first, h} {
		if why := wire.Oversize(m); why != "" {
			return status.Errorf(codes.InvalidArgument, "%s: %s", v1alpha1.ReasonTooLarge, why)
		}
	}
	if h == nil {
		return status.Error(codes.InvalidArgument, "the first message of a push must carry its header")
	}
	// A dead token is answered in the result, so that the agent learns the reason.
	if _, err := f.speaker(ctx, h.GetSessionToken()); status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.ResourceExhausted {
		return err
	}
	u, result, err := f.Engine.BeginPush(ctx, h)
	if err != nil {
		return refusal(err)
	}
	if result == nil {
		if result, err = f.takeChunks(stream, u); err != nil {
			return err
		}
	}
	return stream.Send(&coordinatorv1.PushResponse{Message: &coordinatorv1.PushResponse_Result{Result: result}})
}

func (f *Fleet) takeChunks(stream grpc.BidiStreamingServer[coordinatorv1.PushRequest, coordinatorv1.PushResponse], u *engine.Upload) (*coordinatorv1.PushResult, error) {
	resume := &coordinatorv1.PushResponse{Message: &coordinatorv1.PushResponse_Resume{Resume: &coordinatorv1.Resume{Offset: uint64(u.Offset())}}}
	if err := stream.Send(resume); err != nil {
		return nil, err
	}
	rx := wire.NewFrameReceiver(u, u.Size(), u.Offset())
	// One message for all chunks: after a receive that came too late, which may still
	// write to it, the loop ends.
	m := new(wire.PushFrames)
	for {
		_, err := recv(f, f.nextChunk(), func() (struct{}, error) { return struct{}{}, stream.RecvMsg(m) })
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := rx.TakeFrames(&m.Frames); err != nil {
			var fault *codec.Error
			if errors.As(err, &fault) {
				return f.answer(f.Engine.RefusePush(stream.Context(), u, fault))
			}
			var over *engine.RefusedError
			if errors.As(err, &over) {
				return f.answer(f.Engine.RefusePush(stream.Context(), u, over))
			}
			return f.chunkProblem(u, err), nil
		}
	}
	return f.answer(f.Engine.FinishPush(stream.Context(), u))
}

func (f *Fleet) answer(res *coordinatorv1.PushResult, err error) (*coordinatorv1.PushResult, error) {
	if err != nil {
		return nil, refusal(err)
	}
	return res, nil
}

// recv is a receive that ends in time, also when the coordinator stops: returning
// from the handler then ends the stream and with it the goroutine.
func recv[T any](f *Fleet, timeout time.Duration, receive func() (T, error)) (T, error) {
	type got struct {
		m   T
		err error
	}
	c := make(chan got, 1)
	go func() {
		m, err := receive()
		c <- got{m, err}
	}()
	var none T
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case g := <-c:
		return g.m, g.err
	case <-late.C:
		return none, status.Errorf(codes.DeadlineExceeded, "nothing arrived for %s", timeout)
	case <-f.Engine.Stopped():
		return none, refusal(engine.ErrStopped)
	}
}

func (f *Fleet) chunkProblem(u *engine.Upload, err error) *coordinatorv1.PushResult {
	res := &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_REFUSED, Message: err.Error()}
	var ce *wire.PayloadError
	switch {
	case errors.As(err, &ce):
		res.Reason = string(ce.Reason)
	case errors.Is(err, spool.ErrSuperseded):
		res.Reason = string(v1alpha1.ReasonSuperseded)
	case errors.Is(err, os.ErrClosed):
		return u.Dropped()
	default: // the coordinator's disk: the sender keeps its work
		return f.Engine.StorageFailed(u, err)
	}
	return res
}

// Pull sends a snapshot or a delta from the commit log's files.
func (f *Fleet) Pull(req *coordinatorv1.PullRequest, stream grpc.ServerStreamingServer[coordinatorv1.PullResponse]) error {
	if _, err := f.speaker(stream.Context(), req.GetSessionToken()); err != nil {
		return err
	}
	file, err := f.open(req)
	if err != nil {
		return err
	}
	if req.GetOffset() > uint64(file.size) {
		_ = file.Close()
		return status.Errorf(codes.OutOfRange, "offset %d is behind the end at %d", req.GetOffset(), file.size)
	}
	header, err := pullHeader(file)
	if err != nil {
		_ = file.Close()
		return err
	}
	return f.send(stream, header, file, int64(req.GetOffset()))
}

// send streams a file and closes it. It gives up on a receiver that takes
// nothing; returning then ends the stream and with it the goroutine.
func (f *Fleet) send(stream grpc.ServerStreamingServer[coordinatorv1.PullResponse], header *coordinatorv1.PullHeader, file *logFile, from int64) error {
	taken, done := make(chan struct{}, 1), make(chan error, 1)
	send := func(m *coordinatorv1.PullResponse) error {
		err := stream.Send(m)
		select {
		case taken <- struct{}{}:
		default:
		}
		return err
	}
	go func() {
		defer file.Close()
		if err := send(&coordinatorv1.PullResponse{Header: header}); err != nil {
			done <- err
			return
		}
		key := published{file.snapshot, file.manifest.Version, file.manifest.Digest}
		done <- f.shared.SendPayload(key, func(offset uint64, crc uint32, payload []byte) error {
			return send(&coordinatorv1.PullResponse{Offset: offset, Crc32C: crc, Payload: payload})
		}, file, file.size, from)
	}()
	late := time.NewTimer(f.nextChunk())
	defer late.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-taken:
			late.Reset(f.nextChunk())
		case <-late.C:
			return status.Errorf(codes.DeadlineExceeded, "nothing was taken for %s; pull again, it goes on where it stopped", f.nextChunk())
		case <-f.Engine.Stopped():
			return refusal(engine.ErrStopped)
		}
	}
}

// pullHeader is the part of a manifest that a replica needs; the rest would
// outweigh a small delta.
func pullHeader(f *logFile) (*coordinatorv1.PullHeader, error) {
	digest, err := hex.DecodeString(f.manifest.Digest)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "version %d has no usable digest", f.manifest.Version)
	}
	h := &coordinatorv1.PullHeader{
		Version: f.manifest.Version, PayloadBytes: uint64(f.size), Digest: digest, Round: f.manifest.Round, Algorithm: f.manifest.Algorithm.ToProto(),
		Snapshot: f.snapshot,
	}
	if r := f.manifest.Rollback; r != nil {
		h.RolledBack = r.Version
	}
	for _, m := range f.manifest.Members {
		h.UpdateIds = append(h.UpdateIds, m.UpdateID)
	}
	return h, nil
}

// published names the bytes of a file that is sent to many.
type published struct {
	snapshot bool
	version  uint64
	digest   string
}

// logFile is an open file of the commit log.
type logFile struct {
	checkpoint.ReadAtCloser
	size     int64
	manifest checkpoint.Manifest
	snapshot bool
}

func (f *Fleet) open(req *coordinatorv1.PullRequest) (*logFile, error) {
	var file logFile
	var err error
	kind := req.GetKind()
	if kind == coordinatorv1.PullRequest_KIND_DELTA && req.GetCatchUpTo() >= req.GetVersion() && req.GetOffset() == 0 {
		if f.Store.SnapshotIsShorter(req.GetVersion(), req.GetCatchUpTo()) {
			kind = coordinatorv1.PullRequest_KIND_SNAPSHOT
		}
	}
	switch kind {
	case coordinatorv1.PullRequest_KIND_SNAPSHOT:
		file.snapshot = true
		file.ReadAtCloser, file.size, file.manifest, err = f.Store.OpenSnapshot()
	case coordinatorv1.PullRequest_KIND_DELTA:
		file.ReadAtCloser, file.size, file.manifest, err = f.Store.OpenDelta(req.GetVersion())
	default:
		return nil, status.Error(codes.InvalidArgument, "kind must be SNAPSHOT or DELTA")
	}
	if errors.Is(err, checkpoint.ErrNotKept) {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	if err != nil {
		f.Log.Error("pull failed", "kind", req.GetKind(), "version", req.GetVersion(), "error", err)
		return nil, status.Error(codes.Internal, "the commit log cannot be read; the coordinator's log says why")
	}
	return &file, nil
}
