package membership

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// objection is why a site is not wanted.
type objection struct {
	Fault
	// Ready of a site that is idle for it: asleep by policy is ready.
	Ready metav1.ConditionStatus
	// Volatile messages carry values of a signal; the first is kept while the
	// reason stays.
	Volatile bool
}

// A policy objects to a site's taking part, or has nothing to say (nil).
type policy func(d *decider) *objection

// policies in order: the first objection is the one that is shown.
var policies = []policy{
	notDeleting,
	notBlocked,
	referenced,
	federationRuns,
	notHeld,
	energyKnown,
	energyAdmits,
	notCoolingOff,
	selected,
	nodesStay,
}

// objection is why the site is not wanted now; nil if it is.
func (d *decider) objection() *objection {
	for _, p := range policies {
		if o := p(d); o != nil {
			o.Reason = cmp.Or(o.Reason, v1alpha1.ReasonNothingWanted)
			return o
		}
	}
	return nil
}

func notDeleting(d *decider) *objection {
	if !d.deleting() {
		return nil
	}
	return &objection{Fault: Fault{v1alpha1.ReasonDeleting, "the Site is being deleted"}, Ready: metav1.ConditionFalse}
}

func notBlocked(d *decider) *objection {
	if d.w.Blocked == nil {
		return nil
	}
	return &objection{Fault: *d.w.Blocked, Ready: metav1.ConditionFalse}
}

func referenced(d *decider) *objection {
	if d.w.Federation != nil {
		return nil
	}
	return &objection{Fault: Fault{v1alpha1.ReasonNotReferenced, "no Federation of this namespace names the Site"}, Ready: metav1.ConditionTrue}
}

func federationRuns(d *decider) *objection {
	if d.w.Federation.Rest == nil {
		return nil
	}
	return &objection{Fault: *d.w.Federation.Rest, Ready: metav1.ConditionTrue}
}

func notHeld(d *decider) *objection {
	if !d.w.Coordinator.Held {
		return nil
	}
	return &objection{Fault: Fault{v1alpha1.ReasonDrainRequested,
		"a person drained the site at the coordinator; `girassol admit` lets it come again"}, Ready: metav1.ConditionTrue}
}

// energyKnown keeps what is under way: after a restart the engine takes a moment to
// decide, and no site may be drained for that.
func energyKnown(d *decider) *objection {
	if d.w.Energy.Known || d.underWay() {
		return nil
	}
	return &objection{Fault: Fault{v1alpha1.ReasonSignalMissing, "waits for the first decision of the signals engine"}, Ready: metav1.ConditionUnknown}
}

func energyAdmits(d *decider) *objection {
	e := d.w.Energy
	if !e.Known || e.Admit {
		return nil
	}
	return &objection{Fault: energyFault(e), Ready: metav1.ConditionTrue, Volatile: true}
}

// notCoolingOff keeps a site that failed away until its time has come.
func notCoolingOff(d *decider) *objection {
	p := d.st.Provisioning
	if p == nil || p.RetryAt == nil || !p.RetryAt.After(d.now) {
		return nil
	}
	return &objection{Fault: Fault{v1alpha1.ReasonCoolingOff,
		fmt.Sprintf("failed %s in a row; asked again at %s", times(p.Failures), clock(p.RetryAt.Time))}, Ready: metav1.ConditionFalse}
}

// selected: a place is there. That the site could not take part, which Select may
// have found before it knew better, is for the policies above to say.
func selected(d *decider) *objection {
	f := d.w.Federation
	if f.Selected || d.underWay() && f.NotSelected.Reason == v1alpha1.ReasonNothingWanted {
		return nil
	}
	return &objection{Fault: Fault{cmp.Or(f.NotSelected.Reason, v1alpha1.ReasonHigherPriority),
		cmp.Or(f.NotSelected.Message, "the wanted places are filled by other sites")}, Ready: metav1.ConditionTrue}
}

// nodesStay objects when all nodes go: a driver upgrade, a drain of the machines.
// A site whose capacity can be asked for anew waits in Provisioning instead.
func nodesStay(d *decider) *objection {
	waits := d.st.Phase == v1alpha1.SiteProvisioning || d.st.Phase != v1alpha1.SiteJoining && !d.underWay() && d.mode() != v1alpha1.CapacityNone
	n := d.w.Nodes
	if waits || !d.hasNodes() || !d.nodesKnown() || len(n.Withdraw) == 0 || len(n.Enrol) > 0 {
		return nil
	}
	return &objection{Fault: Fault{cmp.Or(n.Trouble.Reason, v1alpha1.ReasonNodeGoing),
		cmp.Or(n.Trouble.Message, "all nodes of the site go away")}, Ready: metav1.ConditionFalse}
}

// underWay: the site has, or is getting, its place.
func (d *decider) underWay() bool { return underWay(d.st.Phase) }

func underWay(p v1alpha1.SitePhase) bool {
	switch p {
	case v1alpha1.SiteProvisioning, v1alpha1.SiteJoining, v1alpha1.SiteActive, v1alpha1.SiteLost:
		return true
	}
	return false
}

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
