package membership

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Decide what becomes of the site. Times in the status are whole seconds, as
// Kubernetes stores them.
//
// In a world that stands still, deciding again from the status that was decided
// comes to rest after a few times, and from then on gives the same without
// events; at once where nothing is asked of a capacity's keeper, whose answers
// belong to the wish that was in the status.
func Decide(w World) Decision {
	d := newDecider(w)
	// More phases than there are cannot follow on each other at one time; the bound
	// is for a world that contradicts itself.
	for range 8 {
		if !d.step() {
			break
		}
	}
	d.wakeAt(d.w.Agents.Again)
	d.release()
	d.show()
	return Decision{
		Status: d.st, Provision: d.plan.provision, Enrolment: d.plan.enrol, Seat: d.plan.seat,
		Wake: d.plan.wake, Events: d.events, Released: d.released,
	}
}

// decider works one decision out.
type decider struct {
	w   World
	now time.Time
	// old status, and the new one as far as it is worked out.
	old, st v1alpha1.SiteStatus
	// fresh: the wish began in this decision; the keeper's answers are of another.
	fresh    bool
	plan     plan
	events   []Event
	released bool
	// timedOut: the Site goes though something is held.
	timedOut *Fault
}

// plan is what a phase does and what it shows.
type plan struct {
	provision *bool
	enrol     Enrolment
	seat      *Seat
	wake      time.Time
	ready     metav1.ConditionStatus
	Fault
	volatile bool
	// held: capacity is not given back yet.
	held bool
}

func newDecider(w World) *decider {
	d := &decider{w: w, now: w.Now.UTC().Truncate(time.Second), old: w.Site.Status}
	d.st = *w.Site.Status.DeepCopy()
	if d.st.Phase == "" {
		d.st.Phase = v1alpha1.SiteIdle
	}
	if d.st.PhaseSince == nil {
		d.st.PhaseSince = d.stamp()
	}
	return d
}

// step plans for the present phase, or enters another and says so.
func (d *decider) step() (entered bool) {
	d.plan = plan{ready: metav1.ConditionFalse}
	switch d.st.Phase {
	case v1alpha1.SiteProvisioning:
		return d.provisioning()
	case v1alpha1.SiteJoining:
		return d.joining()
	case v1alpha1.SiteActive:
		return d.active()
	case v1alpha1.SiteDraining:
		return d.draining()
	case v1alpha1.SiteLost:
		return d.lost()
	case v1alpha1.SiteBlocked:
		return d.blocked()
	case v1alpha1.SiteFailed:
		return d.failed()
	}
	return d.idle()
}

// enter a phase; always true.
func (d *decider) enter(p v1alpha1.SitePhase) bool {
	d.st.Phase, d.st.PhaseSince = p, d.stamp()
	return true
}

func (d *decider) event(r v1alpha1.Reason, message string) {
	d.events = append(d.events, Event{Reason: r, Message: message})
}

func (d *decider) warn(r v1alpha1.Reason, message string) {
	d.events = append(d.events, Event{Warning: true, Reason: r, Message: message})
}

// wakeAt looks again at the earliest of the times that are still to come.
func (d *decider) wakeAt(at ...time.Time) {
	for _, t := range at {
		if t.After(d.now) && (d.plan.wake.IsZero() || t.Before(d.plan.wake)) {
			d.plan.wake = t
		}
	}
}

// passed says that a time has come.
func (d *decider) passed(t time.Time) bool { return !t.After(d.now) }

func (d *decider) stamp() *metav1.Time {
	t := metav1.NewTime(d.now)
	return &t
}

func (d *decider) since() time.Time { return d.st.PhaseSince.Time }

func (d *decider) deleting() bool { return !d.w.Site.DeletionTimestamp.IsZero() }

// mode of the capacity with its default.
func (d *decider) mode() v1alpha1.CapacityMode {
	unset := v1alpha1.CapacityNodeLabel
	if !d.hasNodes() {
		unset = v1alpha1.CapacityNone
	}
	return cmp.Or(d.w.Site.Spec.Capacity.Mode, unset)
}

// managed: there is a keeper to ask.
func (d *decider) managed() bool {
	m := d.mode()
	return d.w.Capacity.Managed || m == v1alpha1.CapacityScale || m == v1alpha1.CapacityWebhook
}

func (d *decider) hasNodes() bool { return d.w.Site.Spec.Nodes != nil }

// nodesKnown is false while the cluster that has the nodes cannot be reached: then
// what is not seen is not gone.
func (d *decider) nodesKnown() bool {
	return !d.w.Cluster.Remote || d.w.Cluster.Reachable == Yes
}

// connecting: it will soon be known whether the cluster that has the nodes can be
// reached, as after a restart. What came while nobody looked is not late.
func (d *decider) connecting() bool {
	return d.w.Cluster.Remote && d.w.Cluster.Reachable == Unknown
}

// connected says whether the coordinator hears the site.
func (d *decider) connected() Tri {
	c := d.w.Coordinator
	switch {
	case c.Reachable != Yes:
		return Unknown
	case c.Members > 0 && c.Phase != v1alpha1.SiteLost:
		return Yes
	}
	return No
}

// vacated: no node has our label and no agent of the site is left, as far as can
// be seen.
func (d *decider) vacated() bool {
	return d.nodesKnown() && d.w.Nodes.Enrolled == 0 && d.w.Agents.Pods == 0
}

func (d *decider) federation() string {
	if d.w.Federation == nil {
		return d.st.Federation
	}
	return d.w.Federation.Name
}

// admit the site at the coordinator.
func (d *decider) admit() *Seat {
	if d.w.Federation == nil {
		return nil
	}
	e := d.w.Energy
	e.Admit = true
	f := energyFault(e)
	return &Seat{Admit: true, Reason: f.Reason, Message: f.Message}
}

// refuse the site at the coordinator from deadline on.
func (d *decider) refuse(deadline time.Time, f Fault) *Seat {
	if d.w.Federation == nil {
		return nil
	}
	return &Seat{Deadline: max(deadline.Sub(d.now), time.Second), Reason: f.Reason, Message: f.Message}
}

func seconds(n int32, unset time.Duration) time.Duration {
	if n <= 0 {
		return unset
	}
	return time.Duration(n) * time.Second
}
