package server

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

const (
	// rollbackTimeout bounds the wait for a merge at work and for the rollback.
	rollbackTimeout = 10 * time.Minute
	// maxMessage of a person, in bytes; it goes into every later manifest.
	maxMessage = 1024
)

// Rollback goes back to the state of an older version.
func (a *Admin) Rollback(ctx context.Context, req *coordinatorv1.RollbackRequest) (*coordinatorv1.RollbackResponse, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	if n := len(req.GetMessage()); n > maxMessage {
		return nil, status.Errorf(codes.InvalidArgument, "message has %d bytes, at most %d", n, maxMessage)
	}
	to := "the one before"
	if req.Version != nil {
		to = strconv.FormatUint(req.GetVersion(), 10)
	}
	a.Log.Info("rollback requested", "version", to, "message", req.GetMessage())
	ctx, cancel := context.WithTimeout(ctx, rollbackTimeout)
	defer cancel()
	done, err := a.Engine.Rollback(ctx, req.Version, req.GetMessage())
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, status.Error(codes.DeadlineExceeded, "the rollback has not ended in time; if it has begun it goes on: girassol status shows the newest")
	}
	if err != nil {
		return nil, refusal(err)
	}
	return &coordinatorv1.RollbackResponse{Version: done.Version, FromVersion: done.To, Digest: done.Digest}, nil
}
