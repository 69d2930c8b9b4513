package controller

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// leaving is a federation with an active site that is being deleted.
func leaving(t *testing.T) *bench {
	b := newBench(t)
	b.site("lisboa")
	b.energy.want("lisboa", openWindow)
	b.coordinator.say(v1alpha1.FederationTraining, 3)
	f := b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.Drain.GraceSeconds = 30 }, "lisboa")
	b.siteIs("lisboa", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	b.reconcile("gpt")
	if err := b.env.Client.Delete(context.Background(), f); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheCoordinatorOutlivesItsSites(t *testing.T) {
	b := leaving(t)
	f, result := b.reconcile("gpt")
	if f == nil || !slices.Equal(b.coordinator.pauses, []bool{true}) || b.coordinator.forgotten {
		t.Fatalf("federation %v, pauses %v", f, b.coordinator.pauses)
	}
	b.is(f, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	if Rest(f).Reason != v1alpha1.ReasonDeleting || result.RequeueAfter <= 0 || result.RequeueAfter > 30*time.Second+leaveMargin+time.Minute {
		t.Errorf("rest %v, again after %s", Rest(f), result.RequeueAfter)
	}
	b.siteIs("lisboa", "gpt", v1alpha1.SiteDraining, v1alpha1.ReasonDeleting)
	if f, _ = b.reconcile("gpt"); f == nil {
		t.Fatal("it went while a site drains")
	}
	b.siteIs("lisboa", "", v1alpha1.SiteIdle, v1alpha1.ReasonNotReferenced)
	if f, _ = b.reconcile("gpt"); f != nil || !b.coordinator.forgotten || !b.energy.forgotten {
		t.Errorf("federation %v, forgotten %v and %v", f, b.coordinator.forgotten, b.energy.forgotten)
	}
	b.reconcile("gpt") // what is gone is no error
}

func TestAFederationThatIsGoneLeavesNoFiguresBehind(t *testing.T) {
	b := leaving(t)
	m := b.r.Metrics
	for _, federation := range []string{"gpt", "bert"} {
		m.Failovers.WithLabelValues(b.namespace, federation, "lisboa", string(v1alpha1.ReasonCapacityDeadlineExceeded)).Inc()
		m.Drains.WithLabelValues(b.namespace, federation, "lisboa", string(v1alpha1.ReasonDrained)).Inc()
		m.CoordinatorReachable.WithLabelValues(b.namespace, federation).Set(1)
	}
	b.siteIs("lisboa", "", v1alpha1.SiteIdle, v1alpha1.ReasonNotReferenced)
	if f, _ := b.reconcile("gpt"); f != nil {
		t.Fatal("it is still there")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.Failovers, m.Drains, m.CoordinatorReachable)
	families, err := registry.Gather()
	if err != nil || len(families) != 3 {
		t.Fatalf("%v, %v", families, err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n != 1 {
			t.Errorf("%s has %d figures, want the other federation's only", f.GetName(), n)
		}
	}
}

func TestDeletionEndsThoughASiteNeverLeaves(t *testing.T) {
	b := leaving(t)
	b.coordinator.refuse = errRefused
	b.coordinator.reachable = 0
	f, _ := b.reconcile("gpt")
	b.now = leaveBy(f).Add(-time.Second)
	if f, _ = b.reconcile("gpt"); f == nil {
		t.Fatal("it went before its time")
	}
	b.now = b.now.Add(time.Second)
	if f, _ = b.reconcile("gpt"); f != nil || b.events.count(v1alpha1.ReasonReleaseTimedOut) != 1 {
		t.Errorf("federation %v, events %q", f, b.events.all)
	}
}

func TestAFederationThatNeverRanGoesAtOnce(t *testing.T) {
	b := newBench(t)
	f := b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.Link.CASecret = &v1alpha1.SecretReference{Name: "nowhere"} }, "nobody")
	b.reconcile("gpt")
	if err := b.env.Client.Delete(context.Background(), f); err != nil {
		t.Fatal(err)
	}
	if f, _ := b.reconcile("gpt"); f != nil {
		t.Errorf("it stays: %v", f.Finalizers)
	}
}
