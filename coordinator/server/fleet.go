// Package server speaks gRPC for an engine: the Fleet service to agents, the
// Admin service to people, operator and signals.
//
// It owns what a connection may say: identities, deadlines and limits of
// messages. It must not decide anything about rounds.
package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/session"
	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/wire"
)

const (
	// helloTimeout bounds a connection that says nothing.
	helloTimeout = 10 * time.Second
	// chunkTimeout bounds the wait for the next chunk of an upload.
	chunkTimeout = 60 * time.Second
)

// Fleet serves agents.
type Fleet struct {
	coordinatorv1.UnimplementedFleetServer
	Engine  *engine.Engine
	Store   *checkpoint.Store
	Counter *wire.Counter
	Log     *slog.Logger
}

// Session runs one member's session.
func (f *Fleet) Session(stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	incoming := receive(ctx, stream)
	hello, err := awaitHello(ctx, incoming)
	if err != nil {
		return err
	}
	if err := f.checkIdentity(ctx, hello.GetFederation(), hello.GetSite()); err != nil {
		f.Log.Warn("session refused", "site", hello.GetSite(), "node", hello.GetNode(), "error", err)
		return err
	}
	s, err := f.Engine.OpenSession(ctx, hello)
	if err != nil {
		f.Log.Warn("session refused", "site", hello.GetSite(), "node", hello.GetNode(), "error", err)
		return refusal(err)
	}
	f.Counter.Attribute(ctx, s.Member)
	reason := v1alpha1.ReasonConnectionLost
	defer func() { f.Engine.CloseSession(s, reason) }()
	for {
		select {
		case m := <-s.Outbox():
			if err := stream.Send(m); err != nil {
				return err
			}
		case in := <-incoming:
			if in.err != nil {
				return sessionEnd(in.err)
			}
			if err := f.handle(ctx, s, in.msg); err != nil {
				return err
			}
		case <-s.Done():
			return f.closed(stream, s)
		case <-ctx.Done(): // the connection is gone
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// closed flushes what is queued and tells the member why its session ended.
func (f *Fleet) closed(stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse], s *session.Session) error {
	for {
		select {
		case m := <-s.Outbox():
			if err := stream.Send(m); err != nil {
				return err
			}
			continue
		default:
		}
		switch s.Reason() {
		case v1alpha1.ReasonSuperseded:
			return status.Errorf(codes.Aborted, "%s: a newer session of %s has taken over from epoch %d", v1alpha1.ReasonSuperseded, s.Member, s.Epoch)
		case v1alpha1.ReasonHeartbeatMissed:
			return status.Errorf(codes.Unavailable, "%s: nothing was heard from %s in time", v1alpha1.ReasonHeartbeatMissed, s.Member)
		}
		return status.Errorf(codes.Unavailable, "%s: the session of %s has ended", s.Reason(), s.Member)
	}
}

type incoming struct {
	msg *coordinatorv1.SessionRequest
	err error
}

// receive reads a stream until it fails; the goroutine ends with ctx.
func receive(ctx context.Context, stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) <-chan incoming {
	out := make(chan incoming)
	go func() {
		for {
			m, err := stream.Recv()
			select {
			case out <- incoming{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

func awaitHello(ctx context.Context, in <-chan incoming) (*coordinatorv1.Hello, error) {
	timer := time.NewTimer(helloTimeout)
	defer timer.Stop()
	select {
	case first := <-in:
		if first.err != nil {
			return nil, first.err
		}
		if h := first.msg.GetHello(); h != nil {
			return h, nil
		}
		return nil, status.Error(codes.InvalidArgument, "the first message of a session must be a Hello")
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no Hello within %s", helloTimeout)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func sessionEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (f *Fleet) handle(ctx context.Context, s *session.Session, m *coordinatorv1.SessionRequest) error {
	switch {
	case m.GetHeartbeat() != nil:
		return f.Engine.Heartbeat(ctx, s, m.GetHeartbeat())
	case m.GetLeave() != nil:
		return f.Engine.Leave(ctx, s, m.GetLeave())
	case m.GetHello() != nil:
		return status.Error(codes.InvalidArgument, "a session has one Hello")
	}
	return nil // a message of a newer agent
}

// checkIdentity lets a connection with a certificate speak for its own site
// only. A connection without one is on loopback or was allowed by flag.
func (f *Fleet) checkIdentity(ctx context.Context, federation, site string) error {
	certFederation, certSite, ok := wire.PeerIdentity(ctx)
	if !wire.Authenticated(ctx) || (ok && certFederation == federation && certSite == site) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s: the certificate is for site %q of federation %q, the agent speaks for site %q of %q",
		v1alpha1.ReasonIdentityMismatch, certSite, certFederation, site, federation)
}

// speaker checks that a Pull or Push comes from the site of its session.
func (f *Fleet) speaker(ctx context.Context, token string) (*session.Session, error) {
	s, err := f.Engine.SessionByToken(ctx, token)
	if err != nil {
		return nil, refusal(err)
	}
	if err := f.checkIdentity(ctx, s.Hello.GetFederation(), s.Site); err != nil {
		return nil, err
	}
	f.Counter.Attribute(ctx, s.Member)
	return s, nil
}

// refusal turns an engine's refusal into a status code.
func refusal(err error) error {
	var r *engine.RefusedError
	if !errors.As(err, &r) {
		if errors.Is(err, engine.ErrStopped) {
			return status.Error(codes.Unavailable, err.Error())
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return status.FromContextError(err).Err()
		}
		return status.Error(codes.Internal, err.Error())
	}
	code := codes.FailedPrecondition
	switch r.Reason {
	case v1alpha1.ReasonUnknownSite:
		code = codes.NotFound
	case v1alpha1.ReasonMalformed:
		code = codes.InvalidArgument
	case v1alpha1.ReasonFencedEpoch:
		code = codes.Unauthenticated
	}
	return status.Error(code, r.Error())
}

// Push takes an update or the first weights.
func (f *Fleet) Push(stream grpc.BidiStreamingServer[coordinatorv1.PushRequest, coordinatorv1.PushResponse]) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h := first.GetHeader()
	wire.Release(first)
	if h == nil {
		return status.Error(codes.InvalidArgument, "the first message of a push must carry its header")
	}
	// A dead token is answered in the result, so that the agent learns the reason.
	if _, err := f.speaker(ctx, h.GetSessionToken()); status.Code(err) == codes.PermissionDenied {
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
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	late := time.AfterFunc(chunkTimeout, func() { cancel(fmt.Errorf("no chunk within %s", chunkTimeout)) })
	defer late.Stop()
	rx := wire.NewReceiver(u, u.Size(), u.Offset())
	for {
		m, err := recvOr(ctx, stream)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		late.Reset(chunkTimeout)
		if err := rx.Take(m); err != nil {
			return chunkProblem(err), nil
		}
	}
	res, err := f.Engine.FinishPush(stream.Context(), u)
	if err != nil {
		return nil, refusal(err)
	}
	return res, nil
}

// recvOr is Recv that ends with ctx: returning from the handler then ends the
// stream and with it the goroutine.
func recvOr(ctx context.Context, stream grpc.BidiStreamingServer[coordinatorv1.PushRequest, coordinatorv1.PushResponse]) (*coordinatorv1.PushRequest, error) {
	type got struct {
		m   *coordinatorv1.PushRequest
		err error
	}
	c := make(chan got, 1)
	go func() {
		m, err := stream.Recv()
		c <- got{m, err}
	}()
	select {
	case g := <-c:
		return g.m, g.err
	case <-ctx.Done():
		return nil, status.Error(codes.DeadlineExceeded, context.Cause(ctx).Error())
	}
}

func chunkProblem(err error) *coordinatorv1.PushResult {
	reason := v1alpha1.ReasonMalformed
	var ce *wire.PayloadError
	switch {
	case errors.As(err, &ce):
		reason = ce.Reason
	case errors.Is(err, spool.ErrSuperseded):
		reason = v1alpha1.ReasonSuperseded
	}
	return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_REFUSED, Reason: string(reason), Message: err.Error()}
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
	defer file.Close()
	if req.GetOffset() > uint64(file.size) {
		return status.Errorf(codes.OutOfRange, "offset %d is behind the end at %d", req.GetOffset(), file.size)
	}
	header, err := pullHeader(file)
	if err != nil {
		return err
	}
	if err := stream.Send(&coordinatorv1.PullResponse{Header: header}); err != nil {
		return err
	}
	return wire.SendPayload(func(offset uint64, crc uint32, payload []byte) error {
		return stream.Send(&coordinatorv1.PullResponse{Offset: offset, Crc32C: crc, Payload: payload})
	}, file, file.size, int64(req.GetOffset()))
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
	}
	for _, m := range f.manifest.Members {
		h.UpdateIds = append(h.UpdateIds, m.UpdateID)
	}
	return h, nil
}

// logFile is an open file of the commit log.
type logFile struct {
	checkpoint.ReadAtCloser
	size     int64
	manifest checkpoint.Manifest
}

func (f *Fleet) open(req *coordinatorv1.PullRequest) (*logFile, error) {
	var file logFile
	var err error
	switch req.GetKind() {
	case coordinatorv1.PullRequest_KIND_SNAPSHOT:
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
