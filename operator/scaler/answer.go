package scaler

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// place is one site as far as KEDA is concerned.
type place struct {
	// mine: no other federation has the site and it is not going away.
	mine bool
	// open: its window is not confirmed to be closed.
	open bool
}

// answer to a question.
type answer struct {
	// demand without regard to energy, never negative.
	demand int64
	// cap on the demand; closed sets it to 0.
	cap int64
}

func (a answer) value() int64 { return max(0, min(a.demand, a.cap)) }
func (a answer) active() bool { return a.value() > 0 }

// answer weighs the work against the places. It does not look at maxSites, which
// KEDA itself may move: a federation that KEDA put to sleep would never wake.
func (q question) answer(f *v1alpha1.Federation, places []place) answer {
	var mine, open int64
	for _, p := range places {
		if !p.mine {
			continue
		}
		mine++
		if p.open {
			open++
		}
	}
	if q.gate == GateNone {
		open = mine
	}
	if !atWork(f) || mine == 0 {
		return answer{}
	}
	if q.demand == DemandRounds {
		left := roundsLeft(f)
		if open == 0 {
			return answer{demand: left}
		}
		return answer{demand: left, cap: left}
	}
	return answer{demand: mine, cap: open}
}

// atWork says whether the federation has work for any site.
func atWork(f *v1alpha1.Federation) bool {
	switch {
	case f.DeletionTimestamp != nil, f.Spec.State == v1alpha1.StateSuspended:
		return false
	case f.Status.Phase == v1alpha1.FederationCompleted, f.Status.Phase == v1alpha1.FederationFailed:
		// A total that was raised since makes new work, before the operator has said so.
		return f.Status.Phase == v1alpha1.FederationCompleted && f.Spec.Rounds.Total > f.Status.RoundsCommitted
	}
	return roundsLeft(f) > 0
}

// roundsLeft until the run is complete; 1 for a run without end.
func roundsLeft(f *v1alpha1.Federation) int64 {
	if f.Spec.Rounds.Total == 0 {
		return 1
	}
	return max(0, f.Spec.Rounds.Total-f.Status.RoundsCommitted)
}

func placeOf(f *v1alpha1.Federation, s *v1alpha1.Site) place {
	had := s.Status.Federation
	return place{
		mine: s.DeletionTimestamp == nil && (had == "" || had == f.Name),
		open: ignoresEnergy(f, s) || favourable(s),
	}
}

func ignoresEnergy(f *v1alpha1.Federation, s *v1alpha1.Site) bool {
	policy := f.Spec.Energy.Policy
	if s.Spec.Energy != nil && s.Spec.Energy.Policy != "" {
		policy = s.Spec.Energy.Policy
	}
	return policy == v1alpha1.EnergyIgnore
}

// favourable is the condition where it is known. Where it is not, what stands is
// kept: capacity that is held or asked for stays, capacity that is not there is
// not brought. What stands is in the Site's status, so that replicas and restarts
// do not change the answer.
func favourable(s *v1alpha1.Site) bool {
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionEnergyFavourable); c != nil && c.Status != metav1.ConditionUnknown {
		return c.Status == metav1.ConditionTrue
	}
	if p := s.Status.Provisioning; p != nil {
		return p.Wish == v1alpha1.WishProvision
	}
	switch s.Status.Phase {
	case v1alpha1.SiteProvisioning, v1alpha1.SiteJoining, v1alpha1.SiteActive, v1alpha1.SiteLost:
		return true
	default:
		return false
	}
}
