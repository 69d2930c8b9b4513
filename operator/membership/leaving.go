package membership

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

const (
	defaultGrace   = 60 * time.Second
	defaultRelease = 600 * time.Second
	// linger is how long agents may take to end after their drain was over.
	linger = 60 * time.Second
)

func (d *decider) grace() time.Duration {
	if d.w.Federation == nil || d.w.Federation.Grace <= 0 {
		return defaultGrace
	}
	return d.w.Federation.Grace
}

// leave in order: the coordinator drains first. Status.Reason tells how far it is,
// so that no step is taken back: why, while it drains; then Drained or
// DrainTimeout, while agents end; then Releasing.
func (d *decider) leave(why Fault) bool {
	d.drainBy(d.now.Add(d.grace()))
	d.st.Reason = why.Reason
	d.event(v1alpha1.ReasonSiteDraining, fmt.Sprintf("leaves by %s: %s", clock(d.st.DrainDeadline.Time), why.Message))
	return d.enter(v1alpha1.SiteDraining)
}

// withdraw a site of which nobody is connected: there is nothing to drain.
func (d *decider) withdraw(why Fault) bool {
	d.st.DrainDeadline = d.stamp()
	d.st.Reason = v1alpha1.ReasonDrained
	d.event(v1alpha1.ReasonReleasing, "given back: "+why.Message)
	return d.enter(v1alpha1.SiteDraining)
}

// drainBy sets the deadline, earlier where all nodes go and announced it. One of
// several that goes, or should long be gone, takes no time from the others.
func (d *decider) drainBy(deadline time.Time) {
	n := d.w.Nodes
	if gone := n.GoneBy.Truncate(time.Second); d.nodesKnown() && len(n.Enrol) == 0 && !gone.IsZero() && gone.Before(deadline) {
		deadline = gone
		if gone.Before(d.now) {
			deadline = d.now
		}
	}
	d.st.DrainDeadline = &metav1.Time{Time: deadline.UTC()}
}

// draining is finished before the site comes again.
func (d *decider) draining() bool {
	if d.st.DrainDeadline == nil {
		d.st.DrainDeadline = d.stamp()
	}
	deadline := d.st.DrainDeadline.Time
	if d.st.Reason == "" {
		d.st.Reason = v1alpha1.ReasonNothingWanted
	}
	if !d.drained() {
		d.drainBy(deadline)
		deadline = d.st.DrainDeadline.Time
		if d.drains(deadline) {
			return false
		}
	}
	d.plan.enrol = EnrolOff
	d.plan.seat = d.refuse(d.now, Fault{v1alpha1.ReasonDrained, "the site has left"})
	if d.st.Reason != v1alpha1.ReasonReleasing && !d.vacated() && !d.passed(deadline.Add(linger)) {
		d.plan.Fault = Fault{d.st.Reason, "waits for its agents to end, until " + clock(deadline.Add(linger))}
		d.wakeAt(deadline.Add(linger))
		return false
	}
	d.st.Reason = v1alpha1.ReasonReleasing
	if d.mayHold() && !d.handBack() {
		d.plan.Fault = Fault{v1alpha1.ReasonReleasing, "waits for its capacity to be given back"}
		if f := d.capacityFault(); f != nil {
			d.plan.Message += ": " + f.Message
		} else if !d.nodesKnown() {
			d.plan.Message += " in a cluster that cannot be reached"
		}
		return false
	}
	if d.managed() {
		d.event(v1alpha1.ReasonCapacityReleased, "its capacity is given back")
	}
	return d.enter(v1alpha1.SiteIdle)
}

// drained: the coordinator is done with the site, or its time was over.
func (d *decider) drained() bool {
	switch d.st.Reason {
	case v1alpha1.ReasonDrained, v1alpha1.ReasonDrainTimeout, v1alpha1.ReasonReleasing:
		return true
	}
	return false
}

// drains says that the coordinator still has until deadline.
func (d *decider) drains(deadline time.Time) bool {
	c := d.w.Coordinator
	switch {
	case c.Reachable == Yes && (c.Members == 0 || c.Busy == 0 && c.Phase == v1alpha1.SiteIdle):
		d.st.Reason = v1alpha1.ReasonDrained
		d.event(v1alpha1.ReasonSiteLeft, "left in order")
		return false
	case d.passed(deadline):
		d.st.Reason = v1alpha1.ReasonDrainTimeout
		d.warn(v1alpha1.ReasonDrainTimeout, "had not left by "+clock(deadline)+"; what it had in flight is lost")
		return false
	}
	d.plan.Fault = Fault{d.st.Reason, "leaves; what is in flight may end until " + clock(deadline)}
	d.plan.seat = d.refuse(deadline, d.plan.Fault)
	d.wakeAt(deadline)
	return true
}

// failed: handed back; asked again when it has cooled off. GPUs that come late
// change nothing.
func (d *decider) failed() bool {
	why := Fault{cmp.Or(d.st.Reason, v1alpha1.ReasonCoolingOff), cmp.Or(d.st.Message, "failed before and cools off")}
	switch p := d.st.Provisioning; {
	case d.deleting():
		return d.withdraw(Fault{v1alpha1.ReasonDeleting, "the Site is being deleted"})
	case d.w.Blocked != nil:
		return d.block()
	case p == nil || p.RetryAt == nil || d.passed(p.RetryAt.Time):
		return d.enter(v1alpha1.SiteIdle)
	default:
		d.wakeAt(p.RetryAt.Time)
	}
	d.plan.Fault = why
	d.plan.seat = d.refuse(d.now, why)
	d.handBackVacated()
	d.st.Provisioning.Reason, d.st.Provisioning.Message = why.Reason, why.Message
	return false
}

// block the site: its spec cannot be acted on.
func (d *decider) block() bool {
	d.warn(d.w.Blocked.Reason, d.w.Blocked.Message)
	return d.enter(v1alpha1.SiteBlocked)
}

func (d *decider) blocked() bool {
	switch {
	case d.deleting():
		return d.withdraw(Fault{v1alpha1.ReasonDeleting, "the Site is being deleted"})
	case d.w.Blocked == nil:
		d.event(v1alpha1.ReasonAccepted, "the spec can be acted on")
		return d.enter(v1alpha1.SiteIdle)
	}
	d.plan.Fault = *d.w.Blocked
	d.plan.seat = d.refuse(d.now, d.plan.Fault)
	d.plan.enrol = EnrolOff
	if d.st.Provisioning != nil {
		d.handBackVacated()
	}
	return false
}

// handBackVacated takes labels off and then gives the capacity back, when agents
// have ended or had their time since the phase began.
func (d *decider) handBackVacated() {
	d.plan.enrol = EnrolOff
	end := d.since().Add(linger)
	if begun := d.st.Provisioning.Wish == v1alpha1.WishRelease; begun || d.vacated() || d.passed(end) {
		d.handBack()
		return
	}
	d.wakeAt(end)
}

// release says whether a Site that is being deleted may go: when nothing is held,
// and after its time whatever is.
func (d *decider) release() {
	if !d.deleting() {
		return
	}
	end := d.w.Site.DeletionTimestamp.Add(seconds(d.w.Site.Spec.ReleaseTimeoutSeconds, defaultRelease))
	untouched := !d.nodesKnown() && d.st.Provisioning == nil && d.st.EnrolledNodes == 0
	if d.st.Phase == v1alpha1.SiteIdle && !d.plan.held && (d.vacated() || untouched) {
		d.released = true
		return
	}
	if !d.passed(end) {
		d.plan.Message += "; the Site goes at " + clock(end) + " whatever is left"
		d.wakeAt(end)
		return
	}
	d.released = true
	d.timedOut = &Fault{v1alpha1.ReasonReleaseTimedOut, fmt.Sprintf(
		"not all could be given back by %s (%s); the Site goes: take labels off its nodes and its capacity back by hand", clock(end), d.plan.Message)}
}
