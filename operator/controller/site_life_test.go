package controller

import (
	"context"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// wholeLife lets energy come and go once.
func (g *rig) wholeLife(site string) {
	g.t.Helper()
	g.phase(site, v1alpha1.SiteIdle)
	g.energy.set(site, true)
	g.until(site+" trains", func() bool { return g.site(site).Status.Phase == v1alpha1.SiteActive && g.admitted(site) })
	g.energy.set(site, false)
	g.phase(site, v1alpha1.SiteIdle)
	g.until(site+" released", func() bool {
		p := g.site(site).Status.Provisioning
		return p != nil && p.Wish == v1alpha1.WishRelease && p.State == v1alpha1.ProvisioningDone
	})
}

// outside are the lines of the journal about what is not the operator's own, each
// run of equal ones once.
func (g *rig) outside(site string) []string {
	var out []string
	for _, l := range g.journal.all() {
		switch word, _, _ := strings.Cut(l, " "); word {
		case "scale", "seat", "label", "unlabel":
			if strings.Contains(l, site) && !strings.HasSuffix(l, "(refused)") {
				if word == "label" || word == "unlabel" {
					l = word
				}
				out = append(out, l)
			}
		}
	}
	return slices.Compact(out)
}

func (g *rig) wantOrder(site string, want ...string) {
	g.t.Helper()
	if got := g.outside(site); !slices.Equal(got, want) {
		g.t.Errorf("what was done outside: %q, want %q; all:\n%s", got, want, strings.Join(g.journal.all(), "\n"))
	}
}

func TestAScaledSiteComesAndLeavesInOrder(t *testing.T) {
	for name, build := range map[string]func(*rig) *v1alpha1.Site{
		"a Deployment":                       func(g *rig) *v1alpha1.Site { return g.scaled("quebec") },
		"a MachineDeployment (unstructured)": func(g *rig) *v1alpha1.Site { return g.machines("quebec") },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			build(g)
			g.federation("f", "quebec")
			g.wholeLife("quebec")
			g.wantOrder("quebec", "scale machines-quebec 2", "label", "seat ADMIT quebec", "seat DRAIN quebec", "unlabel", "scale machines-quebec 0")
			if n := len(g.nodes("quebec")); n != 0 {
				t.Errorf("%d nodes are left", n)
			}
			for _, r := range []v1alpha1.Reason{v1alpha1.ReasonCapacityRequested, v1alpha1.ReasonCapacityReady, v1alpha1.ReasonSiteJoined,
				v1alpha1.ReasonSiteDraining, v1alpha1.ReasonSiteLeft, v1alpha1.ReasonCapacityReleased} {
				if n := g.events.count("quebec", r); n != 1 {
					t.Errorf("%d events %s, want 1: %q", n, r, g.events.all())
				}
			}
		})
	}
}

func TestALabelledSiteKeepsItsNodes(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.node("quebec", 1)
	g.federation("f", "quebec")
	g.wholeLife("quebec")
	g.wantOrder("quebec", "label", "seat ADMIT quebec", "seat DRAIN quebec", "unlabel")
	for _, n := range g.nodes("quebec") {
		if n.Labels[v1alpha1.LabelAgent] != "" || n.Labels[v1alpha1.LabelNodeSite] != "" {
			t.Errorf("node %s has still %v", n.Name, n.Labels)
		}
	}
}

func TestASiteWithoutNodesIsKnownByItsSessions(t *testing.T) {
	g := newRig(t)
	g.create(&v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "garage"}})
	g.federation("f", "garage")
	g.phase("garage", v1alpha1.SiteIdle)
	g.sites = map[string]string{"garage": ""} // its agent is the test's
	g.energy.set("garage", true)
	g.phase("garage", v1alpha1.SiteJoining)
	g.desk.connect("f", "garage", "box")
	g.phase("garage", v1alpha1.SiteActive)
	g.energy.set("garage", false)
	g.phase("garage", v1alpha1.SiteIdle)
	g.wantOrder("garage", "seat ADMIT garage", "seat DRAIN garage")
	if s := g.site("garage"); len(s.Finalizers) != 0 {
		t.Errorf("nothing of the site is outside, yet it has %v", s.Finalizers)
	}
}

func TestADaemonSetForEachVendorStaysWhileTheSiteSleeps(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	f := g.federation("f", "quebec")
	sets := func() []appsv1.DaemonSet {
		var out appsv1.DaemonSetList
		g.must(g.e.Client.List(context.Background(), &out, client.InNamespace(g.namespace)))
		return out.Items
	}
	g.phase("quebec", v1alpha1.SiteIdle)
	if n := len(sets()); n != 0 {
		t.Errorf("%d DaemonSets before a node was seen", n)
	}
	g.wholeLife("quebec")
	has := sets()
	if len(has) != 1 || has[0].Name != "f-quebec-nvidia" || !metav1.IsControlledBy(&has[0], g.site("quebec")) {
		t.Fatalf("DaemonSets %+v, want the one of f's Nvidia nodes, owned by the site", has)
	}
	if q := has[0].Spec.Template.Spec.Containers[1].Resources.Limits["nvidia.com/gpu"]; q.Value() != 8 {
		t.Errorf("the trainer asks for %v GPUs, nodes have 8", q.Value())
	}
	g.must(g.e.Client.Delete(context.Background(), f))
	g.until("no DaemonSet", func() bool { return len(sets()) == 0 })
	if s := g.site("quebec"); s.Status.Federation != "" || s.Status.Reason != v1alpha1.ReasonNotReferenced {
		t.Errorf("the site belongs to %q: %s", s.Status.Federation, s.Status.Reason)
	}
}
