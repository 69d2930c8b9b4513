package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/coordinators"
	"girassol.dev/operator/membership"
)

const (
	// graceSeconds of a federation that says none.
	graceSeconds = 60
	// leaveMargin over the grace of a drain for sites to be out.
	leaveMargin = 2 * time.Minute
)

// leave lets the sites of a federation that is being deleted go before its
// coordinator does: no new round, the sites drain (the site controller sees to
// that), then the finalizer goes and with the object all that it owns. It waits
// no longer than a drain may take; what is not out by then is on its own, as with
// a coordinator that is lost.
func (r *FederationReconciler) leave(ctx context.Context, v *federation) (ctrl.Result, error) {
	if !drains(v.Federation) {
		return ctrl.Result{}, nil // somebody else's finalizer keeps it
	}
	deadline := leaveBy(v.Federation)
	late := !v.now.Before(deadline)
	if left := v.stillIn(); len(left) > 0 && !late {
		if !isSuspended(v.Federation) && v.reachable == membership.Yes && v.pausable() {
			if err := r.Coordinators.SetPaused(ctx, v.key, true, "Federation "+v.key.String()+" is being deleted"); err != nil && !errors.Is(err, coordinators.ErrUnreachable) {
				return ctrl.Result{}, err
			}
		}
		v.paused = isSuspended(v.Federation)
		v.wakeBy(deadline)
		if err := r.show(ctx, v, true); err != nil {
			return ctrl.Result{}, err
		}
		return again(r.Now(), v.wake), nil
	} else if late && len(left) > 0 {
		r.Events.Eventf(v.Federation, nil, corev1.EventTypeWarning, string(v1alpha1.ReasonReleaseTimedOut), "Release",
			"the federation goes though sites have not left by %s: %s", deadline.UTC().Format(time.RFC3339), list(left))
	}
	r.forget(v.key)
	return ctrl.Result{}, r.applyFinalizers(ctx, v.Federation)
}

// stillIn are the sites that the coordinator must not end before.
func (v *federation) stillIn() []string {
	var in []string
	for i := range v.sites {
		if s := &v.sites[i]; s.Status.Federation == v.Name && !atRest(s) {
			in = append(in, s.Name)
		}
	}
	slices.Sort(in)
	return in
}

// pausable says whether a pause would change anything yet.
func (v *federation) pausable() bool {
	switch v1alpha1.FederationPhase(v.coordinator.GetPhase()) {
	case v1alpha1.FederationPaused, v1alpha1.FederationCompleted, v1alpha1.FederationFailed:
		return false
	}
	return true
}

func leaveBy(f *v1alpha1.Federation) time.Time {
	return f.DeletionTimestamp.Add(time.Duration(cmp.Or(f.Spec.Drain.GraceSeconds, graceSeconds))*time.Second + leaveMargin)
}

func drains(f *v1alpha1.Federation) bool {
	return controllerutil.ContainsFinalizer(f, v1alpha1.FinalizerFederationDrain)
}

// applyFinalizers makes ours these, of the Federation as it was read: one that is
// gone is not made anew.
func (r *FederationReconciler) applyFinalizers(ctx context.Context, f *v1alpha1.Federation, finalizers ...string) error {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindFederation))
	u.SetNamespace(f.Namespace)
	u.SetName(f.Name)
	u.SetUID(f.UID)
	u.SetFinalizers(finalizers)
	r.Metrics.Applies.WithLabelValues(v1alpha1.KindFederation).Inc()
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldOwner), client.ForceOwnership); err != nil {
		return gone(ctx, r.Reader, f, fmt.Errorf("federation %s: finalizer: %w", f.Name, err))
	}
	return nil
}
