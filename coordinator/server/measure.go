package server

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/internal/wire"
)

const (
	// maxMeasure is the most bytes of one message of a link test.
	maxMeasure = 1 << 20
	// maxMeasureMessages of one test: round trips carry no bytes.
	maxMeasureMessages = 1 << 14
	// linkTestTimeout bounds the test of a site with many members.
	linkTestTimeout = 30 * time.Minute
)

// Measure carries the bytes of a link test that LinkTest has asked for: no others,
// no more, and no longer than it goes on.
func (f *Fleet) Measure(stream grpc.BidiStreamingServer[coordinatorv1.MeasureRequest, coordinatorv1.MeasureResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if err := f.call(ctx, ""); err != nil {
		return err
	}
	requests := receive(ctx, stream)
	timer := time.NewTimer(f.firstMessage())
	defer timer.Stop()
	var test *engine.Measurement
	var up, down uint64
	var over <-chan struct{}
	answer := make([]byte, maxMeasure)
	for n := 0; ; n++ {
		var r incoming[coordinatorv1.MeasureRequest]
		select {
		case r = <-requests:
		case <-over:
			return status.Error(codes.DeadlineExceeded, "the link test is over")
		case <-timer.C:
			return status.Error(codes.DeadlineExceeded, "nothing was heard in time")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		timer.Reset(f.nextChunk())
		switch {
		case errors.Is(r.err, io.EOF):
			return nil
		case r.err != nil:
			return r.err
		}
		if test == nil {
			var err error
			if test, err = f.measurement(ctx, r.msg.GetId()); err != nil {
				return err
			}
			over = test.Done
		}
		up += uint64(len(r.msg.GetPayload()))
		down += uint64(r.msg.GetWant())
		if len(r.msg.GetPayload()) > maxMeasure || r.msg.GetWant() > maxMeasure || up > test.Bytes || down > test.Bytes || n >= maxMeasureMessages {
			return status.Errorf(codes.InvalidArgument, "%s: a link test has %d bytes each way, at most %d in a message", v1alpha1.ReasonTooLarge, test.Bytes, maxMeasure)
		}
		if err := stream.Send(&coordinatorv1.MeasureResponse{Payload: answer[:r.msg.GetWant()]}); err != nil {
			return err
		}
	}
}

func (f *Fleet) measurement(ctx context.Context, id string) (*engine.Measurement, error) {
	test, err := f.Engine.Measurement(ctx, id)
	if errors.Is(err, engine.ErrNoTest) {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	if err != nil {
		return nil, refusal(err)
	}
	// A test's id is secret, but another site's certificate does not get in with it.
	if _, site, ok := wire.PeerIdentity(ctx); wire.Authenticated(ctx) && (!ok || site != test.Site) {
		return nil, status.Errorf(codes.PermissionDenied, "%s: the link test is another site's", v1alpha1.ReasonIdentityMismatch)
	}
	return test, nil
}

// LinkTest has a site's members measure their links.
func (a *Admin) LinkTest(ctx context.Context, req *coordinatorv1.LinkTestRequest) (*coordinatorv1.LinkTestResponse, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, linkTestTimeout)
	defer cancel()
	a.Log.Info("link test requested", "site", req.GetSite(), "bytes", req.GetBytes())
	out, err := a.Engine.LinkTest(ctx, req.GetSite(), req.GetBytes())
	if err != nil {
		return nil, refusal(err)
	}
	return out, nil
}

// seenLink is what this end knows of a call's connection: how it is secured, and
// what its tunnel has measured.
func (f *Fleet) seenLink(ctx context.Context) func() *coordinatorv1.Link {
	mode := wire.LinkMode(ctx)
	if mode == wire.Plaintext && f.Mesh {
		mode = string(v1alpha1.LinkMesh)
	}
	expires := int64(0)
	if c := wire.PeerCertificate(ctx); c != nil {
		expires = c.NotAfter.UnixMilli()
	}
	through, tunnelled := wire.FromTunnel(ctx)
	measured, _ := through.(Tunnel)
	return func() *coordinatorv1.Link {
		l := &coordinatorv1.Link{Mode: mode, CertificateNotAfterUnixMs: expires}
		if !tunnelled || measured == nil {
			return l
		}
		handshake, received, sent := measured.Traffic()
		l.TunnelBytesSent, l.TunnelBytesReceived = received, sent // as the agent sees it
		if !handshake.IsZero() {
			age := max(0, time.Since(handshake).Seconds())
			l.HandshakeAgeSeconds = &age
		}
		return l
	}
}

// Tunnel is a tunnel's connection that knows what the tunnel has measured: when the
// other end shook hands last, and the bytes of UDP packets from it and to it.
type Tunnel interface {
	Traffic() (handshake time.Time, received, sent uint64)
}
