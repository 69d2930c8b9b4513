package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/energy"
	"girassol.dev/operator/membership"
)

// listen lets the signals engine decide for the sites that the federation has,
// and reads what it wants of them.
func (r *FederationReconciler) listen(ctx context.Context, v *federation) error {
	var sites []v1alpha1.Site
	unavailable := map[string]bool{}
	for _, s := range v.sites {
		if !v.mine[s.Name] {
			continue
		}
		sites = append(sites, s)
		if s.Status.Phase == v1alpha1.SiteFailed || retryAt(&s).After(v.now) {
			unavailable[s.Name] = true
		}
	}
	failed := r.Energy.Ensure(ctx, v.Federation, sites)
	var fault *energy.Fault
	switch {
	case errors.As(failed, &fault):
		v.blame(&fault.Fault)
		failed = nil
	case failed != nil: // and what it said before holds
		failed = fmt.Errorf("federation %s: energy: %w", v.key, failed)
	}
	r.Energy.SetUnavailable(v.key, unavailable)
	for i := range sites {
		w, _ := r.Energy.Wish(v.key, sites[i].Name)
		if !w.Known {
			w = lastWish(&sites[i])
		}
		v.wishes[sites[i].Name] = w
	}
	return failed
}

// lastWish is what a site shows of energy: an operator that has just begun does
// not take a place away, nor say anything new, before its engine has decided.
func lastWish(s *v1alpha1.Site) membership.Energy {
	w := membership.Energy{Admit: isIn(s), Window: v1alpha1.WindowUnknown}
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionEnergyFavourable); c != nil {
		w.Reason, w.Message = v1alpha1.Reason(c.Reason), c.Message
		switch c.Status {
		case metav1.ConditionTrue:
			w.Window = v1alpha1.WindowOpen
		case metav1.ConditionFalse:
			w.Window = v1alpha1.WindowClosed
		}
	}
	return w
}

// choose selects among the sites that could take part and says so to the site
// controller.
func (v *federation) choose(r *FederationReconciler) {
	var candidates []membership.Candidate
	for i := range v.sites {
		s := &v.sites[i]
		if !v.mine[s.Name] || !names(v.Federation, s.Name) {
			continue
		}
		c := v.candidate(s)
		candidates = append(candidates, c)
		if c.Willing && c.RetryAt.After(v.now) {
			v.wakeBy(c.RetryAt)
		}
	}
	selected, why := membership.Select(candidates, v.Spec.MaxSites, v.now)
	v.selected = selected
	if !v.pending() {
		r.Selection.Set(v.key, selected, why)
	}
}

// pending says whether a coordinator that was known has not been heard since this
// operator began. Its sites wait until it is, or is given up: what is not known
// yet has not changed.
func (v *federation) pending() bool {
	before := v1alpha1.Reason(condition(v.Federation, v1alpha1.ConditionCoordinatorAvailable).Reason)
	return v.asked && v.coordinator == nil && v.reachable == membership.Unknown && before != "" && before != v1alpha1.ReasonCoordinatorStarting
}

// candidate is a site as it competes for a place: with what energy wants, and
// whether a person holds it at the coordinator.
func (v *federation) candidate(s *v1alpha1.Site) membership.Candidate {
	var c membership.Coordinator
	for _, said := range v.coordinator.GetSites() {
		if said.GetName() == s.Name {
			c.Held = isHeld(said)
		}
	}
	return membership.NewCandidate(s, v.wishes[s.Name], c)
}

// isIn says whether a site has, or is getting, its place.
func isIn(s *v1alpha1.Site) bool {
	switch s.Status.Phase {
	case v1alpha1.SiteProvisioning, v1alpha1.SiteJoining, v1alpha1.SiteActive, v1alpha1.SiteLost:
		return true
	}
	return false
}

// retryAt is when a site that failed is asked again; zero: it may be asked.
func retryAt(s *v1alpha1.Site) (t time.Time) {
	if p := s.Status.Provisioning; p != nil && p.RetryAt != nil {
		t = p.RetryAt.Time
	}
	return t
}
