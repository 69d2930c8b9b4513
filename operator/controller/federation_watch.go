package controller

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

// concurrentFederations that are reconciled at a time.
const concurrentFederations = 4

// SetupWithManager starts the watches.
func (r *FederationReconciler) SetupWithManager(m ctrl.Manager) error {
	ours := builder.WithPredicates(childNews)
	return ctrl.NewControllerManagedBy(m).Named("federation").
		For(&v1alpha1.Federation{}, builder.WithPredicates(specNews)).
		// One that ends or goes hands its sites over.
		Watches(&v1alpha1.Federation{}, handler.EnqueueRequestsFromMapFunc(r.rivals), builder.WithPredicates(federationNews)).
		Owns(&appsv1.StatefulSet{}, ours).
		Owns(&appsv1.Deployment{}, ours).
		Owns(&corev1.Service{}, ours).
		Owns(&corev1.ConfigMap{}, ours).
		Owns(&corev1.ServiceAccount{}, ours).
		Owns(&policyv1.PodDisruptionBudget{}, ours).
		Owns(&networkingv1.NetworkPolicy{}, ours).
		// The claim of a retained commit log has no owner.
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(federationOfLabel), ours).
		Watches(&v1alpha1.Site{}, handler.EnqueueRequestsFromMapFunc(r.federationsOfSite), builder.WithPredicates(siteNews)).
		WatchesRawSource(r.Answers.Source(Itself)).
		WatchesRawSource(r.Wishes.Source(r.federationsNaming)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrentFederations,
			ReconciliationTimeout:   reconcileTimeout,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		}).
		Complete(r)
}

// federationsNaming are those whose spec names a site.
func (r *FederationReconciler) federationsNaming(ctx context.Context, site types.NamespacedName) []reconcile.Request {
	var all v1alpha1.FederationList
	if err := r.Client.List(ctx, &all, client.InNamespace(site.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // of a cache that is being stopped
	}
	var out []reconcile.Request
	for i := range all.Items {
		if names(&all.Items[i], site.Name) {
			out = append(out, reconcile.Request{NamespacedName: keyOf(&all.Items[i])})
		}
	}
	return out
}

// rivals are the other federations that name a site of this one.
func (r *FederationReconciler) rivals(ctx context.Context, o client.Object) []reconcile.Request {
	var out []reconcile.Request
	for _, s := range o.(*v1alpha1.Federation).Spec.Sites {
		for _, q := range r.federationsNaming(ctx, types.NamespacedName{Namespace: o.GetNamespace(), Name: s.Name}) {
			if q.Name != o.GetName() && !slices.Contains(out, q) {
				out = append(out, q)
			}
		}
	}
	return out
}

// federationsOfSite are those that name it, and the one that it still leaves.
func (r *FederationReconciler) federationsOfSite(ctx context.Context, o client.Object) []reconcile.Request {
	out := r.federationsNaming(ctx, keyOf(o))
	if holder := o.(*v1alpha1.Site).Status.Federation; holder != "" {
		q := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: holder}}
		if !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out
}

func federationOfLabel(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[v1alpha1.LabelFederation]}}}
}

// specNews: what we write into the status ourselves is none.
var specNews = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
		e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
		!slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
}}

// childNews: children of this controller (the signals engine has ConfigMaps of its
// own), and not the status of those that count generations.
var childNews = predicate.Funcs{
	CreateFunc:  func(e event.CreateEvent) bool { return hasComponent(e.Object) },
	DeleteFunc:  func(e event.DeleteEvent) bool { return hasComponent(e.Object) },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, b := e.ObjectOld, e.ObjectNew
		if !hasComponent(a) && !hasComponent(b) {
			return false
		}
		if b.GetGeneration() == 0 {
			return a.GetResourceVersion() != b.GetResourceVersion()
		}
		return a.GetGeneration() != b.GetGeneration() ||
			a.GetDeletionTimestamp().IsZero() != b.GetDeletionTimestamp().IsZero() ||
			!equality.Semantic.DeepEqual(a.GetLabels(), b.GetLabels()) ||
			!equality.Semantic.DeepEqual(a.GetAnnotations(), b.GetAnnotations()) ||
			!equality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences())
	},
}

func hasComponent(o client.Object) bool {
	switch o.GetLabels()["app.kubernetes.io/component"] {
	case resources.ComponentCoordinator, resources.ComponentAgent, resources.ComponentRedis:
		return true
	}
	return false
}

// siteNews: what of a site its federation shows or decides by.
var siteNews = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	a, b := e.ObjectOld.(*v1alpha1.Site), e.ObjectNew.(*v1alpha1.Site)
	return a.Generation != b.Generation || a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() ||
		a.Status.Federation != b.Status.Federation || a.Status.Phase != b.Status.Phase || a.Status.Reason != b.Status.Reason ||
		(a.Status.EnrolledNodes == 0) != (b.Status.EnrolledNodes == 0) || !retryAt(a).Equal(retryAt(b))
}}
