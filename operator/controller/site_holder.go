package controller

import (
	"cmp"
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

// tenureOf finds the federation that has a site. Of those that name it, are not
// being deleted and have not ended, the oldest has it. One that has it and must
// give it up keeps it until the site is at rest: a site leaves through the
// coordinator that it joined. One that has ended keeps it until another wants it.
//
// Federations are those of the site's namespace, in any order.
func tenureOf(s *v1alpha1.Site, federations []v1alpha1.Federation) tenure {
	present := s.Status.Federation
	var rightful, ended, holder *v1alpha1.Federation
	for i := range federations {
		f := &federations[i]
		if f.Name == present {
			holder = f
		}
		switch {
		case !namesSite(f, s.Name) || !f.DeletionTimestamp.IsZero():
		case hasEnded(f):
			if ended == nil || f.Name == present || ended.Name != present && older(f, ended) {
				ended = f
			}
		case rightful == nil || older(f, rightful):
			rightful = f
		}
	}
	if rightful == nil {
		rightful = ended
	}
	switch {
	case rightful != nil && (rightful.Name == present || present == ""):
		return tenure{name: rightful.Name, federation: rightful}
	case present != "" && !atRest(s):
		return tenure{name: present, federation: holder, eviction: evictionOf(s, holder, rightful)}
	case rightful != nil:
		return tenure{name: rightful.Name, federation: rightful}
	}
	return tenure{}
}

func evictionOf(s *v1alpha1.Site, holder, rightful *v1alpha1.Federation) *membership.Fault {
	switch {
	case holder == nil:
		return &membership.Fault{Reason: v1alpha1.ReasonDeleting, Message: fmt.Sprintf("federation %s is gone", s.Status.Federation)}
	case !holder.DeletionTimestamp.IsZero():
		return &membership.Fault{Reason: v1alpha1.ReasonDeleting, Message: fmt.Sprintf("federation %s is being deleted", holder.Name)}
	case !namesSite(holder, s.Name):
		return &membership.Fault{Reason: v1alpha1.ReasonNotReferenced, Message: fmt.Sprintf("federation %s no longer names the site", holder.Name)}
	case hasEnded(holder):
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

func namesSite(f *v1alpha1.Federation, site string) bool {
	return slices.ContainsFunc(f.Spec.Sites, func(r v1alpha1.SiteReference) bool { return r.Name == site })
}

func hasEnded(f *v1alpha1.Federation) bool {
	return f.Status.Phase == v1alpha1.FederationCompleted || f.Status.Phase == v1alpha1.FederationFailed
}

func older(a, b *v1alpha1.Federation) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}
