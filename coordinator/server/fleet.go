// Package server speaks gRPC for an engine: the Fleet service to agents, the
// Admin service to people, operator and signals.
//
// It owns what a connection may say: identities, deadlines and limits of
// messages. It must not decide anything about rounds.
package server

import (
	"cmp"
	"context"
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
	"girassol.dev/coordinator/identity"
	"girassol.dev/coordinator/session"
	"girassol.dev/internal/wire"
)

const (
	// helloTimeout bounds a stream that says nothing.
	helloTimeout = 10 * time.Second
	// patience bounds the wait for the other side to send or take the next chunk.
	patience = 60 * time.Second
	// flushTimeout bounds the last messages of a session that has ended.
	flushTimeout = 2 * time.Second
)

// Fleet serves agents.
type Fleet struct {
	coordinatorv1.UnimplementedFleetServer
	Engine  *engine.Engine
	Store   *checkpoint.Store
	Counter *wire.Counter
	Log     *slog.Logger
	// Identities renews certificates; nil without mutual TLS.
	Identities *identity.Issuer
	// Mesh: what is plaintext here is declared to be encrypted below.
	Mesh bool
	// Patience with a side that sends or takes nothing; 0 means a minute, and ten
	// seconds for the first message.
	Patience time.Duration

	shared wire.Shared
}

func (f *Fleet) firstMessage() time.Duration { return min(helloTimeout, f.nextChunk()) }

func (f *Fleet) nextChunk() time.Duration { return cmp.Or(f.Patience, patience) }

// Session runs one member's session.
func (f *Fleet) Session(stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if err := f.call(ctx, ""); err != nil {
		return err
	}
	incoming := receive(ctx, stream)
	hello, err := awaitHello(ctx, incoming, f.firstMessage())
	if err != nil {
		return err
	}
	if err := f.checkIdentity(ctx, hello.GetFederation(), hello.GetSite()); err != nil {
		f.refused(hello, err)
		return err
	}
	if err := f.call(ctx, hello.GetSite()); err != nil {
		return err
	}
	s, err := f.Engine.OpenSession(ctx, hello)
	if err != nil {
		f.refused(hello, err)
		return refusal(err)
	}
	f.Counter.Attribute(ctx, s.Member)
	if err := f.Engine.SetLink(ctx, s, f.seenLink(ctx)); err != nil {
		f.Log.Debug("link not told", "member", s.Member, "error", err)
	}
	defer func() { f.Engine.CloseSession(s, lossReason(ctx)) }()
	// A member that reads nothing blocks the writer only. It ends when this returns.
	written := make(chan error, 1)
	go func() { written <- write(ctx, stream, s) }()
	for {
		select {
		case in := <-incoming:
			if in.err != nil {
				return sessionEnd(in.err)
			}
			if err := f.handle(ctx, s, in.msg); err != nil {
				return refusal(err)
			}
		case err := <-written:
			if err != nil {
				return err
			}
			return sessionEnded(s)
		case <-s.Done():
			flush := time.NewTimer(flushTimeout)
			defer flush.Stop()
			select {
			case <-written: //nolint:errcheck // the session ends either way
			case <-flush.C:
			case <-ctx.Done():
			}
			return sessionEnded(s)
		case <-ctx.Done(): // the connection is gone
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// refused logs a session that does not begin; what it calls itself is cut.
func (f *Fleet) refused(h *coordinatorv1.Hello, err error) {
	f.Log.Warn("session refused", "site", fmt.Sprintf("%.80s", h.GetSite()), "node", fmt.Sprintf("%.80s", h.GetNode()), "error", fmt.Sprintf("%.500s", err))
}

// write sends what is queued for a member. It returns nil when its session has
// ended and all is sent.
func write(ctx context.Context, stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse], s *session.Session) error {
	for {
		select {
		case m := <-s.Outbox():
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-s.Done():
			if len(s.Outbox()) == 0 {
				return nil
			}
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// sessionEnded tells the member why its session ended.
func sessionEnded(s *session.Session) error {
	switch s.Reason() {
	case v1alpha1.ReasonSuperseded:
		return status.Errorf(codes.Aborted, "%s: a newer session of %s has taken over from epoch %d", v1alpha1.ReasonSuperseded, s.Member, s.Epoch)
	case v1alpha1.ReasonHeartbeatMissed:
		return status.Errorf(codes.Unavailable, "%s: nothing was heard from %s in time", v1alpha1.ReasonHeartbeatMissed, s.Member)
	}
	return status.Errorf(codes.Unavailable, "%s: the session of %s has ended", s.Reason(), s.Member)
}

// incoming is one message of a stream, or its end.
type incoming[M any] struct {
	msg *M
	err error
}

// receive reads a stream until it fails; the goroutine ends with ctx.
func receive[M, R any](ctx context.Context, stream grpc.BidiStreamingServer[M, R]) <-chan incoming[M] {
	out := make(chan incoming[M])
	go func() {
		for {
			m, err := stream.Recv()
			select {
			case out <- incoming[M]{m, err}:
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

func awaitHello(ctx context.Context, in <-chan incoming[coordinatorv1.SessionRequest], timeout time.Duration) (*coordinatorv1.Hello, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case first := <-in:
		if first.err != nil {
			return nil, first.err
		}
		if err := checkSize(first.msg); err != nil {
			return nil, err
		}
		if h := first.msg.GetHello(); h != nil {
			return h, nil
		}
		return nil, status.Error(codes.InvalidArgument, "the first message of a session must be a Hello")
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no Hello within %s", timeout)
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

// checkSize keeps what the engine remembers of a member small.
func checkSize(m *coordinatorv1.SessionRequest) error {
	if why := wire.Oversize(m); why != "" {
		return status.Errorf(codes.InvalidArgument, "%s: %s", v1alpha1.ReasonTooLarge, why)
	}
	return nil
}

func (f *Fleet) handle(ctx context.Context, s *session.Session, m *coordinatorv1.SessionRequest) error {
	if err := checkSize(m); err != nil {
		return err
	}
	switch {
	case m.GetHeartbeat() != nil:
		return f.Engine.Heartbeat(ctx, s, m.GetHeartbeat())
	case m.GetLeave() != nil:
		return f.Engine.Leave(ctx, s, m.GetLeave())
	case m.GetLinkTestResult() != nil:
		return f.Engine.LinkTestResult(ctx, s, m.GetLinkTestResult())
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
	return status.Errorf(codes.PermissionDenied, "%s: the certificate is for site %q of federation %q, the agent speaks for site %.80q of %.80q",
		v1alpha1.ReasonIdentityMismatch, certSite, certFederation, site, federation)
}

// speaker checks that a Pull or Push comes from the site of its session.
func (f *Fleet) speaker(ctx context.Context, token string) (*session.Session, error) {
	if err := f.call(ctx, ""); err != nil {
		return nil, err
	}
	s, err := f.Engine.SessionByToken(ctx, token)
	if err != nil {
		return nil, refusal(err)
	}
	if err := f.checkIdentity(ctx, s.Hello.GetFederation(), s.Site); err != nil {
		return nil, err
	}
	if err := f.call(ctx, s.Site); err != nil {
		return nil, err
	}
	f.Counter.Attribute(ctx, s.Member)
	return s, nil
}

// refusal turns an engine's refusal into a status code.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	if out, ok := exhausted(err); ok {
		return out
	}
	var r *engine.RefusedError
	if !errors.As(err, &r) {
		if _, ok := status.FromError(err); ok {
			return err
		}
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
