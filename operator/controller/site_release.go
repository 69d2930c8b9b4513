package controller

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// needsRelease says whether something of the site is, or will be, outside of what
// goes with its object.
func needsRelease(s *v1alpha1.Site) bool {
	switch s.Spec.Capacity.Mode {
	case v1alpha1.CapacityScale, v1alpha1.CapacityWebhook:
		return true
	}
	return s.Spec.Nodes != nil
}

func held(s *v1alpha1.Site) bool {
	return controllerutil.ContainsFinalizer(s, v1alpha1.FinalizerSiteRelease)
}

// releaseTimeout of a Site that says none, seconds.
const releaseTimeout = 600

func releaseDeadline(s *v1alpha1.Site) time.Time {
	return s.DeletionTimestamp.Add(time.Duration(cmp.Or(s.Spec.ReleaseTimeoutSeconds, releaseTimeout)) * time.Second)
}

// hold puts the finalizer on before anything is done outside.
func (r *SiteReconciler) hold(ctx context.Context, s *v1alpha1.Site) (*v1alpha1.Site, error) {
	return r.applyFinalizers(ctx, s, v1alpha1.FinalizerSiteRelease)
}

// letGo takes the finalizer off: all has been given back.
func (r *SiteReconciler) letGo(ctx context.Context, s *v1alpha1.Site) error {
	_, err := r.applyFinalizers(ctx, s)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// giveUp lets a Site go though its nodes or its capacity could not be given back.
func (r *SiteReconciler) giveUp(ctx context.Context, s *v1alpha1.Site) error {
	r.Events.Eventf(s, nil, corev1.EventTypeWarning, string(v1alpha1.ReasonReleaseTimedOut), "Release",
		"the site goes though its nodes and capacity could not be given back in %s: labels %s and %s may be left on nodes, and the capacity may have to be reduced by hand",
		releaseDeadline(s).Sub(s.DeletionTimestamp.Time), v1alpha1.LabelAgent, v1alpha1.LabelNodeSite)
	return r.letGo(ctx, s)
}

// applyFinalizers makes ours these, of the Site as it was read: one that is gone
// is not made anew.
func (r *SiteReconciler) applyFinalizers(ctx context.Context, s *v1alpha1.Site, finalizers ...string) (*v1alpha1.Site, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindSite))
	u.SetNamespace(s.Namespace)
	u.SetName(s.Name)
	u.SetUID(s.UID)
	u.SetFinalizers(finalizers)
	r.Metrics.Applies.WithLabelValues(v1alpha1.KindSite).Inc()
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldOwner), client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("site %s: finalizer: %w", s.Name, err)
	}
	s = s.DeepCopy()
	s.Finalizers, s.ResourceVersion = u.GetFinalizers(), u.GetResourceVersion()
	r.written.Store(siteKey(s), s.ResourceVersion)
	return s, nil
}
