// Package inventory reads nodes: which GPUs they have, whether these can be used
// now and what is wrong with them.
//
// It owns the labels, taints and states of both vendors' operators. It is pure
// and must not know where nodes come from or what is decided by them. What is
// allocatable is the truth; labels only name it and may vanish for a while.
package inventory

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Summary of the nodes of one site.
type Summary struct {
	// Nodes that the selector matches; Usable of them are Ready, not going away and
	// have allocatable GPUs (vendor CPU: are Ready); Enrolled carry our label for
	// this site.
	Nodes, Usable, Enrolled int
	// GPUs allocatable on usable nodes.
	GPUs   int
	Vendor v1alpha1.Vendor
	// Model of most of them, such as A100-SXM4-80GB; empty when no label tells.
	Model string
	// Trouble is the worst of what is wrong, Healthy if nothing is.
	Trouble Trouble
	// Enrol and Withdraw are the names of nodes, sorted: those that may have our
	// label (usable ones, and those that have it and do not go: neither a dip of
	// what is allocatable nor a lost node takes it off) and those that must not
	// (cordoned, tainted, going away, in a driver upgrade).
	Enrol    []Node
	Withdraw []string
	// GoneBy is the earliest time at which a node of the site announced that it
	// goes; zero without one.
	GoneBy time.Time
}

// Node that may be enrolled.
type Node struct {
	Name   string
	Vendor v1alpha1.Vendor
}

// Trouble with nodes or agents.
type Trouble struct {
	Reason  v1alpha1.Reason
	Message string
}

// Summarize the nodes of a site: those that its selector matches, and those that
// have its label though they no longer match. enrolledFor is the value of
// LabelNodeSite on nodes that are enrolled for s; now tells nodes that start from
// nodes that are lost; vendors are the federation's overrides (resource names and
// tolerations), none without.
func Summarize(nodes []corev1.Node, s *v1alpha1.Site, enrolledFor string, now time.Time, vendors ...v1alpha1.VendorSpec) Summary {
	spec := v1alpha1.NodesSpec{}
	if s.Spec.Nodes != nil {
		spec = *s.Spec.Nodes
	}
	selector := selectorOf(s)
	out := Summary{Vendor: spec.Vendor}
	var found troubles
	gpus, byVendor, byModel := count(0), map[v1alpha1.Vendor]count{}, map[string]count{}
	for i := range nodes {
		var n node
		if selector.Matches(labels.Set(nodes[i].Labels)) {
			n = read(&nodes[i], spec, enrolledFor, now, vendors)
			out.Nodes++
		} else {
			n.name, n.enrolled = nodes[i].Name, isEnrolled(&nodes[i], enrolledFor)
			n.going = n.enrolled
		}
		found = append(found, n.troubles...)
		if n.enrolled {
			out.Enrolled++
		}
		if n.usable {
			out.Usable++
			gpus = gpus.plus(n.gpus)
			byVendor[n.vendor] = byVendor[n.vendor].plus(max(n.gpus, 1))
			if n.model != "" {
				byModel[n.model] = byModel[n.model].plus(max(n.gpus, 1))
			}
		}
		if n.usable || n.enrolled && !n.going && n.vendor != "" {
			out.Enrol = append(out.Enrol, Node{Name: n.name, Vendor: n.vendor})
		}
		if n.going {
			out.Withdraw = append(out.Withdraw, n.name)
			if !n.goneBy.IsZero() && (out.GoneBy.IsZero() || n.goneBy.Before(out.GoneBy)) {
				out.GoneBy = n.goneBy
			}
		}
	}
	out.GPUs = int(gpus)
	if out.Vendor == "" {
		out.Vendor = most(byVendor)
	}
	out.Model = most(byModel)
	out.Trouble = found.worst()
	slices.SortFunc(out.Enrol, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(out.Withdraw)
	return out
}

// selectorOf a site; without nodes, or one that cannot be read, it matches none.
func selectorOf(s *v1alpha1.Site) labels.Selector {
	if s.Spec.Nodes == nil {
		return labels.Nothing()
	}
	selector, err := metav1.LabelSelectorAsSelector(&s.Spec.Nodes.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

func isEnrolled(o *corev1.Node, enrolledFor string) bool {
	return enrolledFor != "" && o.Labels[v1alpha1.LabelNodeSite] == enrolledFor && o.Labels[v1alpha1.LabelAgent] != ""
}

// node as it counts for one site.
type node struct {
	name     string
	vendor   v1alpha1.Vendor
	model    string
	gpus     count
	enrolled bool
	// usable: agents may train there now. going: our label must go.
	usable, going bool
	goneBy        time.Time
	troubles      troubles
}

// startup is how long a node that is not Ready yet counts as starting.
const startup = 15 * time.Minute

func read(o *corev1.Node, spec v1alpha1.NodesSpec, enrolledFor string, now time.Time, vendors []v1alpha1.VendorSpec) node {
	n := node{name: o.Name}
	owner := o.Labels[v1alpha1.LabelNodeSite]
	n.enrolled = isEnrolled(o, enrolledFor)
	if owner != "" && owner != enrolledFor && o.Labels[v1alpha1.LabelAgent] != "" {
		n.say(v1alpha1.ReasonNodesOverlap, "enrolled for another site, "+owner+"; let the selectors of the two sites match different nodes")
		return n
	}
	fits := n.readGPUs(o, spec.Vendor, vendors)
	if !fits {
		n.going = n.enrolled
		return n
	}
	ready := n.readReady(o, now)
	n.readLeaving(o, spec)
	free := n.readTaints(o, tolerations(n.vendor, vendors))
	n.usable = ready && free && !n.going && (n.gpus > 0 || n.vendor == v1alpha1.VendorCPU)
	return n
}

// say adds trouble with the node.
func (n *node) say(r v1alpha1.Reason, what string) {
	n.troubles = append(n.troubles, trouble{reason: r, node: n.name, what: what})
}

// readReady says whether the kubelet reports the node as Ready.
func (n *node) readReady(o *corev1.Node, now time.Time) bool {
	status, message := corev1.ConditionStatus(""), "has not reported yet"
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status, message = c.Status, c.Reason
		}
	}
	switch {
	case status == corev1.ConditionTrue:
		return true
	case status == corev1.ConditionUnknown:
		n.say(v1alpha1.ReasonNodeLost, "its kubelet is not heard")
	case n.enrolled || now.Sub(o.CreationTimestamp.Time) >= startup:
		n.say(v1alpha1.ReasonNodeLost, "not ready: "+message)
	}
	return false
}

// readLeaving finds out whether the node goes, by whom and until when.
func (n *node) readLeaving(o *corev1.Node, spec v1alpha1.NodesSpec) {
	if !o.DeletionTimestamp.IsZero() {
		n.going = true
		n.say(v1alpha1.ReasonNodeGoing, "it is being deleted")
	}
	if by, err := time.Parse(time.RFC3339, o.Annotations[annotationTerminationTime]); err == nil {
		n.going, n.goneBy = true, by.UTC()
		n.say(v1alpha1.ReasonNodeGoing, "it is terminated at "+by.UTC().Format(time.RFC3339))
	}
	switch step := upgradeOf(o.Labels); step.state {
	case upgradeQueued:
		n.say(v1alpha1.ReasonDriverUpgrade, "its GPU driver will be upgraded ("+step.label+")")
	case upgradeRuns:
		n.going = true
		n.say(v1alpha1.ReasonDriverUpgrade, "its GPU driver is being upgraded ("+step.label+")")
	}
	if o.Spec.Unschedulable && spec.OnCordon != v1alpha1.CordonIgnore {
		n.going = true
		n.say(v1alpha1.ReasonNodeCordoned, "cordoned; kubectl uncordon brings it back")
	}
}
