// Package membership decides what becomes of a site: its phase, its conditions
// and what is to be done next about its capacity, its nodes' labels and its place
// at the coordinator.
//
// It owns the chain of policies from the spec over energy and capacity to the
// agents' session, the order in which a site comes and leaves, and all deadlines.
// It is pure: the world is an argument, the time too. It must not know how
// anything is read or done.
//
// What a decision needs later is in Site.status, so that a restart changes
// nothing. Deciding again in an unchanged world gives the same decision.
package membership

import (
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

// World is all that is known of a site at one time.
type World struct {
	Now time.Time
	// Site with its last status.
	Site *v1alpha1.Site
	// Federation that has the site; nil without one.
	Federation *Federation
	// Blocked is why the spec cannot be acted on (a Secret is missing, a kubeconfig
	// is refused, another federation has the site); nil if it can.
	Blocked     *Fault
	Energy      Energy
	Cluster     Cluster
	Nodes       inventory.Summary
	Agents      Agents
	Capacity    Capacity
	Coordinator Coordinator
}

// Fault is a reason with words for a person.
type Fault struct {
	Reason  v1alpha1.Reason
	Message string
}

// Federation as far as its sites need to know.
type Federation struct {
	Name string
	// Rest is why no site is wanted (Suspended, ScaledToZero, Completed, Deleting);
	// nil while it runs.
	Rest *Fault
	// Selected sites may take part; others say why in NotSelected.
	Selected    bool
	NotSelected Fault
	Grace       time.Duration
	// Link protects agents' sessions.
	Link v1alpha1.LinkMode
}

// Tri is yes, no or not known.
type Tri int

// Values of a Tri.
const (
	Unknown Tri = iota
	No
	Yes
)

// Energy is the signals engine's wish.
type Energy struct {
	// Known is false until the engine has decided for the first time.
	Known   bool
	Admit   bool
	Window  v1alpha1.WindowState
	Reason  v1alpha1.Reason
	Message string
	// Fresh says whether the signal is believed; a site without one needs none.
	Fresh Tri
}

// Cluster in which the nodes are.
type Cluster struct {
	// Remote: spec.cluster is set.
	Remote    bool
	Reachable Tri
	Message   string
}

// Agents are the pods of the site's agents.
type Agents struct {
	Pods, Ready int
	// Trouble of the worst pod: AgentCrashLoop or AgentPending; Healthy without.
	Trouble inventory.Trouble
	// Again is when time alone may end the trouble; zero: never.
	Again time.Time
}

// Capacity is what its keeper says of the wish in Site.status.provisioning. When a
// decision begins another wish, only Managed and, unless Failed, Fault are
// believed.
type Capacity struct {
	// Managed is false for modes None and NodeLabel: there is nothing to ask.
	Managed bool
	// Asked: the keeper has taken the present wish.
	Asked bool
	// Idle: it holds no more than the idle capacity.
	Idle bool
	// Fault is why it cannot be moved, or why it failed; nil if it can.
	Fault *Fault
	// Failed: an outside provisioner gave up on the wish.
	Failed bool
	// Done: an outside provisioner has fulfilled the wish. It counts only for sites
	// without spec.nodes: where there are nodes, what is allocatable counts.
	Done bool
}

// Coordinator is what the federation's coordinator says of the site.
type Coordinator struct {
	// Reachable is Unknown before the first answer.
	Reachable Tri
	Message   string
	// Phase, Reason: of its status for this site.
	Phase  v1alpha1.SitePhase
	Reason v1alpha1.Reason
	// Members with a session, and of those that train or upload.
	Members, Busy int
	// Link is the worst of what its members' sessions go over, of LinkReason; empty
	// where the coordinator tells of none.
	Link v1alpha1.Reason
	// Held: a person drained or excluded the site there; it is not admitted until
	// that person says so.
	Held bool
}

// Enrolment is what to do about the nodes' labels.
type Enrolment int

// Enrolments.
const (
	// EnrolKeep leaves labels as they are.
	EnrolKeep Enrolment = iota
	// EnrolOn labels Nodes.Enrol and takes labels off Nodes.Withdraw.
	EnrolOn
	// EnrolOff takes all labels of the site off.
	EnrolOff
)

// Decision is what to show and what to do. Doing all of it again is harmless.
type Decision struct {
	// Status to write: phase, reason, provisioning, drain deadline, conditions. Only
	// the transition times of conditions are left to the caller.
	Status v1alpha1.SiteStatus
	// Provision: true asks for active capacity, false for idle; nil: neither.
	Provision *bool
	Enrolment Enrolment
	// Seat at the coordinator; nil says nothing to it.
	Seat *Seat
	// Wake is when to decide again though nothing changed; zero: never.
	Wake   time.Time
	Events []Event
	// Released: the Site is being deleted and may go. What else the decision says
	// is to be done before.
	Released bool
}

// Seat is what the coordinator is told.
type Seat struct {
	Admit bool
	// Deadline until which the site must be out, for !Admit.
	Deadline time.Duration
	Reason   v1alpha1.Reason
	Message  string
}

// Event is something that just happened.
type Event struct {
	Warning bool
	Reason  v1alpha1.Reason
	Message string
}

// Candidate for one of a federation's places.
type Candidate struct {
	Site     string
	Priority int32
	// Willing: energy and spec would admit it now.
	Willing bool
	// In: it has, or is getting, its place now.
	In bool
	// Active: it trains. One that does leaves its place only to one that does.
	Active bool
	// RetryAt is until when a failed site is not asked; zero: may be asked.
	RetryAt time.Time
}
