package inventory

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const mine = "lab.quebec"

type change func(n *corev1.Node)

// machine is a node that is Ready since long ago.
func machine(name string, changes ...change) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)), Labels: map[string]string{
		"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "topology.kubernetes.io/region": "ca-qc"}}}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("127"), "memory": resource.MustParse("1000Gi"), "pods": resource.MustParse("110")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	for _, c := range changes {
		c(&n)
	}
	return n
}

// nvidia is a node as GPU Operator 24 and GPU Feature Discovery leave it.
func nvidia(name string, changes ...change) corev1.Node {
	return machine(name, append([]change{gpus("nvidia.com/gpu", "8"), labelled(
		"nvidia.com/gpu.present", "true", "nvidia.com/gpu.count", "8", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB",
		"nvidia.com/gpu.memory", "81920", "nvidia.com/mig.capable", "true", "nvidia.com/mig.strategy", "single",
		"nvidia.com/gpu-driver-upgrade-state", "upgrade-done", "feature.node.kubernetes.io/pci-10de.present", "true")}, changes...)...)
}

// amd is a node as the ROCm GPU operator leaves it.
func amd(name string, changes ...change) corev1.Node {
	return machine(name, append([]change{gpus("amd.com/gpu", "8"), labelled(
		"feature.node.kubernetes.io/amd-gpu", "true", "amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram", "192G",
		"amd.com/gpu.cu-count", "304", "amd.com/gpu.family", "AI", "amd.com/gpu.driver-version", "6.10.5",
		"beta.amd.com/gpu.vram.192G", "8")}, changes...)...)
}

func gpus(name, n string) change {
	return func(o *corev1.Node) { o.Status.Allocatable[corev1.ResourceName(name)] = resource.MustParse(n) }
}

func without(name string) change {
	return func(o *corev1.Node) { delete(o.Status.Allocatable, corev1.ResourceName(name)) }
}

func labelled(pairs ...string) change {
	return func(o *corev1.Node) {
		for i := 0; i < len(pairs); i += 2 {
			o.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func unlabelled(o *corev1.Node) {
	for k := range o.Labels {
		if strings.Contains(k, "nvidia") || strings.Contains(k, "amd.com") || strings.Contains(k, "feature") {
			delete(o.Labels, k)
		}
	}
}

func enrolled(vendor string) change {
	return labelled(v1alpha1.LabelAgent, vendor, v1alpha1.LabelNodeSite, mine)
}

func ready(status corev1.ConditionStatus) change {
	return func(o *corev1.Node) {
		o.Status.Conditions[1] = corev1.NodeCondition{Type: corev1.NodeReady, Status: status, Reason: "KubeletNotReady"}
	}
}

func young(o *corev1.Node) { o.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute)) }

func cordoned(o *corev1.Node) {
	o.Spec.Unschedulable = true
	tainted("node.kubernetes.io/unschedulable", "", corev1.TaintEffectNoSchedule)(o)
}

func tainted(key, value string, effect corev1.TaintEffect) change {
	return func(o *corev1.Node) {
		o.Spec.Taints = append(o.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func goneAt(when string) change {
	return func(o *corev1.Node) { o.Annotations = map[string]string{annotationTerminationTime: when} }
}

func site(spec v1alpha1.NodesSpec) *v1alpha1.Site {
	s := &v1alpha1.Site{}
	s.Spec.Nodes = &spec
	return s
}

// short is a summary in one line.
func short(s Summary) string {
	var enrol []string
	for _, n := range s.Enrol {
		enrol = append(enrol, n.Name+"="+string(n.Vendor))
	}
	out := fmt.Sprintf("%d/%d usable, %d enrolled, %d GPUs %s %q, enrol %v, withdraw %v, %s",
		s.Usable, s.Nodes, s.Enrolled, s.GPUs, s.Vendor, s.Model, enrol, s.Withdraw, s.Trouble.Reason)
	if !s.GoneBy.IsZero() {
		out += ", gone by " + s.GoneBy.Format("15:04:05")
	}
	return out
}

func TestSummarize(t *testing.T) {
	whatever := v1alpha1.NodesSpec{}
	for _, c := range []struct {
		name  string
		spec  v1alpha1.NodesSpec
		nodes []corev1.Node
		want  string
	}{
		// GPUs.
		{"no nodes", whatever, nil, `0/0 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], Healthy`},
		{"NVIDIA", whatever, []corev1.Node{nvidia("b"), nvidia("a")}, `2/2 usable, 0 enrolled, 16 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA b=NVIDIA], withdraw [], Healthy`},
		{"AMD", whatever, []corev1.Node{amd("a")}, `1/1 usable, 0 enrolled, 8 GPUs AMD "Instinct-MI300X-OAM", enrol [a=AMD], withdraw [], Healthy`},
		{"labels without allocatable GPUs are not GPUs", whatever, []corev1.Node{nvidia("a", without("nvidia.com/gpu"))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], Healthy`},
		{"a kubelet that starts reports zero", whatever, []corev1.Node{nvidia("a", gpus("nvidia.com/gpu", "0"))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], Healthy`},
		{"a dip does not take the label off", whatever, []corev1.Node{nvidia("a", gpus("nvidia.com/gpu", "0"), enrolled("nvidia"))}, `0/1 usable, 1 enrolled, 0 GPUs  "", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"a dip with labels gone as well", whatever, []corev1.Node{nvidia("a", unlabelled, without("nvidia.com/gpu"), enrolled("nvidia"))}, `0/1 usable, 1 enrolled, 0 GPUs  "", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"labels of discovery may vanish", whatever, []corev1.Node{nvidia("a", unlabelled)}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"gpu.present false with allocatable GPUs: allocatable is the truth", whatever, []corev1.Node{nvidia("a", labelled("nvidia.com/gpu.present", "false"))}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"MIG single: slices under the usual name", whatever, []corev1.Node{nvidia("a", gpus("nvidia.com/gpu", "56"), labelled("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"))},
			`1/1 usable, 0 enrolled, 56 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"MIG mixed: slices by profile", whatever, []corev1.Node{nvidia("a", gpus("nvidia.com/gpu", "6"), gpus("nvidia.com/mig-1g.10gb", "7"), gpus("nvidia.com/mig-3g.40gb", "2"))},
			`1/1 usable, 0 enrolled, 15 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"shared in time", whatever, []corev1.Node{nvidia("a", without("nvidia.com/gpu"), gpus("nvidia.com/gpu.shared", "16"), labelled("nvidia.com/gpu.product", "Tesla-T4-SHARED"))},
			`1/1 usable, 0 enrolled, 16 GPUs NVIDIA "Tesla-T4", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"AMD virtual functions have other labels and no model", whatever, []corev1.Node{amd("a", unlabelled, labelled("feature.node.kubernetes.io/amd-vgpu", "true"))}, `1/1 usable, 0 enrolled, 8 GPUs AMD "", enrol [a=AMD], withdraw [], Healthy`},
		{"AMD virtual functions without any labels", whatever, []corev1.Node{amd("a", unlabelled)}, `1/1 usable, 0 enrolled, 8 GPUs AMD "", enrol [a=AMD], withdraw [], Healthy`},
		{"AMD partitions", whatever, []corev1.Node{amd("a", without("amd.com/gpu"), gpus("amd.com/cpx_nps4", "64"))}, `1/1 usable, 0 enrolled, 64 GPUs AMD "Instinct-MI300X-OAM", enrol [a=AMD], withdraw [], Healthy`},
		{"AMD's older labels have the value in the key", whatever, []corev1.Node{amd("a", unlabelled, labelled("beta.amd.com/gpu.product-name.AMD_Radeon_Pro_W6800", "1", "beta.amd.com/gpu.product-name.AMD_Instinct_MI210", "7"))},
			`1/1 usable, 0 enrolled, 8 GPUs AMD "Instinct-MI210", enrol [a=AMD], withdraw [], Healthy`},
		{"the model of most GPUs", whatever, []corev1.Node{nvidia("a"), nvidia("b", labelled("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")), nvidia("c", labelled("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"))},
			`3/3 usable, 0 enrolled, 24 GPUs NVIDIA "H100-80GB-HBM3", enrol [a=NVIDIA b=NVIDIA c=NVIDIA], withdraw [], Healthy`},
		{"other resources are no GPUs", whatever, []corev1.Node{machine("a", gpus("nvidia.com/hostdev", "8"), gpus("example.com/gpu", "8"), gpus("amd.com/xyz_nps1", "1"), gpus("amd.com/cpx_nps", "1"))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], Healthy`},
		{"CPU", v1alpha1.NodesSpec{Vendor: v1alpha1.VendorCPU}, []corev1.Node{machine("a"), nvidia("b")}, `2/2 usable, 0 enrolled, 0 GPUs CPU "", enrol [a=CPU b=CPU], withdraw [], Healthy`},

		// Vendors.
		{"nodes of two vendors each get their agent", whatever, []corev1.Node{nvidia("a"), amd("b"), amd("c")}, `3/3 usable, 0 enrolled, 24 GPUs AMD "Instinct-MI300X-OAM", enrol [a=NVIDIA b=AMD c=AMD], withdraw [], Healthy`},
		{"one node with both vendors uses the one with more", whatever, []corev1.Node{nvidia("a", gpus("amd.com/gpu", "1"))}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], MixedVendors`},
		{"one node with both vendors uses the one that is wished", v1alpha1.NodesSpec{Vendor: v1alpha1.VendorAMD}, []corev1.Node{nvidia("a", gpus("amd.com/gpu", "1"))}, `1/1 usable, 0 enrolled, 1 GPUs AMD "", enrol [a=AMD], withdraw [], Healthy`},
		{"another vendor than expected", v1alpha1.NodesSpec{Vendor: v1alpha1.VendorAMD}, []corev1.Node{nvidia("a")}, `0/1 usable, 0 enrolled, 0 GPUs AMD "", enrol [], withdraw [], VendorMismatch`},
		{"another vendor is named before its GPUs are allocatable", v1alpha1.NodesSpec{Vendor: v1alpha1.VendorNVIDIA}, []corev1.Node{amd("a", without("amd.com/gpu"))}, `0/1 usable, 0 enrolled, 0 GPUs NVIDIA "", enrol [], withdraw [], VendorMismatch`},
		{"another vendor since it was enrolled is withdrawn", v1alpha1.NodesSpec{Vendor: v1alpha1.VendorAMD}, []corev1.Node{nvidia("a", enrolled("nvidia"))}, `0/1 usable, 1 enrolled, 0 GPUs AMD "", enrol [], withdraw [a], VendorMismatch`},
		{"a node that shows nothing yet is not the wrong vendor", v1alpha1.NodesSpec{Vendor: v1alpha1.VendorAMD}, []corev1.Node{machine("a")}, `0/1 usable, 0 enrolled, 0 GPUs AMD "", enrol [], withdraw [], Healthy`},

		// Loss.
		{"a node that is not heard is lost", whatever, []corev1.Node{nvidia("a", ready(corev1.ConditionUnknown), enrolled("nvidia"), tainted("node.kubernetes.io/unreachable", "", corev1.TaintEffectNoSchedule), tainted("node.kubernetes.io/unreachable", "", corev1.TaintEffectNoExecute))},
			`0/1 usable, 1 enrolled, 0 GPUs  "", enrol [a=NVIDIA], withdraw [], NodeLost`},
		{"a node that is not ready is lost", whatever, []corev1.Node{nvidia("a", ready(corev1.ConditionFalse)), nvidia("b")}, `1/2 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [b=NVIDIA], withdraw [], NodeLost`},
		{"a node that starts is not lost", whatever, []corev1.Node{nvidia("a", ready(corev1.ConditionFalse), young)}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], Healthy`},
		{"a node that was enrolled does not start", whatever, []corev1.Node{nvidia("a", ready(corev1.ConditionFalse), young, enrolled("nvidia"))}, `0/1 usable, 1 enrolled, 0 GPUs  "", enrol [a=NVIDIA], withdraw [], NodeLost`},
		{"a node without conditions is not ready", whatever, []corev1.Node{nvidia("a", func(n *corev1.Node) { n.Status.Conditions = nil })}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], NodeLost`},
		{"a machine that is shut down", whatever, []corev1.Node{nvidia("a", tainted("node.cloudprovider.kubernetes.io/shutdown", "", corev1.TaintEffectNoSchedule))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], NodeLost`},

		// Leaving.
		{"cordoned", whatever, []corev1.Node{nvidia("a", cordoned, enrolled("nvidia")), nvidia("b")}, `1/2 usable, 1 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [b=NVIDIA], withdraw [a], NodeCordoned`},
		{"cordoned, and the site does not care", v1alpha1.NodesSpec{OnCordon: v1alpha1.CordonIgnore}, []corev1.Node{nvidia("a", cordoned, enrolled("nvidia"))}, `1/1 usable, 1 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"a driver upgrade that waits for its turn is told", whatever, []corev1.Node{nvidia("a", labelled("nvidia.com/gpu-driver-upgrade-state", "upgrade-required"))}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], DriverUpgrade`},
		{"a driver upgrade", whatever, []corev1.Node{nvidia("a", labelled("nvidia.com/gpu-driver-upgrade-state", "pod-deletion-required"), enrolled("nvidia"))}, `0/1 usable, 1 enrolled, 0 GPUs  "", enrol [], withdraw [a], DriverUpgrade`},
		{"a driver upgrade that failed", whatever, []corev1.Node{nvidia("a", labelled("nvidia.com/gpu-driver-upgrade-state", "upgrade-failed"))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [a], DriverUpgrade`},
		{"AMD's driver upgrade", whatever, []corev1.Node{amd("a", labelled("operator.amd.com/gpu-driver-upgrade-state", "Upgrade-In-Progress"))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [a], DriverUpgrade`},
		{"AMD's driver upgrade is complete", whatever, []corev1.Node{amd("a", labelled("operator.amd.com/gpu-driver-upgrade-state", "Upgrade-Complete"))}, `1/1 usable, 0 enrolled, 8 GPUs AMD "Instinct-MI300X-OAM", enrol [a=AMD], withdraw [], Healthy`},
		{"Karpenter takes the machine", whatever, []corev1.Node{nvidia("a", tainted("karpenter.sh/disrupted", "", corev1.TaintEffectNoSchedule), goneAt("2026-01-01T00:02:00Z")), nvidia("b", goneAt("2026-01-01T01:01:00+01:00"))},
			`0/2 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [a b], NodeGoing, gone by 00:01:00`},
		{"a time that cannot be read is none", whatever, []corev1.Node{nvidia("a", goneAt("soon"))}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"a spot notice", whatever, []corev1.Node{nvidia("a", tainted("aws-node-termination-handler/spot-itn", "x", corev1.TaintEffectNoSchedule))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [a], NodeGoing`},
		{"the Node is being deleted", whatever, []corev1.Node{nvidia("a", func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: now} })}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [a], NodeGoing`},

		// Taints.
		{"AMD's partitioning drives all away", whatever, []corev1.Node{amd("a", tainted("amd-dcm", "up", corev1.TaintEffectNoExecute))}, `0/1 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [a], NodeTainted`},
		{"an unhealthy GPU is left", whatever, []corev1.Node{amd("a", tainted("amd-gpu-unhealthy", "", corev1.TaintEffectNoSchedule), enrolled("amd"))}, `0/1 usable, 1 enrolled, 0 GPUs  "", enrol [], withdraw [a], NodeTainted`},
		{"a foreign taint keeps new agents away, not those that are there", whatever, []corev1.Node{nvidia("a", tainted("team", "x", corev1.TaintEffectNoSchedule), enrolled("nvidia")), nvidia("b", tainted("team", "x", corev1.TaintEffectNoSchedule))},
			`0/2 usable, 1 enrolled, 0 GPUs  "", enrol [a=NVIDIA], withdraw [], NodeTainted`},
		{"the usual taint of GPU nodes", whatever, []corev1.Node{nvidia("a", tainted("nvidia.com/gpu", "present", corev1.TaintEffectNoSchedule))}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"a polite taint", whatever, []corev1.Node{nvidia("a", tainted("team", "x", corev1.TaintEffectPreferNoSchedule))}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"pressure is tolerated by daemons", whatever, []corev1.Node{nvidia("a", tainted("node.kubernetes.io/disk-pressure", "", corev1.TaintEffectNoSchedule))}, `1/1 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [a=NVIDIA], withdraw [], Healthy`},
		{"a node that is being set up", whatever, []corev1.Node{nvidia("a", tainted("karpenter.sh/unregistered", "", corev1.TaintEffectNoExecute)), nvidia("b", tainted("startup-taint.cluster-autoscaler.kubernetes.io/gpu", "", corev1.TaintEffectNoSchedule))},
			`0/2 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], Healthy`},

		// Sites.
		{"a node of another site is left alone", whatever, []corev1.Node{nvidia("a", labelled(v1alpha1.LabelAgent, "nvidia", v1alpha1.LabelNodeSite, "lab.other")), nvidia("b")}, `1/2 usable, 0 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [b=NVIDIA], withdraw [], NodesOverlap`},
		{"a node that the selector no longer matches is withdrawn", v1alpha1.NodesSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/arch": "arm64"}}},
			[]corev1.Node{nvidia("a", enrolled("nvidia")), nvidia("b"), nvidia("c", labelled("kubernetes.io/arch", "arm64"))}, `1/1 usable, 1 enrolled, 8 GPUs NVIDIA "A100-SXM4-80GB", enrol [c=NVIDIA], withdraw [a], Healthy`},
		{"a selector that cannot be read matches none", v1alpha1.NodesSpec{Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}},
			[]corev1.Node{nvidia("a")}, `0/0 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [], Healthy`},
		{"the worst trouble is told", whatever, []corev1.Node{nvidia("a", cordoned), nvidia("b", ready(corev1.ConditionUnknown)), nvidia("c", tainted("x", "", corev1.TaintEffectNoExecute))}, `0/3 usable, 0 enrolled, 0 GPUs  "", enrol [], withdraw [a c], NodeLost`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Summarize(c.nodes, site(c.spec), mine, now)
			if short(got) != c.want {
				t.Errorf("\n got %s\nwant %s", short(got), c.want)
			}
			if got.Trouble.Message == "" {
				t.Error("trouble without words")
			}
		})
	}
}

func TestTroubleNamesTheNodeAndHowManyOthers(t *testing.T) {
	var nodes []corev1.Node
	for _, n := range []string{"c", "a", "b"} {
		nodes = append(nodes, nvidia(n, ready(corev1.ConditionUnknown)))
	}
	got := Summarize(nodes, site(v1alpha1.NodesSpec{}), mine, now).Trouble.Message
	if want := "node a: its kubelet is not heard (and 2 more)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestVendorsOverrideResourcesAndTolerations(t *testing.T) {
	vendors := []v1alpha1.VendorSpec{{Vendor: v1alpha1.VendorNVIDIA, ResourceName: "example.com/a100", Tolerations: []v1alpha1.Toleration{
		{Key: "team", Operator: "Exists"}, {Key: "reserved", Value: "lab", Effect: "NoExecute"}}}}
	for _, c := range []struct {
		name   string
		node   corev1.Node
		usable int
	}{
		{"a resource of its own name", machine("a", gpus("example.com/a100", "4")), 1},
		{"tolerated by key", nvidia("a", tainted("team", "x", corev1.TaintEffectNoSchedule)), 1},
		{"tolerated by value", nvidia("a", tainted("reserved", "lab", corev1.TaintEffectNoExecute)), 1},
		{"another value", nvidia("a", tainted("reserved", "others", corev1.TaintEffectNoExecute)), 0},
		{"another effect", nvidia("a", tainted("reserved", "lab", corev1.TaintEffectNoSchedule)), 0},
		{"another vendor's", amd("a", tainted("team", "x", corev1.TaintEffectNoSchedule)), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Summarize([]corev1.Node{c.node}, site(v1alpha1.NodesSpec{}), mine, now, vendors...); got.Usable != c.usable {
				t.Errorf("%s", short(got))
			}
		})
	}
}
