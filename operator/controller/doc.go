// Package controller reconciles Federations and Sites: it gathers what is known,
// lets pure packages decide, and applies what they say.
//
// It owns the watches, the order of doing, status, events, finalizers and the
// operator's rights. It must not hold policy (membership), shapes of children
// (resources) or protocols (coordinators, energy, capacity). It keeps nothing in
// memory that a restart could not tell again from objects.
package controller

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// Holder is the federation that has a site: of those that name it and are not
// being deleted, the oldest, of one age the first by name; one that has ended
// gives way to any that has not. nil: none names it. All are of one namespace.
func Holder(site string, federations []v1alpha1.Federation) *v1alpha1.Federation {
	var best *v1alpha1.Federation
	for i := range federations {
		f := &federations[i]
		if !f.DeletionTimestamp.IsZero() || !names(f, site) {
			continue
		}
		if best == nil || cmp.Or(
			compareBool(ended(f), ended(best)),
			f.CreationTimestamp.Compare(best.CreationTimestamp.Time),
			cmp.Compare(f.Name, best.Name),
		) < 0 {
			best = f
		}
	}
	return best
}

// Rest is why none of a federation's sites is wanted; nil while it runs.
func Rest(f *v1alpha1.Federation) *membership.Fault {
	switch {
	case !f.DeletionTimestamp.IsZero():
		return &membership.Fault{Reason: v1alpha1.ReasonDeleting, Message: "Federation " + f.Name + " is being deleted"}
	case f.Status.Phase == v1alpha1.FederationCompleted:
		return &membership.Fault{Reason: v1alpha1.ReasonCompleted, Message: "Federation " + f.Name + " has committed all its rounds"}
	case f.Status.Phase == v1alpha1.FederationFailed:
		return &membership.Fault{Reason: v1alpha1.ReasonTooManyVoidRounds, Message: "Federation " + f.Name + " has failed"}
	case f.Spec.State == v1alpha1.StateSuspended:
		return &membership.Fault{Reason: v1alpha1.ReasonSuspended, Message: "Federation " + f.Name + " is suspended by spec.state"}
	case f.Spec.MaxSites != nil && *f.Spec.MaxSites == 0:
		return &membership.Fault{Reason: v1alpha1.ReasonScaledToZero, Message: "spec.maxSites of Federation " + f.Name + " is 0"}
	}
	return nil
}

func ended(f *v1alpha1.Federation) bool {
	return f.Status.Phase == v1alpha1.FederationCompleted || f.Status.Phase == v1alpha1.FederationFailed
}

func names(f *v1alpha1.Federation, site string) bool {
	for _, s := range f.Spec.Sites {
		if s.Name == site {
			return true
		}
	}
	return false
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func keyOf(o client.Object) types.NamespacedName { return client.ObjectKeyFromObject(o) }
