package controller

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
)

// pod of a site's agent on a node, as a DaemonSet would make it.
func (g *rig) pod(federation, site string, n *corev1.Node, status corev1.PodStatus) *corev1.Pod {
	g.t.Helper()
	ds := &appsv1.DaemonSet{}
	g.must(g.e.Client.Get(g.t.Context(), types.NamespacedName{Namespace: g.namespace, Name: resources.AgentName(federation, site, v1alpha1.VendorNVIDIA)}, ds))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "agent-" + n.Name, Labels: resources.AgentLabels(federation, site, v1alpha1.VendorNVIDIA),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}},
		Spec: corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "agent", Image: "a"}}},
	}
	g.create(p)
	p.Status = status
	g.must(g.e.Client.Status().Update(g.t.Context(), p))
	return p
}

func TestTroubleWithNodesAndAgentsIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil  func(g *rig, n *corev1.Node)
		reason v1alpha1.Reason
		// leaves: the node must not train on.
		leaves bool
	}{
		"a node is lost": {func(g *rig, n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}}
			g.must(g.e.Client.Status().Update(t.Context(), n))
		}, v1alpha1.ReasonNodeLost, false},
		"cordoned": {func(g *rig, n *corev1.Node) {
			n.Spec.Unschedulable = true
			g.must(g.e.Client.Update(t.Context(), n))
		}, v1alpha1.ReasonNodeCordoned, true},
		"a driver upgrade is due": {func(g *rig, n *corev1.Node) {
			n.Labels["nvidia.com/gpu-driver-upgrade-state"] = "upgrade-required"
			g.must(g.e.Client.Update(t.Context(), n))
		}, v1alpha1.ReasonDriverUpgrade, false},
		"a driver upgrade runs": {func(g *rig, n *corev1.Node) {
			n.Labels["nvidia.com/gpu-driver-upgrade-state"] = "pod-deletion-required"
			g.must(g.e.Client.Update(t.Context(), n))
		}, v1alpha1.ReasonDriverUpgrade, true},
		"a foreign taint evicts": {func(g *rig, n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "amd-dcm", Value: "up", Effect: corev1.TaintEffectNoExecute})
			g.must(g.e.Client.Update(t.Context(), n))
		}, v1alpha1.ReasonNodeTainted, true},
		"an agent crashes": {func(g *rig, n *corev1.Node) {
			g.pod("f", "quebec", n, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "trainer", RestartCount: 7,
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}},
			}}})
		}, v1alpha1.ReasonAgentCrashLoop, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.labelled("quebec")
			n := g.node("quebec", 0)
			g.federation("f", "quebec")
			g.energy.set("quebec", true)
			g.phase("quebec", v1alpha1.SiteActive)
			if c := conditionOf(g.site("quebec"), v1alpha1.ConditionNodesHealthy); c.Status != metav1.ConditionTrue {
				t.Fatalf("before: %+v", c)
			}
			g.must(g.e.Client.Get(t.Context(), keyOf(n), n))
			tc.spoil(g, n)
			g.until("named", func() bool {
				return conditionOf(g.site("quebec"), v1alpha1.ConditionNodesHealthy).Reason == string(tc.reason)
			})
			if c := conditionOf(g.site("quebec"), v1alpha1.ConditionNodesHealthy); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, g.namespace) {
				t.Errorf("%+v, want False and a message that names the node", c)
			}
			if g.events.count("quebec", tc.reason) != 1 {
				t.Errorf("events %q, want one %s", g.events.all(), tc.reason)
			}
			if !tc.leaves {
				for range 5 {
					g.now = g.now.Add(time.Second)
					g.turnWorld()
					g.must(g.reconcile())
				}
				if p := g.site("quebec").Status.Phase; p != v1alpha1.SiteActive {
					t.Errorf("the site is %s, the session still lives", p)
				}
				return
			}
			g.until("the node is left alone", func() bool { return g.nodes("quebec")[0].Labels[v1alpha1.LabelNodeSite] == "" })
			if got := g.outside("quebec"); got[len(got)-2] != "seat DRAIN quebec" {
				t.Errorf("done %q, want the coordinator's drain before the label", got)
			}
		})
	}
}

func TestPodsThatOnlyCopyTheLabelsOfAgentsAreNone(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	n := g.node("quebec", 0)
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	agent := g.pod("f", "quebec", n, corev1.PodStatus{Phase: corev1.PodRunning})
	elsewhere := agent.OwnerReferences[0]
	elsewhere.Name = "shell"
	for name, owners := range map[string][]metav1.OwnerReference{"alone": nil, "of-another": {elsewhere}} {
		g.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Labels: agent.Labels, OwnerReferences: owners},
			Spec:       corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "agent", Image: "a"}}},
		})
	}
	g.energy.set("quebec", false)
	unlabelled := func() bool { return g.nodes("quebec")[0].Labels[v1alpha1.LabelNodeSite] == "" }
	g.until("the label is off", unlabelled)
	since := g.now
	g.lapse(5*time.Second, time.Second)
	if p := g.site("quebec").Status.Phase; p != v1alpha1.SiteDraining {
		t.Errorf("%s while an agent still ends", p)
	}
	now := int64(0)
	g.must(g.e.Client.Delete(t.Context(), agent, &client.DeleteOptions{GracePeriodSeconds: &now}))
	g.phase("quebec", v1alpha1.SiteIdle)
	if d := g.now.Sub(since); d > 20*time.Second {
		t.Errorf("rests %s after the label went: waited for pods that are no agents", d)
	}
}

func TestALostSiteKeepsItsNodesForAWhile(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.sites = map[string]string{"quebec": "nobody"} // its agents are cut off
	g.desk.connect("f", "quebec")
	g.phase("quebec", v1alpha1.SiteLost)
	if c := conditionOf(g.site("quebec"), v1alpha1.ConditionAgentConnected); c.Status != metav1.ConditionFalse || c.Reason != string(v1alpha1.ReasonHeartbeatMissed) {
		t.Errorf("%+v", c)
	}
	before := len(g.outside("quebec"))
	for range 20 {
		g.now = g.now.Add(10 * time.Second)
		g.must(g.reconcile())
	}
	if got := g.outside("quebec"); len(got) != before {
		t.Errorf("a lost site was touched: %q", got)
	}
	g.sites = map[string]string{"quebec": "f"}
	g.phase("quebec", v1alpha1.SiteActive)
}

func TestACoordinatorThatCannotBeReachedIsNotALostSite(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.desk.work("f", "quebec", true)
	g.desk.reach(false)
	for range 5 {
		g.now = g.now.Add(time.Hour)
		g.must(g.reconcile())
	}
	s := g.site("quebec")
	if c := conditionOf(s, v1alpha1.ConditionAgentConnected); s.Status.Phase != v1alpha1.SiteActive || c.Status != metav1.ConditionUnknown || c.Reason != string(v1alpha1.ReasonCoordinatorUnreachable) {
		t.Errorf("%s, %+v; want Active and Unknown", s.Status.Phase, c)
	}
	// It leaves by its deadline without the coordinator, no earlier.
	g.energy.set("quebec", false)
	g.phase("quebec", v1alpha1.SiteDraining)
	deadline := g.site("quebec").Status.DrainDeadline.Time
	if want := g.now.Add(time.Minute); !deadline.Equal(want) {
		t.Errorf("drains until %s, want %s", deadline, want)
	}
	g.now = deadline.Add(-time.Second)
	g.must(g.reconcile())
	if g.nodes("quebec")[0].Labels[v1alpha1.LabelAgent] == "" {
		t.Error("the label is off before the deadline")
	}
	g.now = deadline
	g.must(g.reconcile())
	if g.nodes("quebec")[0].Labels[v1alpha1.LabelAgent] != "" {
		t.Error("the label is on after the deadline")
	}
	if g.events.count("quebec", v1alpha1.ReasonDrainTimeout) != 1 {
		t.Errorf("events %q", g.events.all())
	}
}
