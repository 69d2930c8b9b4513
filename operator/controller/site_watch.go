package controller

import (
	"cmp"
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
)

// A site that fails is tried again after a second, then ever later, up to a
// minute. Each has a delay of its own, and there is no common limit, so that none
// waits for another.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
	// reconcileTimeout is more than all that one reconcile may wait for outside.
	reconcileTimeout = 2 * time.Minute
	concurrentSites  = 8
)

// SetupWithManager starts the watches.
func (r *SiteReconciler) SetupWithManager(m ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(m).Named("site").
		For(&v1alpha1.Site{}).
		Owns(&appsv1.DaemonSet{}, builder.WithPredicates(children)).
		Watches(&v1alpha1.Federation{}, handler.EnqueueRequestsFromMapFunc(r.sitesOfFederation), builder.WithPredicates(federationNews)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.sitesOfNode), builder.WithPredicates(nodeNews)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(siteOfPod), builder.WithPredicates(podNews)).
		WatchesRawSource(r.Selection.Changed.Source(Itself)).
		WatchesRawSource(r.Wishes.Source(Itself)).
		WatchesRawSource(r.ClusterChanges.Source(Itself)).
		WatchesRawSource(r.CapacityChanges.Source(Itself)).
		WatchesRawSource(r.Answers.Source(r.sitesOf)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: cmp.Or(r.Concurrent, concurrentSites),
			ReconciliationTimeout:   reconcileTimeout,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		})
	return b.Complete(r)
}

// sitesOf are the sites that a federation names or has.
func (r *SiteReconciler) sitesOf(ctx context.Context, federation types.NamespacedName) []reconcile.Request {
	var sites v1alpha1.SiteList
	if err := r.Client.List(ctx, &sites, client.InNamespace(federation.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // of a cache that is being stopped
	}
	f := &v1alpha1.Federation{}
	if err := r.Client.Get(ctx, federation, f); err != nil {
		f = nil
	}
	var out []reconcile.Request
	for i := range sites.Items {
		if s := &sites.Items[i]; s.Status.Federation == federation.Name || f != nil && names(f, s.Name) {
			out = append(out, reconcile.Request{NamespacedName: siteKey(s)})
		}
	}
	return out
}

// sitesOfFederation are those that this state of it names, and those that it has.
func (r *SiteReconciler) sitesOfFederation(ctx context.Context, o client.Object) []reconcile.Request {
	out := r.sitesOf(ctx, keyOf(o))
	for _, s := range o.(*v1alpha1.Federation).Spec.Sites {
		q := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: s.Name}}
		if !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out
}

// sitesOfNode are those whose selector matches a node of the operator's own
// cluster, and the one for which it is enrolled.
func (r *SiteReconciler) sitesOfNode(ctx context.Context, n client.Object) []reconcile.Request {
	var sites v1alpha1.SiteList
	if err := r.Client.List(ctx, &sites, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	claim := n.GetLabels()[v1alpha1.LabelNodeSite]
	var out []reconcile.Request
	for i := range sites.Items {
		s := &sites.Items[i]
		if s.Spec.Cluster == nil && (selects(s, n) || claim != "" && claim == resources.EnrolledFor(s.Namespace, s.Name)) {
			out = append(out, reconcile.Request{NamespacedName: siteKey(s)})
		}
	}
	return out
}

func selects(s *v1alpha1.Site, n client.Object) bool {
	if s.Spec.Nodes == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(&s.Spec.Nodes.Selector)
	return err == nil && selector.Matches(labels.Set(n.GetLabels()))
}

func siteOfPod(_ context.Context, p client.Object) []reconcile.Request {
	site := p.GetLabels()[v1alpha1.LabelSite]
	if site == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: p.GetNamespace(), Name: site}}}
}

// federationNews: what of a federation its sites are decided by. Its rounds are
// none of it.
var federationNews = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	a, b := e.ObjectOld.(*v1alpha1.Federation), e.ObjectNew.(*v1alpha1.Federation)
	return a.Generation != b.Generation || a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() || ended(a) != ended(b)
}}

// nodeNews: heartbeats are none. What inventory reads is.
var nodeNews = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	a, b := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(a.Labels, b.Labels) || !equality.Semantic.DeepEqual(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(a.Spec, b.Spec) || !equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable) ||
		readyOf(a) != readyOf(b)
}}

func readyOf(n *corev1.Node) (c struct{ status, reason string }) {
	for _, each := range n.Status.Conditions {
		if each.Type == corev1.NodeReady {
			c.status, c.reason = string(each.Status), each.Reason
		}
	}
	return c
}

// podNews: pods of agents, and of them what AgentTrouble reads.
var podNews = predicate.Funcs{
	CreateFunc:  func(e event.CreateEvent) bool { return e.Object.GetLabels()[v1alpha1.LabelSite] != "" },
	DeleteFunc:  func(e event.DeleteEvent) bool { return e.Object.GetLabels()[v1alpha1.LabelSite] != "" },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, b := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
		return b.Labels[v1alpha1.LabelSite] != "" &&
			(a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() || !equality.Semantic.DeepEqual(a.Status, b.Status))
	},
}

// children: a DaemonSet's status is not read, because it says 0 of 0 for a site
// that is lost.
var children = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || !equality.Semantic.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
		!equality.Semantic.DeepEqual(e.ObjectOld.GetOwnerReferences(), e.ObjectNew.GetOwnerReferences())
}}
