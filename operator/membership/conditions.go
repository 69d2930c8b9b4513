package membership

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

// show fills the status from the phase's plan and from what is seen. What cannot
// be seen keeps its last figure; conditions say that it is not known.
func (d *decider) show() {
	st := &d.st
	st.ObservedGeneration = d.w.Site.Generation
	st.Federation = ""
	if d.w.Federation != nil {
		st.Federation = d.w.Federation.Name
	}
	st.Reason, st.Message = d.plan.Reason, d.plan.Message
	if d.plan.volatile && d.old.Phase == st.Phase && d.old.Reason == st.Reason && d.old.Message != "" {
		st.Message = d.old.Message
	}
	if d.nodesKnown() {
		n := d.w.Nodes
		st.Vendor, st.Nodes, st.GPUs, st.EnrolledNodes = n.Vendor, int32(n.Nodes), int32(n.GPUs), int32(n.Enrolled)
		// Labels that name a model may vanish for a minute.
		if st.Model = n.Model; n.Model == "" && n.GPUs > 0 && n.Vendor == d.old.Vendor {
			st.Model = d.old.Model
		}
	}
	switch {
	case d.w.Federation == nil:
		st.Members = 0
	case d.w.Coordinator.Reachable == Yes:
		st.Members = int32(d.w.Coordinator.Members)
	}
	if st.Phase != v1alpha1.SiteDraining {
		st.DrainDeadline = nil
	}
	st.Conditions = nil
	d.showReady()
	d.showEnergy()
	d.showCapacity()
	d.showNodes()
	d.showAgent()
	d.showLink()
	d.showDraining()
	d.showCluster()
}

// condition adds one. A message is cut to what the API takes.
func (d *decider) condition(kind string, status metav1.ConditionStatus, f Fault) {
	if r := []rune(f.Message); len(r) > 1024 {
		f.Message = string(r[:1024]) + "…"
	}
	d.st.Conditions = append(d.st.Conditions, metav1.Condition{
		Type: kind, Status: status, ObservedGeneration: d.w.Site.Generation,
		Reason: string(cmp.Or(f.Reason, v1alpha1.ReasonNothingWanted)), Message: f.Message,
	})
}

// steady adds a condition whose message carries a signal's values: the first one
// is kept while status and reason stay.
func (d *decider) steady(kind string, status metav1.ConditionStatus, f Fault) {
	if was := meta.FindStatusCondition(d.old.Conditions, kind); was != nil &&
		was.Status == status && was.Reason == string(f.Reason) {
		f.Message = was.Message
	}
	d.condition(kind, status, f)
}

// begins says that a condition now has a reason that it did not have before.
func (d *decider) begins(kind string, reason v1alpha1.Reason) bool {
	was := meta.FindStatusCondition(d.old.Conditions, kind)
	return was == nil || was.Reason != string(reason)
}

func (d *decider) showReady() {
	if d.timedOut == nil {
		d.condition(v1alpha1.ConditionReady, d.plan.ready, Fault{d.plan.Reason, d.st.Message})
		return
	}
	if d.begins(v1alpha1.ConditionReady, d.timedOut.Reason) {
		d.warn(d.timedOut.Reason, d.timedOut.Message)
	}
	d.condition(v1alpha1.ConditionReady, metav1.ConditionFalse, *d.timedOut)
}

func (d *decider) showEnergy() {
	e := d.w.Energy
	if d.w.Federation == nil || !e.Known {
		f := Fault{v1alpha1.ReasonSignalMissing, "the signals engine has not decided yet"}
		if d.w.Federation == nil {
			f = Fault{v1alpha1.ReasonNotReferenced, "no Federation asks for the site's signal"}
		}
		d.condition(v1alpha1.ConditionEnergyFavourable, metav1.ConditionUnknown, f)
		d.condition(v1alpha1.ConditionSignalFresh, metav1.ConditionUnknown, f)
		return
	}
	d.steady(v1alpha1.ConditionEnergyFavourable, windowStatus(e), energyFault(e))
	fresh := Fault{v1alpha1.ReasonSignalGood, "the signal is believed"}
	if e.Fresh != Yes {
		fresh = Fault{v1alpha1.ReasonSignalMissing, cmp.Or(e.Message, "there is no reading yet")}
		if e.Fresh == No {
			fresh.Reason = v1alpha1.ReasonSignalStale
		}
		if strings.HasPrefix(string(e.Reason), "Signal") && e.Reason != v1alpha1.ReasonSignalGood {
			fresh.Reason = e.Reason
		}
	}
	d.steady(v1alpha1.ConditionSignalFresh, status(e.Fresh), fresh)
}

func windowStatus(e Energy) metav1.ConditionStatus {
	switch {
	case e.Window == v1alpha1.WindowOpen, e.Window == "" && e.Admit:
		return metav1.ConditionTrue
	case e.Window == v1alpha1.WindowUnknown:
		return metav1.ConditionUnknown
	}
	return metav1.ConditionFalse
}

func energyFault(e Energy) Fault {
	unset := Fault{v1alpha1.ReasonWaitingForEnergy, "waits for cleaner electricity"}
	if e.Admit {
		unset = Fault{v1alpha1.ReasonEnergyFavourable, "its electricity is good enough"}
	}
	return Fault{cmp.Or(e.Reason, unset.Reason), cmp.Or(e.Message, unset.Message)}
}

func (d *decider) showCapacity() {
	yes, no, unknown := metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	show := func(s metav1.ConditionStatus, f Fault) { d.condition(v1alpha1.ConditionCapacityReady, s, f) }
	fault := d.capacityFault()
	if fault != nil && d.begins(v1alpha1.ConditionCapacityReady, fault.Reason) && d.st.Phase != v1alpha1.SiteFailed {
		d.warn(fault.Reason, fault.Message)
	}
	switch {
	case d.st.Phase == v1alpha1.SiteFailed:
		show(no, d.plan.Fault)
	case fault != nil:
		show(no, *fault)
	case !d.nodesKnown():
		show(unknown, Fault{v1alpha1.ReasonClusterUnreachable, "the cluster that has the nodes cannot be reached"})
	case d.st.Phase == v1alpha1.SiteProvisioning:
		show(no, d.plan.Fault)
	case !d.hasNodes() && d.connected() == Yes:
		show(yes, Fault{v1alpha1.ReasonConnected, "spec.nodes is not set; an agent is connected"})
	case !d.hasNodes():
		show(unknown, Fault{v1alpha1.ReasonNoNodes, "spec.nodes is not set; agents are known by their sessions only"})
	case d.enough():
		show(yes, Fault{v1alpha1.ReasonCapacityReady, "at least " + d.needs()})
	case d.underWay():
		show(no, Fault{v1alpha1.ReasonTooFewGPUs, "waits for " + d.needs()})
	case d.st.Phase == v1alpha1.SiteDraining && d.managed():
		show(no, Fault{v1alpha1.ReasonReleasing, "capacity is being given back"})
	case d.w.Nodes.Nodes == 0:
		show(no, Fault{v1alpha1.ReasonCapacityReleased, "nothing is wanted and no nodes are there"})
	default:
		show(no, Fault{v1alpha1.ReasonWaitingForGPUs, "nodes are there without " + d.needs()})
	}
}

func (d *decider) showNodes() {
	show := func(s metav1.ConditionStatus, f Fault) { d.condition(v1alpha1.ConditionNodesHealthy, s, f) }
	if !d.nodesKnown() {
		show(metav1.ConditionUnknown, Fault{v1alpha1.ReasonClusterUnreachable, "the cluster that has the nodes cannot be reached"})
		return
	}
	worst := inventory.Worst(d.w.Nodes.Trouble, d.w.Agents.Trouble)
	switch {
	case worst.Reason != v1alpha1.ReasonHealthy:
		f := Fault(worst)
		if d.begins(v1alpha1.ConditionNodesHealthy, f.Reason) {
			d.warn(f.Reason, f.Message)
		}
		show(metav1.ConditionFalse, f)
	case d.w.Nodes.Nodes == 0:
		show(metav1.ConditionUnknown, Fault{v1alpha1.ReasonNoNodes, "no nodes are seen"})
	default:
		show(metav1.ConditionTrue, Fault{v1alpha1.ReasonHealthy, "nothing is wrong with nodes and agents"})
	}
}

func (d *decider) showAgent() {
	c := d.w.Coordinator
	show := func(s metav1.ConditionStatus, f Fault) { d.condition(v1alpha1.ConditionAgentConnected, s, f) }
	switch {
	case d.w.Federation == nil:
		show(metav1.ConditionUnknown, Fault{v1alpha1.ReasonNotReferenced, "no Federation has the site"})
	case c.Reachable == Unknown:
		show(metav1.ConditionUnknown, Fault{v1alpha1.ReasonCoordinatorStarting, "the coordinator has not answered yet"})
	case c.Reachable == No:
		show(metav1.ConditionUnknown, Fault{v1alpha1.ReasonCoordinatorUnreachable, "the coordinator does not answer"})
	case d.connected() == Yes:
		show(metav1.ConditionTrue, Fault{v1alpha1.ReasonConnected, "the coordinator hears the site"})
	case d.st.Phase == v1alpha1.SiteLost:
		show(metav1.ConditionFalse, Fault{v1alpha1.ReasonHeartbeatMissed, "the coordinator no longer hears the site"})
	default:
		show(metav1.ConditionFalse, Fault{v1alpha1.ReasonNotConnected, "no agent has a session"})
	}
}

func (d *decider) showLink() {
	f := d.w.Federation
	switch {
	case f == nil:
		d.condition(v1alpha1.ConditionLinkEncrypted, metav1.ConditionUnknown, Fault{v1alpha1.ReasonNotReferenced, "no Federation has the site"})
	case d.w.Coordinator.Reachable == Yes && d.w.Coordinator.Link != "":
		d.showLinkAs(d.w.Coordinator.Link)
	case f.Link == v1alpha1.LinkMesh: // nobody is connected: what the Federation says
		d.showLinkAs(v1alpha1.ReasonMeshDeclared)
	default:
		d.showLinkAs(v1alpha1.ReasonMutualTLS)
	}
}

func (d *decider) showDraining() {
	if d.st.Phase == v1alpha1.SiteDraining {
		d.condition(v1alpha1.ConditionDraining, metav1.ConditionTrue, d.plan.Fault)
		return
	}
	d.condition(v1alpha1.ConditionDraining, metav1.ConditionFalse, Fault{v1alpha1.ReasonNotDraining, "nothing leaves"})
}

func (d *decider) showCluster() {
	c := d.w.Cluster
	if !c.Remote {
		return
	}
	f := Fault{v1alpha1.ReasonClusterUnreachable, cmp.Or(c.Message, "the cluster has not answered yet")}
	switch c.Reachable {
	case Yes:
		f = Fault{v1alpha1.ReasonClusterReachable, "the cluster answers"}
	case No:
		if d.begins(v1alpha1.ConditionClusterReachable, f.Reason) {
			d.warn(f.Reason, f.Message)
		}
	}
	d.steady(v1alpha1.ConditionClusterReachable, status(c.Reachable), f)
}

func status(t Tri) metav1.ConditionStatus {
	switch t {
	case Yes:
		return metav1.ConditionTrue
	case No:
		return metav1.ConditionFalse
	}
	return metav1.ConditionUnknown
}
