package controller

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// write writes what was decided into the status, if it differs, and tells what
// just happened.
func (r *SiteReconciler) write(ctx context.Context, v *view, d membership.Decision) error {
	old := v.world.Site
	next := old.DeepCopy()
	next.Status = d.Status
	next.Status.Federation = v.tenure.name
	next.Status.ObservedGeneration = old.Status.ObservedGeneration
	next.Status.Conditions = conditions(old, d.Status.Conditions, v.world.Now)
	if v.state.AdoptedReplicas != nil {
		next.Status.AdoptedReplicas = v.state.AdoptedReplicas
	}
	if was, is := old.Status.Provisioning, next.Status.Provisioning; was != nil && is != nil && was.Key == is.Key {
		is.PollURL = v.state.PollURL // else it is of the wish before
	}
	if err := r.replace(ctx, v, next); err != nil {
		return err
	}
	for _, e := range d.Events {
		kind := corev1.EventTypeNormal
		if e.Warning {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(next, nil, kind, string(e.Reason), "Reconcile", "%s", e.Message)
		r.countDrain(v, e.Reason)
		r.Log.Info("site", "namespace", next.Namespace, "site", next.Name, "federation", v.tenure.name, "reason", e.Reason, "message", e.Message)
	}
	r.measure(v, old, next)
	return nil
}

// observed says that the present spec has been acted on in full.
func (r *SiteReconciler) observed(ctx context.Context, v *view) error {
	next := v.world.Site.DeepCopy()
	next.Status.ObservedGeneration = next.Generation
	return r.replace(ctx, v, next)
}

// countDrain counts one that ended, unless the federation is gone: nobody would
// forget the figure.
func (r *SiteReconciler) countDrain(v *view, reason v1alpha1.Reason) {
	outcome := reason
	switch reason {
	case v1alpha1.ReasonSiteLeft:
		outcome = v1alpha1.ReasonDrained
	case v1alpha1.ReasonDrainTimeout:
	default:
		return
	}
	if v.tenure.federation != nil {
		r.Metrics.Drains.WithLabelValues(v.federation.Namespace, v.federation.Name, v.world.Site.Name, string(outcome)).Inc()
	}
}

func (r *SiteReconciler) replace(ctx context.Context, v *view, next *v1alpha1.Site) error {
	changed, err := r.Applier.Status(ctx, next, v.world.Site)
	if err != nil {
		return gone(ctx, r.Reader, v.world.Site, err)
	}
	if changed {
		// What is written is what is decided from next, with the version that the cache
		// has to reach.
		written := &v1alpha1.Site{}
		if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(next), written); err != nil {
			return gone(ctx, r.Reader, v.world.Site, err)
		}
		r.written.Store(siteKey(next), written.ResourceVersion)
		next.ResourceVersion = written.ResourceVersion
	}
	v.world.Site = next
	return nil
}

// isOlder compares resource versions of one object; what cannot be compared is
// taken for older, so that it is read again.
func isOlder(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order < 0
}

// conditions carries transition times over; what is no longer said goes.
func conditions(s *v1alpha1.Site, wanted []metav1.Condition, now time.Time) []metav1.Condition {
	var out []metav1.Condition
	for _, c := range wanted {
		c.LastTransitionTime = metav1.NewTime(now)
		if before := meta.FindStatusCondition(s.Status.Conditions, c.Type); before != nil && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		out = append(out, c)
	}
	return out
}

// measure counts what a written status shows.
func (r *SiteReconciler) measure(v *view, old, next *v1alpha1.Site) {
	key := siteKey(next)
	r.show(key, []string{key.Namespace, v.tenure.name, key.Name, string(next.Status.Phase), string(next.Status.Reason)})
	r.reach(key, v.world.Cluster)
	before, after := old.Status, next.Status
	if before.Phase == v1alpha1.SiteProvisioning && before.Provisioning != nil {
		waited := v.world.Now.Sub(before.Provisioning.Since.Time).Seconds()
		switch after.Phase {
		case v1alpha1.SiteJoining, v1alpha1.SiteActive:
			r.Metrics.CapacityWait.WithLabelValues(key.Namespace, key.Name, "ready").Observe(waited)
		case v1alpha1.SiteFailed:
			r.Metrics.CapacityWait.WithLabelValues(key.Namespace, key.Name, "failed").Observe(waited)
		}
	}
	if after.Federation != "" {
		// From 0 on, so that the first of each is seen as an increase.
		r.Metrics.Failovers.WithLabelValues(key.Namespace, after.Federation, key.Name, string(v1alpha1.ReasonCapacityDeadlineExceeded))
		r.Metrics.Drains.WithLabelValues(key.Namespace, after.Federation, key.Name, string(v1alpha1.ReasonDrained))
	}
	if failures(after) > failures(before) {
		r.Metrics.Failovers.WithLabelValues(key.Namespace, v.tenure.name, key.Name, string(after.Provisioning.Reason)).Inc()
	}
}

func failures(s v1alpha1.SiteStatus) int32 {
	if s.Provisioning == nil {
		return 0
	}
	return s.Provisioning.Failures
}

// show sets the one phase of a site; nil takes it away.
func (r *SiteReconciler) show(key types.NamespacedName, labels []string) {
	before, _ := r.shown.Load(key)
	if has, ok := before.([]string); ok {
		if slices.Equal(has, labels) {
			return
		}
		r.Metrics.SitePhase.DeleteLabelValues(has...)
	}
	if labels == nil {
		r.shown.Delete(key)
		return
	}
	r.Metrics.SitePhase.WithLabelValues(labels...).Set(1)
	r.shown.Store(key, labels)
}

func (r *SiteReconciler) reach(key types.NamespacedName, c membership.Cluster) {
	switch {
	case !c.Remote || c.Reachable == membership.Unknown:
		r.Metrics.ClusterReachable.DeleteLabelValues(key.Namespace, key.Name)
	case c.Reachable == membership.Yes:
		r.Metrics.ClusterReachable.WithLabelValues(key.Namespace, key.Name).Set(1)
	default:
		r.Metrics.ClusterReachable.WithLabelValues(key.Namespace, key.Name).Set(0)
	}
}
