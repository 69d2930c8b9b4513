package controller

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

// shown is the last status that was written, and the version that it made: while
// the cache has an older one, it lags behind.
type shown struct {
	version string
	status  v1alpha1.FederationStatus
}

// newest is the object with the status that was last written.
func (r *FederationReconciler) newest(f *v1alpha1.Federation) *v1alpha1.Federation {
	known, _ := r.shown.Load(keyOf(f))
	last, ok := known.(shown)
	if !ok || !isOlder(f.ResourceVersion, last.version) {
		return f
	}
	f = f.DeepCopy()
	last.status.DeepCopyInto(&f.Status)
	return f
}

// show writes the status if it differs, and tells what just happened. done says
// that everything was acted on that could be.
func (r *FederationReconciler) show(ctx context.Context, v *federation, done bool) error {
	next := v.DeepCopy()
	next.Status = v.status(done)
	if onlyRoundDiffers(next.Status, v.Status) {
		next.Status.Round = v.Status.Round
	}
	r.reach(v)
	changed, err := r.Applier.Status(ctx, next, v.Federation)
	if err != nil || !changed {
		return gone(ctx, r.Reader, v.Federation, err)
	}
	r.shown.Store(v.key, shown{next.ResourceVersion, next.Status})
	r.tell(v.Federation, next)
	return nil
}

// onlyRoundDiffers: a round that merely began is worth no write; it is shown with
// the next commit.
func onlyRoundDiffers(a, b v1alpha1.FederationStatus) bool {
	a.Round, b.Round = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

func (r *FederationReconciler) tell(old, next *v1alpha1.Federation) {
	event := func(kind string, reason string, note string) {
		r.Events.Eventf(next, nil, kind, reason, "Reconcile", "%s", note)
		r.Log.Info("federation", "namespace", next.Namespace, "federation", next.Name, "reason", reason, "message", note)
	}
	was, is := condition(old, v1alpha1.ConditionAccepted), condition(next, v1alpha1.ConditionAccepted)
	switch {
	case is.Status == metav1.ConditionFalse && (was.Status != is.Status || was.Reason != is.Reason):
		event(corev1.EventTypeWarning, is.Reason, is.Message)
	case is.Status == metav1.ConditionTrue && was.Status != is.Status:
		event(corev1.EventTypeNormal, is.Reason, is.Message)
	}
	if next.Status.Phase == old.Status.Phase {
		return
	}
	ready := condition(next, v1alpha1.ConditionReady)
	switch next.Status.Phase {
	case v1alpha1.FederationCompleted:
		event(corev1.EventTypeNormal, string(v1alpha1.ReasonCompleted), ready.Message)
	case v1alpha1.FederationFailed:
		event(corev1.EventTypeWarning, ready.Reason, ready.Message)
	}
}

func (r *FederationReconciler) reach(v *federation) {
	g := r.Metrics.CoordinatorReachable
	switch v.reachable {
	case membership.Yes:
		g.WithLabelValues(v.Namespace, v.Name).Set(1)
	case membership.No:
		g.WithLabelValues(v.Namespace, v.Name).Set(0)
	default:
		g.DeleteLabelValues(v.Namespace, v.Name)
	}
}

// status is what is shown of what is known. It is pure.
func (v *federation) status(done bool) v1alpha1.FederationStatus {
	s := *v.Status.DeepCopy()
	s.Endpoint = cmp.Or(v.Spec.Link.Address, resources.CoordinatorAddress(v.Federation))
	s.Selector = resources.AgentSelector(v.Name)
	s.Phase = v.phase()
	if c := v.coordinator; c != nil {
		s.RoundsCommitted = int64(c.GetRoundsCommitted())
		s.Round, s.ModelVersion = nil, nil
		if n := c.GetRound().GetNumber(); n > 0 {
			s.Round = new(int64(n))
		}
		if c.Version != nil {
			s.ModelVersion = new(int64(c.GetVersion()))
		}
	}
	s.Sites = nil
	s.ActiveSites = 0
	for i := range v.sites {
		s.Sites = append(s.Sites, v.inShort(&v.sites[i]))
		if v.mine[v.sites[i].Name] && v.sites[i].Status.Phase == v1alpha1.SiteActive {
			s.ActiveSites++
		}
	}
	for _, name := range v.missing {
		s.Sites = append(s.Sites, v1alpha1.FederationSite{Name: name, Phase: v1alpha1.SiteBlocked, Reason: v1alpha1.ReasonSiteNotFound})
	}
	s.DesiredSites = int32(v.desired())
	s.SiteSummary = fmt.Sprintf("%d/%d", s.ActiveSites, s.DesiredSites)
	s.Conditions = v.conditions(int(s.ActiveSites))
	// What nobody but a person can mend has been looked at in full; what is missing
	// may still come.
	if done && (v.fault == nil || needsPerson(v.fault.Reason)) {
		s.ObservedGeneration = v.Generation
	}
	return s
}

func (v *federation) inShort(s *v1alpha1.Site) v1alpha1.FederationSite {
	if !v.mine[s.Name] {
		return v1alpha1.FederationSite{Name: s.Name, Phase: v1alpha1.SiteBlocked, Reason: v1alpha1.ReasonSiteInUse}
	}
	if s.Status.Federation != v.Name { // not looked at yet
		return v1alpha1.FederationSite{Name: s.Name, Phase: v1alpha1.SiteIdle}
	}
	return v1alpha1.FederationSite{Name: s.Name, Phase: s.Status.Phase, Reason: s.Status.Reason}
}

// phase is the coordinator's, and its last while it does not answer.
func (v *federation) phase() v1alpha1.FederationPhase {
	phase := v1alpha1.FederationPhase(v.coordinator.GetPhase())
	switch {
	case phase == "":
		return cmp.Or(v.Status.Phase, v1alpha1.FederationWaitingForSites)
	case v.Spec.State == v1alpha1.StateSuspended && phase != v1alpha1.FederationCompleted && phase != v1alpha1.FederationFailed:
		return v1alpha1.FederationPaused
	}
	return phase
}

// rest is why no site is wanted, by what is known now.
func (v *federation) rest() *membership.Fault {
	f := v.DeepCopy()
	f.Status.Phase = v.phase()
	return Rest(f)
}

// desired is the number of sites that should train now.
func (v *federation) desired() int {
	if v.rest() != nil {
		return 0
	}
	n := 0
	for i := range v.sites {
		if s := &v.sites[i]; v.mine[s.Name] && v.selected[s.Name] && v.candidate(s).Willing {
			n++
		}
	}
	return n
}

func (v *federation) minSites() int { return max(1, int(v.Spec.Rounds.MinSites)) }

// isSuspended says whether the coordinator has been told to pause by spec.state.
func isSuspended(f *v1alpha1.Federation) bool {
	c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionSuspended)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == string(v1alpha1.ReasonSuspended)
}

func condition(f *v1alpha1.Federation, of string) metav1.Condition {
	if c := meta.FindStatusCondition(f.Status.Conditions, of); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// needsPerson says whether a fault stays until somebody acts; what does not exist
// may be on its way.
func needsPerson(r v1alpha1.Reason) bool {
	return r != v1alpha1.ReasonSiteNotFound && r != v1alpha1.ReasonSecretNotFound
}

// list names up to five.
func list(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
