package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

var blockedBySecret = &membership.Fault{Reason: v1alpha1.ReasonSecretNotFound, Message: "Secret watttime does not exist: create it"}

// remoteCluster is another cluster that may be cut off.
type remoteCluster struct {
	client client.Client
	gone   bool
}

func (r *remoteCluster) For(context.Context, *v1alpha1.Site) (client.Client, membership.Cluster, *membership.Fault) {
	if r.gone {
		return nil, membership.Cluster{Remote: true, Reachable: membership.No, Message: "no answer in 10s"}, nil
	}
	return r.client, membership.Cluster{Remote: true, Reachable: membership.Yes}, nil
}

func (*remoteCluster) Forget(types.NamespacedName) {}

func inAnotherCluster(s *v1alpha1.Site) {
	s.Spec.Cluster = &v1alpha1.ClusterSpec{KubeconfigSecret: v1alpha1.SecretKeyReference{Name: "north", Key: "value"}}
}

func TestADeletedSiteGivesEverythingBackFirst(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	d := &appsv1.Deployment{}
	g.must(g.e.Client.Get(t.Context(), types.NamespacedName{Namespace: g.namespace, Name: "machines-quebec"}, d))
	one := int32(1)
	d.Spec.Replicas = &one // what was there before us
	g.must(g.e.Client.Update(t.Context(), d))
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.desk.work("f", "quebec", true)
	if a := g.site("quebec").Status.AdoptedReplicas; a == nil || *a != 1 {
		t.Fatalf("adopted replicas %v, want 1", a)
	}
	g.must(g.e.Client.Delete(t.Context(), g.site("quebec")))
	g.phase("quebec", v1alpha1.SiteDraining)
	g.desk.work("f", "quebec", false)
	g.until("gone", func() bool { return g.gone("quebec") })
	got := g.outside("quebec")
	if n := len(got); got[n-3] != "seat DRAIN quebec" || got[n-2] != "unlabel" || got[n-1] != "scale machines-quebec 1" {
		t.Errorf("done %q, want drain, unlabel, and the replicas of before", got)
	}
	if g.events.count("quebec", v1alpha1.ReasonReleaseTimedOut) != 0 {
		t.Errorf("events %q", g.events.all())
	}
	g.must(g.reconcile()) // of a site that is no more
	for _, metric := range []string{"site_phase", "capacity_wait_seconds", "drains_total", "failovers_total"} {
		if n := g.counted("girassol_operator_"+metric, "quebec"); n != 0 {
			t.Errorf("a site that is gone has %v of %s", n, metric)
		}
	}
}

func TestADeletedSiteGoesThoughItsClusterIsGone(t *testing.T) {
	g := newRig(t)
	far := &remoteCluster{}
	g.clusters = far
	g.restart()
	far.client = g.r.Client
	g.scaled("quebec", inAnotherCluster, func(s *v1alpha1.Site) { s.Spec.ReleaseTimeoutSeconds = 120 })
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	if n := g.counted("girassol_operator_cluster_reachable", "quebec"); n != 1 {
		t.Errorf("reachable: %v", n)
	}
	for _, l := range g.journal.all() {
		if strings.Contains(l, "DaemonSet") {
			t.Errorf("agents of another cluster come from the chart there, yet %s", l)
		}
	}
	far.gone = true
	g.lapse(5*time.Second, time.Second)
	s := g.site("quebec")
	if c := conditionOf(s, v1alpha1.ConditionClusterReachable); s.Status.Phase != v1alpha1.SiteActive || c.Status != "False" || s.Status.GPUs == 0 {
		t.Fatalf("%s with %d GPUs, %+v; want it to train on", s.Status.Phase, s.Status.GPUs, c)
	}
	g.now = time.Now().Truncate(time.Second) // the API server stamps the deletion
	g.must(g.e.Client.Delete(t.Context(), s))
	g.must(g.e.Client.Get(t.Context(), keyOf(s), s))
	deadline := s.DeletionTimestamp.Add(120 * time.Second)
	for g.now.Before(deadline) {
		g.must(g.reconcile())
		if g.gone("quebec") {
			t.Fatalf("gone %s before its time limit", deadline.Sub(g.now))
		}
		g.now = g.now.Add(10 * time.Second)
	}
	g.now = deadline
	g.until("gone", func() bool { return g.gone("quebec") })
	if g.now.Sub(deadline) > 2*time.Second {
		t.Errorf("gone %s after its time limit", g.now.Sub(deadline))
	}
	if g.events.count("quebec", v1alpha1.ReasonReleaseTimedOut) != 1 {
		t.Errorf("events %q, want one that says what may be left", g.events.all())
	}
}

func TestASiteOfNoFederationGoesAtOnce(t *testing.T) {
	g := newRig(t)
	s := g.labelled("quebec")
	g.sites["quebec"] = ""
	g.phase("quebec", v1alpha1.SiteIdle)
	if s := g.site("quebec"); len(s.Finalizers) != 0 || s.Status.Reason != v1alpha1.ReasonNotReferenced {
		t.Errorf("%s with finalizers %v", s.Status.Reason, s.Finalizers)
	}
	g.must(g.e.Client.Delete(t.Context(), s))
	if !g.gone("quebec") {
		t.Error("it is still there")
	}
}
