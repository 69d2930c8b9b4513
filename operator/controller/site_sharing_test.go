package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
)

func TestNodesOfTwoSitesStayWithTheFirst(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.federation("f", "quebec", "rival")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.energy.set("rival", true)
	g.labelled("rival", func(s *v1alpha1.Site) { s.Spec.Nodes.Selector.MatchLabels = g.nodeSelector("quebec") })
	g.until("named", func() bool {
		return conditionOf(g.site("rival"), v1alpha1.ConditionNodesHealthy).Reason == string(v1alpha1.ReasonNodesOverlap)
	})
	g.lapse(20*time.Second, time.Second)
	if has := g.nodes("quebec")[0].Labels[v1alpha1.LabelNodeSite]; has != resources.EnrolledFor(g.namespace, "quebec") {
		t.Errorf("the node is enrolled for %s", has)
	}
	if p := g.site("quebec").Status.Phase; p != v1alpha1.SiteActive {
		t.Errorf("the first site is %s", p)
	}
	// Each leaves the other's nodes alone when it goes; a label that a site left
	// behind keeps nobody away.
	s := g.site("rival")
	g.must(g.e.Client.Delete(t.Context(), s))
	g.until("gone", func() bool { return g.gone("rival") })
	if has := g.nodes("quebec")[0].Labels[v1alpha1.LabelNodeSite]; has != resources.EnrolledFor(g.namespace, "quebec") {
		t.Errorf("the node is enrolled for %q after the rival went", has)
	}
}

func TestTheLabelOfASiteThatIsNoMoreIsTakenOver(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	n := g.node("quebec", 0)
	n.Labels[v1alpha1.LabelAgent], n.Labels[v1alpha1.LabelNodeSite] = "nvidia", resources.EnrolledFor(g.namespace, "gone")
	g.must(g.e.Client.Update(t.Context(), n))
	g.federation("f", "quebec")
	g.wholeLife("quebec")
	if l := g.nodes("quebec")[0].Labels; l[v1alpha1.LabelNodeSite] != "" {
		t.Errorf("the node keeps %v", l)
	}
}

func TestExactlyOurLabelsAreRemoved(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	n := g.node("quebec", 0)
	n.Labels["team"], n.Labels[v1alpha1.LabelAgent] = "grid", "nvidia" // a person may set the label before us
	g.must(g.e.Client.Update(t.Context(), n, client.FieldOwner("kubectl")))
	g.federation("f", "quebec")
	g.wholeLife("quebec")
	got := g.nodes("quebec")[0].Labels
	if got[v1alpha1.LabelNodeSite] != "" || got["team"] != "grid" || got[v1alpha1.LabelAgent] != "nvidia" || got["kubernetes.io/hostname"] == "" {
		t.Errorf("labels %v", got)
	}
}

func TestALabelThatSomeoneElseCopiedGoesToo(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	n := g.node("quebec", 0)
	n.Labels[v1alpha1.LabelNodeSite] = resources.EnrolledFor(g.namespace, "quebec")
	n.Labels[v1alpha1.LabelAgent] = "nvidia"
	g.must(g.e.Client.Update(t.Context(), n, client.FieldOwner("restore")))
	g.federation("f", "quebec")
	g.until("off", func() bool { return g.nodes("quebec")[0].Labels[v1alpha1.LabelNodeSite] == "" })
}

func TestANodeThatIsNoLongerSelectedIsLetGo(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.node("quebec", 1)
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.until("both", func() bool { return g.site("quebec").Status.EnrolledNodes == 2 })
	n := &g.nodes("quebec")[1]
	n.Labels["test/site"] = "elsewhere"
	g.must(g.e.Client.Update(t.Context(), n))
	g.until("one", func() bool { return g.site("quebec").Status.EnrolledNodes == 1 })
	got := &corev1.Node{}
	g.must(g.e.Client.Get(t.Context(), keyOf(n), got))
	if got.Labels[v1alpha1.LabelAgent] != "" || got.Labels[v1alpha1.LabelNodeSite] != "" {
		t.Errorf("labels %v", got.Labels)
	}
	if p := g.site("quebec").Status.Phase; p != v1alpha1.SiteActive {
		t.Errorf("the site is %s", p)
	}
}

func TestADeletedFederationDrainsItsSiteAndTheYoungerGetsIt(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	older := g.federation("old", "quebec")
	g.until("the older has it", func() bool { return g.site("quebec").Status.Federation == "old" })
	// Creation times are whole seconds; of one age the first by name is the older.
	younger := g.federation("young", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.desk.work("old", "quebec", true)
	// Its object stays for a while, as with foreground deletion.
	g.edit(older, func() { older.Finalizers = []string{"test/keep"} })
	g.must(g.e.Client.Delete(t.Context(), older))
	g.phase("quebec", v1alpha1.SiteDraining)
	g.lapse(10*time.Second, time.Second)
	if s := g.site("quebec"); s.Status.Phase != v1alpha1.SiteDraining || s.Status.Federation != "old" {
		t.Fatalf("%s in %q; the coordinator has not let it go", s.Status.Phase, s.Status.Federation)
	}
	g.desk.work("old", "quebec", false)
	g.sites["quebec"] = "young"
	g.desk.connect("old", "quebec")
	g.until("the younger trains", func() bool {
		s := g.site("quebec")
		return s.Status.Phase == v1alpha1.SiteActive && s.Status.Federation == younger.Name
	})
	var sets int
	for _, l := range g.journal.all() {
		if l == "delete old-quebec-nvidia" {
			sets++
		}
	}
	if sets != 1 {
		t.Errorf("the DaemonSet of the older federation was deleted %d times", sets)
	}
	g.edit(older, func() { older.Finalizers = nil })
}

func TestAFederationThatIsGoneLeavesByDeadline(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	f := g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.desk.reach(false)
	g.must(g.e.Client.Delete(t.Context(), f))
	g.selection.Forget(keyOf(f))
	g.phase("quebec", v1alpha1.SiteDraining)
	g.until("left", func() bool { return g.site("quebec").Status.Federation == "" })
	if l := g.nodes("quebec")[0].Labels; l[v1alpha1.LabelNodeSite] != "" {
		t.Errorf("the node keeps %v", l)
	}
	if n := g.counted("girassol_operator_drains_total", "quebec"); n != 0 {
		t.Errorf("%v drains of a federation that is gone", n)
	}
}

func TestACompletedFederationGivesItsSiteToTheNext(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	older := g.federation("a", "quebec")
	g.federation("b", "quebec")
	g.energy.set("quebec", true)
	g.until("a trains", func() bool {
		s := g.site("quebec")
		return s.Status.Phase == v1alpha1.SiteActive && s.Status.Federation == "a"
	})
	g.must(g.e.Client.Get(t.Context(), keyOf(older), older))
	older.Status.Phase = v1alpha1.FederationCompleted
	g.must(g.e.Client.Status().Update(t.Context(), older))
	g.phase("quebec", v1alpha1.SiteDraining)
	g.sites["quebec"] = "b"
	g.desk.connect("a", "quebec")
	g.until("b trains", func() bool {
		s := g.site("quebec")
		return s.Status.Phase == v1alpha1.SiteActive && s.Status.Federation == "b"
	})
}

func TestASuspendedFederationSleepsAndIsReady(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	f := g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.edit(f, func() { f.Spec.State = v1alpha1.StateSuspended })
	g.phase("quebec", v1alpha1.SiteIdle)
	g.until("given back", func() bool { return len(g.nodes("quebec")) == 0 })
	g.phase("quebec", v1alpha1.SiteIdle)
	if c := conditionOf(g.site("quebec"), v1alpha1.ConditionReady); c.Status != metav1.ConditionTrue || c.Reason != string(v1alpha1.ReasonSuspended) {
		t.Errorf("%+v, want ready and Suspended", c)
	}
}

func TestABadSecretBlocksOneSiteOnly(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.labelled("atlanta")
	g.node("quebec", 0)
	g.node("atlanta", 0)
	g.federation("f", "quebec", "atlanta")
	g.energy.faults["quebec"] = blockedBySecret
	g.energy.set("quebec", true)
	g.energy.set("atlanta", true)
	g.phase("quebec", v1alpha1.SiteBlocked)
	g.phase("atlanta", v1alpha1.SiteActive)
	if s := g.site("quebec"); s.Status.Reason != v1alpha1.ReasonSecretNotFound {
		t.Errorf("blocked for %s", s.Status.Reason)
	}
	g.energy.faults["quebec"] = nil
	g.phase("quebec", v1alpha1.SiteActive)
}
