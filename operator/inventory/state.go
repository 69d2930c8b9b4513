package inventory

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// annotationTerminationTime is when Karpenter ends the machine, RFC 3339.
const annotationTerminationTime = "karpenter.sh/nodeclaim-termination-timestamp"

// labelsUpgrade carry the state of a driver upgrade: the GPU operators of NVIDIA
// (one for each kind of driver) and AMD.
var labelsUpgrade = []string{
	"nvidia.com/gpu-driver-upgrade-state",
	"nvidia.com/vgpu-driver-upgrade-state",
	"operator.amd.com/gpu-driver-upgrade-state",
}

type upgradeState int

const (
	upgradeNone upgradeState = iota
	// upgradeQueued: waits for its turn, which may take hours in a large site.
	upgradeQueued
	upgradeRuns
)

type upgrade struct {
	state upgradeState
	label string
}

// upgradeOf is the furthest upgrade on a node. States that are not known say
// nothing: whoever upgrades cordons the node as well.
func upgradeOf(labels map[string]string) upgrade {
	var out upgrade
	for _, key := range labelsUpgrade {
		if s := upgradeStep(labels[key]); s > out.state {
			out = upgrade{s, key + "=" + labels[key]}
		}
	}
	return out
}

func upgradeStep(value string) upgradeState {
	switch strings.ReplaceAll(strings.ToLower(value), "-", "") {
	case "upgraderequired", "upgradenotstarted":
		return upgradeQueued
	case "cordonrequired", "waitforjobsrequired", "poddeletionrequired", "drainrequired",
		"nodemaintenancerequired", "postmaintenancerequired", "podrestartrequired",
		"validationrequired", "uncordonrequired", "upgradefailed",
		"upgradestarted", "upgradeinprogress", "installinprogress", "rebootinprogress",
		"upgradetimedout", "cordonfailed", "uncordonfailed", "drainfailed", "rebootfailed":
		return upgradeRuns
	}
	return upgradeNone
}

// Keys of taints that are known.
const (
	taintDisrupted    = "karpenter.sh/disrupted"
	taintScaleDown    = "ToBeDeletedByClusterAutoscaler"
	taintSpotNotice   = "aws-node-termination-handler/"
	taintUnhealthyAMD = "amd-gpu-unhealthy"
	taintShutdown     = "node.cloudprovider.kubernetes.io/shutdown"
	taintOutOfService = "node.kubernetes.io/out-of-service"
)

// taintsStarting are there until a node is set up: no trouble, but no agent yet.
var taintsStarting = []string{
	"karpenter.sh/unregistered",
	"node.cloudprovider.kubernetes.io/uninitialized",
	"node.cluster.x-k8s.io/uninitialized",
	"node.kubernetes.io/network-unavailable",
	"startup-taint.cluster-autoscaler.kubernetes.io/",
	"ignore-taint.cluster-autoscaler.kubernetes.io/",
}

// taintsOfKubernetes stand for conditions that are read themselves, or are
// tolerated by every daemon pod.
var taintsOfKubernetes = []string{
	"node.kubernetes.io/not-ready",
	"node.kubernetes.io/unreachable",
	"node.kubernetes.io/unschedulable",
	"node.kubernetes.io/disk-pressure",
	"node.kubernetes.io/memory-pressure",
	"node.kubernetes.io/pid-pressure",
}

// readTaints says whether a new agent may come; what drives agents away makes the
// node go.
func (n *node) readTaints(o *corev1.Node, tolerated []v1alpha1.Toleration) bool {
	free := true
	for _, t := range o.Spec.Taints {
		name := t.Key + ":" + string(t.Effect)
		switch {
		case t.Effect == corev1.TaintEffectPreferNoSchedule || slices.Contains(taintsOfKubernetes, t.Key):
		case t.Key == taintShutdown || t.Key == taintOutOfService:
			free = false
			n.say(v1alpha1.ReasonNodeLost, "its machine is shut down ("+name+")")
		case t.Key == taintDisrupted || t.Key == taintScaleDown || strings.HasPrefix(t.Key, taintSpotNotice):
			n.going = true
			n.say(v1alpha1.ReasonNodeGoing, "its machine is taken away ("+name+")")
		case starting(t.Key):
			free = false
		case tolerates(tolerated, t):
		case t.Effect == corev1.TaintEffectNoExecute || t.Key == taintUnhealthyAMD:
			n.going = true
			n.say(v1alpha1.ReasonNodeTainted, "tainted "+name+", which agents do not tolerate")
		case vendorOfResource(t.Key, nil) != "":
			// Clusters that taint by the resource's name tolerate it for all who ask
			// for the resource.
		default:
			free = false
			n.say(v1alpha1.ReasonNodeTainted, "tainted "+name+"; agent.vendors[].tolerations of the Federation lets agents come")
		}
	}
	return free
}

func starting(key string) bool {
	return slices.ContainsFunc(taintsStarting, func(s string) bool {
		return key == s || strings.HasSuffix(s, "/") && strings.HasPrefix(key, s)
	})
}

// tolerations of the vendor's agents.
func tolerations(v v1alpha1.Vendor, vendors []v1alpha1.VendorSpec) []v1alpha1.Toleration {
	for _, spec := range vendors {
		if spec.Vendor == v {
			return spec.Tolerations
		}
	}
	return nil
}

func tolerates(ts []v1alpha1.Toleration, t corev1.Taint) bool {
	return slices.ContainsFunc(ts, func(o v1alpha1.Toleration) bool {
		return o.Key == t.Key && (o.Effect == "" || o.Effect == string(t.Effect)) &&
			(o.Operator == string(corev1.TolerationOpExists) || o.Value == t.Value)
	})
}

// severity of trouble, worst first.
var severity = []v1alpha1.Reason{
	v1alpha1.ReasonNodeLost,
	v1alpha1.ReasonAgentCrashLoop,
	v1alpha1.ReasonNodeTainted,
	v1alpha1.ReasonNodeGoing,
	v1alpha1.ReasonDriverUpgrade,
	v1alpha1.ReasonNodeCordoned,
	v1alpha1.ReasonInvalidSpec,
	v1alpha1.ReasonAgentPending,
	v1alpha1.ReasonVendorMismatch,
	v1alpha1.ReasonNodesOverlap,
	v1alpha1.ReasonMixedVendors,
}

// Worst of several troubles; Healthy without any.
func Worst(ts ...Trouble) Trouble {
	out := Trouble{Reason: v1alpha1.ReasonHealthy, Message: "nothing is wrong"}
	for _, t := range ts {
		if rank(t.Reason) < rank(out.Reason) {
			out = t
		}
	}
	return out
}

func rank(r v1alpha1.Reason) int {
	if i := slices.Index(severity, r); i >= 0 {
		return i
	}
	return len(severity)
}

type trouble struct {
	reason v1alpha1.Reason
	node   string
	what   string
}

type troubles []trouble

// worst names the worst reason, the first node that has it and how many others.
func (ts troubles) worst() Trouble {
	if len(ts) == 0 {
		return Worst()
	}
	slices.SortFunc(ts, func(a, b trouble) int {
		if d := rank(a.reason) - rank(b.reason); d != 0 {
			return d
		}
		if d := strings.Compare(a.node, b.node); d != 0 {
			return d
		}
		return strings.Compare(a.what, b.what)
	})
	names := map[string]bool{}
	for _, t := range ts {
		if t.reason == ts[0].reason {
			names[t.node] = true
		}
	}
	message := fmt.Sprintf("node %s: %s", ts[0].node, ts[0].what)
	if others := len(names) - 1; others > 0 {
		message += fmt.Sprintf(" (and %d more)", others)
	}
	return Trouble{Reason: ts[0].reason, Message: message}
}
