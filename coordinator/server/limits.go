package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"girassol.dev/coordinator/engine"
	"girassol.dev/internal/wire"
)

// call takes a call off the quota of the site that makes it: the one in the
// connection's certificate, whatever the call says; without a certificate the one
// that it turns out to speak for, which is empty until that is known.
func (f *Fleet) call(ctx context.Context, site string) error {
	_, certified, ok := wire.PeerIdentity(ctx)
	switch {
	case ok && site == "":
		site = certified
	case ok || site == "":
		return nil // counted before, or not yet to be counted
	}
	return refusal(f.Engine.Call(site))
}

// exhausted is a refusal for a used-up quota, with the time after which to ask again.
func exhausted(err error) (error, bool) {
	var q *engine.QuotaError
	if !errors.As(err, &q) {
		return nil, false
	}
	st := status.New(codes.ResourceExhausted, q.Error())
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(max(q.RetryIn, time.Millisecond))}); err == nil {
		st = with
	}
	return st.Err(), true
}
