package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/capacity"
	"girassol.dev/operator/inventory"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

// view is what is known of a site at one time, and by whom to act.
type view struct {
	world membership.World
	// known is false while nothing can be decided yet.
	known      bool
	tenure     tenure
	federation types.NamespacedName
	// cluster of the nodes; nil while it cannot be reached.
	cluster client.Client
	// nodes that the selector matches; strays carry our label though it does not.
	nodes, strays []corev1.Node
	state         capacity.State
	// unseen is why the capacity could not be looked at; nil if it could.
	unseen error
	signal *coordinatorv1.Signal
	// seat is what the coordinator says of the site in the status that it sent at
	// saidAt; nil if it does not know the site.
	seat   *coordinatorv1.SiteStatus
	saidAt int64
	// agents that there should be, and DaemonSets that there are.
	agents     []*appsv1ac.DaemonSetApplyConfiguration
	daemonSets []appsv1.DaemonSet
	// refused: the API server does not take one of agents as it is.
	refused bool
}

// look gathers what is known of a site; it changes nothing.
func (r *SiteReconciler) look(ctx context.Context, s *v1alpha1.Site, now time.Time) (*view, error) {
	// Times in a status are whole seconds: with more, what is decided would differ
	// from what is read back.
	v := &view{world: membership.World{Now: now.Truncate(time.Second), Site: s}}
	var federations v1alpha1.FederationList
	if err := r.Client.List(ctx, &federations, client.InNamespace(s.Namespace)); err != nil {
		return nil, err
	}
	v.tenure = tenureOf(s, federations.Items)
	v.federation = types.NamespacedName{Namespace: s.Namespace, Name: v.tenure.name}
	if v.known = r.lookFederation(v); !v.known {
		return v, nil
	}
	r.lookCoordinator(v)
	for _, part := range []func(context.Context, *view) error{r.lookNodes, r.lookAgents} {
		if err := part(ctx, v); err != nil {
			return nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
	}
	r.lookCapacity(ctx, v)
	return v, nil
}

// block keeps the first reason why the spec cannot be acted on.
func (v *view) block(f *membership.Fault) {
	if v.world.Blocked == nil {
		v.world.Blocked = f
	}
}

// lookFederation is false while it is not known whether the site may take part.
func (r *SiteReconciler) lookFederation(v *view) bool {
	s, f := v.world.Site, v.tenure.federation
	if v.tenure.name == "" {
		return true
	}
	known := &membership.Federation{Name: v.tenure.name, Rest: v.tenure.eviction}
	v.world.Federation = known
	if f == nil {
		return true // gone: it rests
	}
	known.Grace = time.Duration(f.Spec.Drain.GraceSeconds) * time.Second
	known.Link = f.Spec.Link.Mode
	if known.Rest == nil {
		known.Rest = Rest(f)
	}
	selected, why, answered := r.Selection.Of(v.federation, s.Name)
	known.Selected, known.NotSelected = selected, why
	v.world.Energy, v.signal = r.Energy.Wish(v.federation, s.Name)
	v.block(r.Energy.SiteFault(v.federation, s.Name))
	switch {
	case !s.DeletionTimestamp.IsZero() || !f.DeletionTimestamp.IsZero():
		return true
	case !answered:
		return false // its federation, or what its coordinator says, has not been looked at yet
	case known.Rest != nil:
		return true // not wanted, whatever the selection says
	}
	return selected || why.Reason != ""
}

// lookCoordinator reads the last that the coordinator said.
func (r *SiteReconciler) lookCoordinator(v *view) {
	if v.tenure.name == "" {
		return
	}
	status, reachable, message := r.Coordinators.Status(v.federation)
	c := &v.world.Coordinator
	c.Reachable, c.Message = reachable, message
	v.saidAt = status.GetNowUnixMs()
	for _, said := range status.GetSites() {
		if said.GetName() != v.world.Site.Name {
			continue
		}
		v.seat = said
		c.Phase, c.Reason = v1alpha1.SitePhase(said.GetPhase()), v1alpha1.Reason(said.GetReason())
		c.Held = isHeld(said)
		for _, m := range said.GetMembers() {
			if !m.GetConnected() {
				continue
			}
			c.Members++
			if l := m.GetLink(); l != nil {
				c.Link = membership.WorseLink(c.Link, membership.LinkReason(l.GetMode(), l.HandshakeAgeSeconds))
			}
			switch m.GetState() {
			case coordinatorv1.MemberState_MEMBER_STATE_TRAINING, coordinatorv1.MemberState_MEMBER_STATE_UPLOADING:
				c.Busy++
			}
		}
	}
}

// isHeld says whether a person drained or excluded the site at the coordinator:
// wishes of people have the reason Requested, which no wish of ours has.
func isHeld(s *coordinatorv1.SiteStatus) bool {
	return s.GetMembership() != coordinatorv1.Membership_MEMBERSHIP_ADMIT && v1alpha1.Reason(s.GetReason()) == v1alpha1.ReasonRequested
}

// lookNodes lists the nodes that the selector matches, and strays: those that carry
// the site's label though it does not.
func (r *SiteReconciler) lookNodes(ctx context.Context, v *view) error {
	s := v.world.Site
	var fault *membership.Fault
	v.cluster, v.world.Cluster, fault = r.Clusters.For(ctx, s)
	v.block(fault)
	mine := resources.EnrolledFor(s.Namespace, s.Name)
	if v.cluster != nil {
		ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
		defer cancel()
		err := v.list(ctx, mine)
		switch {
		case err != nil && v.world.Cluster.Remote:
			// The next probe of the cluster tells; until then nothing is known of it.
			v.cluster, v.nodes, v.strays = nil, nil, nil
			v.world.Cluster.Reachable, v.world.Cluster.Message = membership.No, "its nodes cannot be listed"
			logf.FromContext(ctx).Error(err, "the site's cluster does not answer")
		case err != nil:
			return err
		}
	}
	if s.Spec.Cluster == nil {
		if err := r.unclaim(ctx, v.nodes, mine); err != nil {
			return err
		}
	}
	v.world.Nodes = inventory.Summarize(v.nodes, s, mine, v.world.Now, v.vendors()...)
	v.world.Nodes.Enrolled += len(v.strays)
	return nil
}

func (v *view) list(ctx context.Context, mine string) error {
	selector := labels.Nothing()
	if n := v.world.Site.Spec.Nodes; n != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(&n.Selector); err != nil {
			v.block(&membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: "nodes.selector: " + err.Error()})
			selector = labels.Nothing()
		}
		if key := unmatches(selector); key != "" {
			v.block(&membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: fmt.Sprintf(
				"nodes.selector: %s changes when a node is enrolled, which would then no longer match: select by labels that nodes have before", key)})
			selector = labels.Nothing()
		}
		var selected corev1.NodeList
		if err := v.cluster.List(ctx, &selected, client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return fmt.Errorf("list its nodes: %w", err)
		}
		v.nodes = selected.Items
	}
	var labelled corev1.NodeList
	if err := v.cluster.List(ctx, &labelled, client.MatchingLabels{v1alpha1.LabelNodeSite: mine}); err != nil {
		return fmt.Errorf("list its enrolled nodes: %w", err)
	}
	for _, n := range labelled.Items {
		if !selector.Matches(labels.Set(n.Labels)) {
			v.strays = append(v.strays, n)
		}
	}
	return nil
}

// unmatches names the label by which a selector would no longer match a node that
// it made us enrol: the node would be labelled and let go for ever. That a node
// has our label for agents already may be asked.
func unmatches(s labels.Selector) string {
	requirements, _ := s.Requirements()
	for _, q := range requirements {
		refuses := q.Operator() == selection.NotIn || q.Operator() == selection.DoesNotExist || q.Operator() == selection.NotEquals
		if q.Key() == v1alpha1.LabelNodeSite || q.Key() == v1alpha1.LabelAgent && refuses {
			return q.Key()
		}
	}
	return ""
}

// vendors are the federation's overrides.
func (v *view) vendors() []v1alpha1.VendorSpec {
	if v.tenure.federation == nil {
		return nil
	}
	return v.tenure.federation.Spec.Agent.Vendors
}

// lookAgents reads the agents' pods and DaemonSets; those of another cluster are
// not ours.
func (r *SiteReconciler) lookAgents(ctx context.Context, v *view) error {
	s := v.world.Site
	of := client.MatchingLabels{v1alpha1.LabelSite: s.Name}
	var sets appsv1.DaemonSetList
	if err := r.Client.List(ctx, &sets, client.InNamespace(s.Namespace), of); err != nil {
		return err
	}
	for _, ds := range sets.Items {
		if metav1.IsControlledBy(&ds, s) {
			v.daemonSets = append(v.daemonSets, ds)
		}
	}
	if v.tenure.name != "" {
		of[v1alpha1.LabelFederation] = v.tenure.name
		var pods corev1.PodList
		if err := r.Client.List(ctx, &pods, client.InNamespace(s.Namespace), of); err != nil {
			return err
		}
		a := &v.world.Agents
		a.Pods, a.Ready, a.Trouble, a.Again = inventory.AgentTrouble(v.agentsAmong(pods.Items), v.world.Now)
	}
	agents, fault := r.agentsWanted(ctx, v)
	v.agents = agents
	v.block(fault)
	return nil
}

// agentsAmong are the pods of the site's DaemonSets; others may have the same
// labels. One that is gone leaves pods that still end.
func (v *view) agentsAmong(pods []corev1.Pod) []corev1.Pod {
	var sets []string
	for _, vendor := range []v1alpha1.Vendor{v1alpha1.VendorNVIDIA, v1alpha1.VendorAMD, v1alpha1.VendorCPU} {
		sets = append(sets, resources.AgentName(v.tenure.name, v.world.Site.Name, vendor))
	}
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool {
		by := metav1.GetControllerOf(&p)
		return by == nil || by.APIVersion != appsv1.SchemeGroupVersion.String() || by.Kind != "DaemonSet" || !slices.Contains(sets, by.Name)
	})
}

// lookCapacity asks the keeper how things stand. That it cannot tell holds up
// nothing else: a site leaves its coordinator whatever becomes of its machines.
func (r *SiteReconciler) lookCapacity(ctx context.Context, v *view) {
	v.world.Capacity = membership.Capacity{Managed: true} // and no more is known
	c, ok := r.keeperClient(v)
	if !ok {
		return // Decide goes by the cluster, which cannot be reached
	}
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
	defer cancel()
	state, err := r.Capacity.Look(ctx, c, v.world.Site)
	if err != nil {
		v.unseen = fmt.Errorf("site %s: look at its capacity: %w", v.world.Site.Name, err)
		return
	}
	v.take(state)
}

func (v *view) take(s capacity.State) {
	v.state, v.world.Capacity = s, s.Capacity
}

// keeperClient is by whom capacity is asked, if it can be.
func (r *SiteReconciler) keeperClient(v *view) (client.Client, bool) {
	if r.Capacity.NeedsCluster(v.world.Site) {
		return v.cluster, v.cluster != nil
	}
	return r.Client, true
}
