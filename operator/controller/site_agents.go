package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

// agentsWanted builds the DaemonSets of the site, one for each vendor that its
// nodes have or had: nodes that sleep leave them in place. Agents of another
// cluster come from a chart there.
func (r *SiteReconciler) agentsWanted(ctx context.Context, v *view) ([]*appsv1ac.DaemonSetApplyConfiguration, *membership.Fault) {
	s, f := v.world.Site, v.tenure.federation
	if f == nil || !f.DeletionTimestamp.IsZero() || !s.DeletionTimestamp.IsZero() || s.Spec.Nodes == nil || s.Spec.Cluster != nil {
		return nil, nil
	}
	var out []*appsv1ac.DaemonSetApplyConfiguration
	for _, vendor := range v.vendorsPresent() {
		in := resources.AgentInput{Federation: f, Site: s, Vendor: vendor, Images: r.Images}
		if vendor != v1alpha1.VendorCPU {
			in.Resource, in.GPUs = v.devices(vendor)
			if in.GPUs == 0 {
				continue // none to be seen now: what there is stays as it is
			}
		}
		ds, err := resources.Agent(in)
		if err != nil {
			return nil, &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: fmt.Sprintf("Federation %s: %s", f.Name, err)}
		}
		if by := r.takenBy(ctx, s, *ds.Name); by != "" {
			return nil, &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: fmt.Sprintf(
				"DaemonSet %s belongs to %s: rename the Site or the Federation, because both would have an object of that name", *ds.Name, by)}
		}
		out = append(out, ds)
	}
	return out, nil
}

// takenBy is whose DaemonSet of the name is, if it is not the site's.
func (r *SiteReconciler) takenBy(ctx context.Context, s *v1alpha1.Site, name string) string {
	ds := &appsv1.DaemonSet{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, ds); err != nil {
		return "" // there is none yet, or applying it will tell
	}
	if by := metav1.GetControllerOf(ds); by != nil && by.UID != s.UID {
		return by.Kind + " " + by.Name
	}
	return ""
}

func (v *view) vendorsPresent() []v1alpha1.Vendor {
	var out []v1alpha1.Vendor
	for _, n := range v.world.Nodes.Enrol {
		out = append(out, n.Vendor)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// devices are the GPUs of each node of a vendor: the fewest of them, of the kind
// that most have. While agents are at work they are those that the agents have,
// because a device that fails, or comes back, must not restart all trainers.
func (v *view) devices(vendor v1alpha1.Vendor) (resource string, gpus int32) {
	nodes := map[string]int{}
	fewest := map[string]int32{}
	enrolled := false
	for i := range v.nodes {
		n := &v.nodes[i]
		if !slices.ContainsFunc(v.world.Nodes.Enrol, func(e inventory.Node) bool { return e.Name == n.Name && e.Vendor == vendor }) {
			continue
		}
		enrolled = enrolled || n.Labels[v1alpha1.LabelAgent] == resources.VendorLabel(vendor)
		name, count := inventory.Devices(n, vendor, v.vendors()...)
		if count == 0 {
			continue
		}
		nodes[name]++
		if fewest[name] == 0 || count < fewest[name] {
			fewest[name] = count
		}
	}
	for name, count := range nodes {
		if count > nodes[resource] || count == nodes[resource] && name < resource {
			resource = name
		}
	}
	if enrolled {
		if name, count := v.devicesOfAgents(vendor); count > 0 {
			return name, count
		}
	}
	return resource, fewest[resource]
}

// devicesOfAgents are the GPUs that the present DaemonSet asks for.
func (v *view) devicesOfAgents(vendor v1alpha1.Vendor) (resource string, gpus int32) {
	for _, ds := range v.daemonSets {
		if ds.Labels[v1alpha1.LabelFederation] != v.tenure.name || ds.Labels[v1alpha1.LabelAgent] != resources.VendorLabel(vendor) {
			continue
		}
		for _, c := range ds.Spec.Template.Spec.Containers {
			for name, q := range c.Resources.Limits {
				if inventory.VendorOf(string(name), v.vendors()...) == vendor {
					return string(name), int32(q.Value())
				}
			}
		}
	}
	return "", 0
}

// bringAgents applies the DaemonSets of the federation that has the site and
// removes those of another: a site changes hands only when it rests, so these
// have no pods. One that is refused is trouble with the agents, no error: those
// that run train on, and a site that has none gives its place to the next.
func (r *SiteReconciler) bringAgents(ctx context.Context, v *view) error {
	var failed error
	for _, ds := range v.agents {
		_, err := r.Applier.Apply(ctx, ds)
		if err == nil {
			continue
		}
		refused, err := refusal(err)
		if refused != nil {
			v.refused = true
			v.world.Agents.Trouble = inventory.Worst(v.world.Agents.Trouble, inventory.Trouble(*refused))
		}
		failed = errors.Join(failed, err)
	}
	for i := range v.daemonSets {
		if ds := &v.daemonSets[i]; v.obsolete(ds) {
			_, err := r.Applier.Delete(ctx, ds)
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func (v *view) obsolete(ds *appsv1.DaemonSet) bool {
	if ds.Labels[v1alpha1.LabelFederation] != v.tenure.name {
		return true
	}
	n := v.world.Site.Spec.Nodes
	return n == nil || v.world.Site.Spec.Cluster != nil ||
		n.Vendor != "" && ds.Labels[v1alpha1.LabelAgent] != resources.VendorLabel(n.Vendor)
}
