package scaler

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// errStopping ends the streams of a replica that goes.
var errStopping = status.Error(codes.Unavailable, "this replica of the operator stops; open the stream again")

func invalid(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
}

func unknownMetric(name string, q question) error {
	return invalid("this trigger has no metric %q, only %q: it follows from metadata %s", name, q.metric(), KeyDemand)
}

// unreadable is why an object could not be read. Anything but its absence passes
// by itself, so KEDA may ask again.
func unreadable(err error, kind string, key types.NamespacedName) error {
	switch {
	case apierrors.IsNotFound(err):
		return status.Errorf(codes.NotFound, "there is no %s %s: create it, or correct metadata %s of the trigger", kind, key, KeyFederation)
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "KEDA has left")
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(codes.DeadlineExceeded, "%s %s: the operator's cache is not filled yet; ask again", kind, key)
	}
	return status.Errorf(codes.Unavailable, "%s %s cannot be read now, ask again (does the operator watch that namespace?): %v", kind, key, err)
}

func ended(ctx context.Context) error { return status.FromContextError(ctx.Err()).Err() }
