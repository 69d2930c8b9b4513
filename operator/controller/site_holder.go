package controller

import (
	"fmt"
	"slices"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// tenure says whose a site is.
type tenure struct {
	// name of the federation that has the site; empty: none has.
	name string
	// federation of that name; nil when it is gone.
	federation *v1alpha1.Federation
	// eviction is why it must give the site up; nil if it keeps it.
	eviction *membership.Fault
}

// tenureOf finds the federation that has a site: its Holder, except that one that
// has it and must give it up keeps it until the site is at rest. A site leaves
// through the coordinator that it joined.
//
// Federations are those of the site's namespace, in any order.
func tenureOf(s *v1alpha1.Site, federations []v1alpha1.Federation) tenure {
	rightful, present := Holder(s.Name, federations), s.Status.Federation
	if present != "" && (rightful == nil || rightful.Name != present) && !atRest(s) {
		t := tenure{name: present}
		if i := slices.IndexFunc(federations, func(f v1alpha1.Federation) bool { return f.Name == present }); i >= 0 {
			t.federation = &federations[i]
		}
		t.eviction = evictionOf(s, t.federation, rightful)
		return t
	}
	if rightful == nil {
		return tenure{}
	}
	return tenure{name: rightful.Name, federation: rightful}
}

func evictionOf(s *v1alpha1.Site, holder, rightful *v1alpha1.Federation) *membership.Fault {
	switch {
	case holder == nil:
		return &membership.Fault{Reason: v1alpha1.ReasonDeleting, Message: fmt.Sprintf("federation %s is gone", s.Status.Federation)}
	case !holder.DeletionTimestamp.IsZero():
		return &membership.Fault{Reason: v1alpha1.ReasonDeleting, Message: fmt.Sprintf("federation %s is being deleted", holder.Name)}
	case !names(holder, s.Name):
		return &membership.Fault{Reason: v1alpha1.ReasonNotReferenced, Message: fmt.Sprintf("federation %s no longer names the site", holder.Name)}
	case ended(holder):
		return &membership.Fault{Reason: v1alpha1.ReasonCompleted, Message: fmt.Sprintf("federation %s has ended and federation %s waits for the site", holder.Name, rightful.Name)}
	}
	return &membership.Fault{Reason: v1alpha1.ReasonSiteInUse, Message: fmt.Sprintf("federation %s is older than %s and names the site", rightful.Name, holder.Name)}
}

// atRest says that nothing of the site is at work, so that another federation may
// have it.
func atRest(s *v1alpha1.Site) bool {
	switch s.Status.Phase {
	case "", v1alpha1.SiteIdle, v1alpha1.SiteFailed, v1alpha1.SiteBlocked:
		return s.Status.EnrolledNodes == 0
	}
	return false
}
