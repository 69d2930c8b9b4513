package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
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

// sweep takes labels off nodes of the operator's own cluster that the cache did not
// show: once the Site is gone, nobody would.
func (r *SiteReconciler) sweep(ctx context.Context, s *v1alpha1.Site) error {
	if s.Spec.Cluster != nil {
		return nil
	}
	mine := resources.EnrolledFor(s.Namespace, s.Name)
	var nodes corev1.NodeList
	if err := r.Reader.List(ctx, &nodes, client.MatchingLabels{v1alpha1.LabelNodeSite: mine}); err != nil {
		return fmt.Errorf("site %s: list nodes that have its label: %w", s.Name, err)
	}
	var failed error
	for i := range nodes.Items {
		if err := r.unlabel(ctx, r.Client, &nodes.Items[i], mine); client.IgnoreNotFound(err) != nil {
			failed = errors.Join(failed, fmt.Errorf("site %s: label of node %s: %w", s.Name, nodes.Items[i].Name, crossed(err)))
		}
	}
	return failed
}

// letGo takes the finalizer off: all has been given back.
func (r *SiteReconciler) letGo(ctx context.Context, s *v1alpha1.Site) error {
	_, err := r.applyFinalizers(ctx, s)
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
		return nil, gone(ctx, r.Reader, s, fmt.Errorf("site %s: finalizer: %w", s.Name, err))
	}
	s = s.DeepCopy()
	s.Finalizers, s.ResourceVersion = u.GetFinalizers(), u.GetResourceVersion()
	r.written.Store(siteKey(s), s.ResourceVersion)
	return s, nil
}
