package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errGone: the object was deleted since it was read. What is now of that name
// wakes the controller by itself.
var errGone = errors.New("deleted meanwhile")

// gone tells a write that failed because its object is no more, or was made anew,
// from one that is to be tried again. The UID of another object is a conflict, or,
// in an apply to one that exists, invalid.
func gone(ctx context.Context, r client.Reader, o client.Object, err error) error {
	if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
		return err
	}
	live := o.DeepCopyObject().(client.Object)
	switch failed := r.Get(ctx, client.ObjectKeyFromObject(o), live); {
	case apierrors.IsNotFound(failed), failed == nil && live.GetUID() != o.GetUID():
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// settled drops the error of a reconcile whose object is gone.
func settled(result ctrl.Result, err error) (ctrl.Result, error) {
	if errors.Is(err, errGone) {
		return ctrl.Result{}, nil
	}
	return result, err
}
