package membership

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// idle: nothing is held, or the idle capacity only.
func (d *decider) idle() bool {
	why := d.objection()
	if why == nil {
		return d.come()
	}
	if d.w.Blocked != nil && !d.deleting() {
		return d.block()
	}
	d.plan.Fault, d.plan.volatile, d.plan.ready = why.Fault, why.Volatile, why.Ready
	d.plan.seat = d.refuse(d.now.Add(d.grace()), why.Fault)
	d.plan.enrol = EnrolOff
	// Capacity that was never asked for is left alone until energy has spoken.
	if d.mayHold() || d.managed() && d.w.Federation != nil && d.w.Energy.Known && !d.deleting() {
		begun := d.st.Provisioning != nil && d.st.Provisioning.Wish == v1alpha1.WishRelease
		d.plan.held = !begun && !d.vacated() || !d.handBack()
	}
	if p := d.st.Provisioning; p != nil && p.RetryAt != nil {
		d.wakeAt(p.RetryAt.Time)
	}
	return false
}

// come: the site is wanted.
func (d *decider) come() bool {
	d.wish(v1alpha1.WishProvision).RetryAt = nil
	if d.mode() == v1alpha1.CapacityNone {
		return d.enter(v1alpha1.SiteJoining)
	}
	d.event(v1alpha1.ReasonCapacityRequested, fmt.Sprintf("Federation %s wants the site", d.federation()))
	return d.enter(v1alpha1.SiteProvisioning)
}

// provisioning: capacity is asked for and GPUs have to become allocatable.
func (d *decider) provisioning() bool {
	if why := d.objection(); why != nil {
		if d.w.Blocked != nil && !d.deleting() {
			return d.block()
		}
		return d.withdraw(why.Fault)
	}
	p := d.provision()
	if d.w.Capacity.Failed && !d.fresh {
		if f := d.capacityFault(); f != nil {
			return d.fail(*f)
		}
		return d.fail(Fault{v1alpha1.ReasonProvisionerFailed, "the provisioner gave up"})
	}
	settled, deadline := d.settling(p), d.deadlineOf(p)
	if !settled.IsZero() && d.passed(settled) && d.answered(p) {
		p.State = v1alpha1.ProvisioningDone
		d.event(v1alpha1.ReasonCapacityReady, "GPUs are allocatable; agents come")
		return d.enter(v1alpha1.SiteJoining)
	}
	waits := d.waitsFor(p, settled)
	if d.passed(deadline) && (settled.IsZero() || !d.answered(p)) && !d.connecting() {
		return d.fail(Fault{v1alpha1.ReasonCapacityDeadlineExceeded,
			fmt.Sprintf("no allocatable GPUs by %s: %s", clock(deadline), waits.Message)})
	}
	d.plan.Fault = waits
	d.plan.seat = d.refuse(d.now.Add(d.grace()), Fault{v1alpha1.ReasonProvisioning, "its capacity is being provisioned"})
	if waits.Reason == v1alpha1.ReasonSettling {
		d.wakeAt(settled)
		return false
	}
	d.plan.Message += "; the next site is asked at " + clock(deadline)
	d.wakeAt(deadline)
	return false
}

// waitsFor names what a site in Provisioning waits for.
func (d *decider) waitsFor(p *v1alpha1.ProvisioningStatus, settled time.Time) Fault {
	switch {
	case !settled.IsZero() && d.answered(p):
		return Fault{v1alpha1.ReasonSettling, fmt.Sprintf("GPUs are allocatable since %s and must stay so until %s", clock(p.SettledAt.Time), clock(settled))}
	case d.capacityFault() != nil:
		return *d.capacityFault()
	case !d.nodesKnown():
		return Fault{v1alpha1.ReasonClusterUnreachable, "waits for the cluster that has the nodes"}
	case p.AskedAt == nil:
		return Fault{v1alpha1.ReasonProvisioning, "waits for the capacity's keeper to take the wish"}
	case !d.hasNodes():
		return Fault{v1alpha1.ReasonProvisioning, "waits for the provisioner, or for an agent's session"}
	case d.w.Nodes.Nodes > 0:
		return Fault{v1alpha1.ReasonWaitingForGPUs, fmt.Sprintf("nodes are there; waits for %s", d.needs())}
	case d.managed():
		return Fault{v1alpha1.ReasonProvisioning, "capacity is asked for; waits for nodes"}
	}
	return Fault{v1alpha1.ReasonNoNodes, "waits for nodes that spec.nodes.selector matches"}
}

func (d *decider) needs() string {
	switch n := d.minGPUs(); {
	case n == 1:
		return "1 allocatable GPU"
	case n > 1:
		return fmt.Sprintf("%d allocatable GPUs", n)
	}
	return "a usable node (without GPUs: nodes.vendor CPU)"
}

// joining: agents are let onto the nodes and have to connect.
func (d *decider) joining() bool {
	if why := d.objection(); why != nil {
		if d.connected() == No {
			return d.withdraw(why.Fault)
		}
		return d.leave(why.Fault)
	}
	p := d.provision()
	p.State = v1alpha1.ProvisioningDone
	d.hearAgain()
	if d.connected() == Yes {
		p.Failures, p.RetryAt, p.Reason, p.Message = 0, nil, "", ""
		d.event(v1alpha1.ReasonSiteJoined, "the site takes part in Federation "+d.federation())
		return d.enter(v1alpha1.SiteActive)
	}
	waits, deadline := d.agentsTrouble(), d.since().Add(d.provisioningDeadline())
	// Without the coordinator nobody can say that the agents do not come.
	if d.connected() == No && d.passed(deadline) {
		f := Fault{waits.Reason, fmt.Sprintf("no agent connected by %s: %s", clock(deadline), waits.Message)}
		if waits.Reason == v1alpha1.ReasonWaitingForAgent {
			f.Reason = v1alpha1.ReasonNotConnected
		}
		return d.fail(f)
	}
	d.plan.Fault = waits
	if d.connected() == Unknown {
		d.plan.Fault = d.coordinatorTrouble()
	} else {
		d.plan.Message += "; the next site is asked at " + clock(deadline)
	}
	d.plan.seat, d.plan.enrol = d.admit(), EnrolOn
	d.wakeAt(deadline)
	return false
}

// agentsTrouble is why agents do not connect.
func (d *decider) agentsTrouble() Fault {
	a := d.w.Agents.Trouble
	switch {
	case !d.nodesKnown():
		return Fault{v1alpha1.ReasonClusterUnreachable, "waits for an agent's session and for the cluster that has the nodes"}
	case a.Reason != "" && a.Reason != v1alpha1.ReasonHealthy:
		return Fault{a.Reason, "waits for an agent's session: " + a.Message}
	}
	return Fault{v1alpha1.ReasonWaitingForAgent, "waits for an agent's session"}
}

// coordinatorTrouble is why nothing is known of the agents.
func (d *decider) coordinatorTrouble() Fault {
	f := Fault{v1alpha1.ReasonCoordinatorUnreachable, "waits for the coordinator, which does not answer"}
	if d.w.Coordinator.Reachable == Unknown {
		f = Fault{v1alpha1.ReasonCoordinatorStarting, "waits for the first answer of the coordinator"}
	}
	return f
}

// hearAgain gives agents their time anew when the coordinator answers again: they
// have to connect again first.
func (d *decider) hearAgain() {
	was := meta.FindStatusCondition(d.old.Conditions, v1alpha1.ConditionAgentConnected)
	if was != nil && was.Status == metav1.ConditionUnknown && d.connected() == No {
		d.st.PhaseSince = d.stamp()
	}
}

// active: the coordinator hears the site. Whether nodes are seen or GPUs dip does
// not matter: the session decides.
func (d *decider) active() bool {
	why, connected := d.objection(), d.connected()
	if why != nil {
		if connected == No {
			return d.withdraw(why.Fault)
		}
		return d.leave(why.Fault)
	}
	if connected == No {
		d.warn(v1alpha1.ReasonSiteLost, "the coordinator no longer hears the site; its nodes and capacity are kept")
		return d.enter(v1alpha1.SiteLost)
	}
	p := d.provision()
	p.State = v1alpha1.ProvisioningDone
	d.plan.seat, d.plan.enrol = d.admit(), EnrolOn
	d.plan.Fault, d.plan.ready = d.standing()
	return false
}

// standing of an active site at its coordinator. What alternates with each round
// is not told apart.
func (d *decider) standing() (Fault, metav1.ConditionStatus) {
	c := d.w.Coordinator
	switch {
	case c.Reachable != Yes:
		return d.coordinatorTrouble(), metav1.ConditionUnknown
	case c.Phase == v1alpha1.SiteJoining:
		return Fault{cmp.Or(c.Reason, v1alpha1.ReasonWaitingForAgent), "its agents are connected; waits for them to be ready"}, metav1.ConditionFalse
	}
	return Fault{v1alpha1.ReasonTraining, "takes part in Federation " + d.federation()}, metav1.ConditionTrue
}

// lost: the coordinator no longer hears the site. It may be a tunnel: nodes and
// capacity are kept for a while.
func (d *decider) lost() bool {
	if why := d.objection(); why != nil {
		return d.withdraw(why.Fault)
	}
	connected := d.connected()
	if connected == Yes {
		d.event(v1alpha1.ReasonSiteJoined, "the site is heard again by Federation "+d.federation())
		return d.enter(v1alpha1.SiteActive)
	}
	d.hearAgain()
	deadline := d.since().Add(d.lossGrace())
	reason := v1alpha1.ReasonHeartbeatMissed
	if t := d.w.Agents.Trouble; t.Reason != "" && t.Reason != v1alpha1.ReasonHealthy {
		reason = t.Reason
	}
	if t := d.w.Nodes.Trouble; d.nodesKnown() && t.Reason == v1alpha1.ReasonNodeLost {
		reason = t.Reason
	}
	if connected == No && d.passed(deadline) {
		return d.fail(Fault{reason, fmt.Sprintf("not heard since %s", clock(d.since()))})
	}
	d.provision()
	d.plan.seat, d.plan.enrol = d.admit(), EnrolOn
	d.plan.Fault = Fault{reason, fmt.Sprintf("not heard since %s; waits for its agents until %s", clock(d.since()), clock(deadline))}
	if connected == Unknown {
		d.plan.Fault = d.coordinatorTrouble()
	}
	d.wakeAt(deadline)
	return false
}
