package churn

import (
	"context"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
)

// killOperator is kill -9, and starts another.
func (r *rig) killOperator() {
	r.t.Helper()
	r.operator.Kill()
	r.startOperator()
}

// The operator killed in the middle of each transition and started again ends
// where it would have, with the deadlines that it had.
func TestTheOperatorKilledInEachTransitionGoesOnWithItsDeadlines(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{driver: 3 * time.Second, edit: func(f *v1alpha1.Federation, sites map[string]*v1alpha1.Site) {
		f.Spec.Rounds.TrainSeconds, f.Spec.Rounds.LocalSteps = 3, 0 // so that there is something to drain
	}})

	r.until("asked for machines", func() bool {
		return r.replicas() == 2 && r.site(quebec).Status.Provisioning != nil && r.site(quebec).Status.Provisioning.AskedAt != nil
	})
	before := r.site(quebec).Status.Provisioning
	r.killOperator()
	r.until("enrolled quebec's nodes", func() bool { return len(r.enrolled()) == 4 })
	if now := r.site(quebec).Status.Provisioning; now.Key != before.Key || !now.AskedAt.Equal(before.AskedAt) || !now.Deadline.Equal(before.Deadline) {
		t.Errorf("the wish was %+v, after a restart it is %+v", before, now)
	}

	r.killOperator() // labels are on, agents are coming
	r.untilPhase(quebec, v1alpha1.SiteActive)
	r.untilTrained(quebec, atlanta)

	r.override(quebec, drainNow())
	draining := r.untilPhase(quebec, v1alpha1.SiteDraining, v1alpha1.SiteIdle)
	r.killOperator()
	r.until("released quebec", func() bool { return r.site(quebec).Status.Phase == v1alpha1.SiteIdle && r.replicas() == 0 })
	for _, s := range r.watch.of(quebec) {
		if by := s.site.Status.DrainDeadline; s.phase() == v1alpha1.SiteDraining && draining.Status.DrainDeadline != nil && !by.Equal(draining.Status.DrainDeadline) {
			t.Errorf("the drain had to end by %s, after a restart by %s", draining.Status.DrainDeadline, by)
		}
	}
	r.until("took the labels off", func() bool { return len(r.enrolled()) == 2 })
	if r.watch.had(atlanta, func(s seen) bool {
		return slices.Contains([]v1alpha1.SitePhase{v1alpha1.SiteLost, v1alpha1.SiteFailed, v1alpha1.SiteDraining}, s.phase())
	}) {
		t.Errorf("atlanta was disturbed:\n%s", r.watch)
	}
	r.untilTrained(atlanta)

	r.override(quebec, nil)
	r.untilPhase(quebec, v1alpha1.SiteActive)
	r.untilTrained(quebec)
	r.remove()
	manifests := r.checkCommits()
	r.checkUpdates(manifests, 0)
	r.checkReplicas(manifests)
	r.checkEndings()
}

// Without heartbeat a node is lost, though its DaemonSet says 0 of 0 and its pod
// that it runs; the agent, still there, trains on. Without power the site is lost;
// nothing is taken from it, and it comes back.
func TestASiteWithoutPowerIsLostAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.untilPhase(quebec, v1alpha1.SiteActive)
	r.untilPhase(atlanta, v1alpha1.SiteActive)
	r.untilTrained(quebec, atlanta)

	r.power.Off()
	r.until("said that atlanta's nodes are lost", func() bool {
		return r.watch.had(atlanta, func(s seen) bool {
			return s.condition(v1alpha1.ConditionNodesHealthy) == "False/"+string(v1alpha1.ReasonNodeLost)
		})
	})
	r.untilTrained(atlanta) // the agent wins: it is still heard
	for _, node := range r.atlantaNodes() {
		r.kubelet.PowerOff(node)
	}
	r.untilPhase(atlanta, v1alpha1.SiteLost)
	if n := r.enrolled(); len(n) != 4 {
		t.Errorf("a lost site keeps its labels, for it may be a tunnel: nodes %v are enrolled", n)
	}
	r.untilTrained(quebec)

	r.power.On()
	for _, node := range r.atlantaNodes() {
		r.kubelet.PowerOn(node)
	}
	r.untilPhase(atlanta, v1alpha1.SiteActive)
	r.untilTrained(quebec, atlanta)
	if r.watch.had(quebec, func(s seen) bool {
		return slices.Contains([]v1alpha1.SitePhase{v1alpha1.SiteLost, v1alpha1.SiteFailed, v1alpha1.SiteDraining}, s.phase())
	}) {
		t.Errorf("quebec was disturbed:\n%s", r.watch)
	}
	r.remove()
	manifests := r.checkCommits()
	r.checkUpdates(manifests, 0)
	r.checkReplicas(manifests)
}

// A coordinator that is killed, with its process and with its pod, goes on where
// it was: at most the round in flight is lost.
func TestAKilledCoordinatorLosesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	before := r.untilTrained(quebec, atlanta)
	pod := resources.CoordinatorName(federationName) + "-0"
	r.kubelet.Kill(pod, "coordinator")
	after := r.untilTrained(quebec, atlanta)
	if after.GetRoundsCommitted() < before.GetRoundsCommitted() || after.GetVersion() <= before.GetVersion() {
		t.Errorf("version %d after %d rounds, before it was killed %d after %d", after.GetVersion(), after.GetRoundsCommitted(), before.GetVersion(), before.GetRoundsCommitted())
	}
	// As after a node that is gone for good: a person removes the pod by force, the
	// StatefulSet makes another.
	old := r.pods(resources.ComponentCoordinator)[0]
	if err := r.e.Client.Delete(context.Background(), &old, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	r.until("had another pod", func() bool {
		p := r.pods(resources.ComponentCoordinator)
		return len(p) == 1 && p[0].UID != old.UID
	})
	last := r.untilTrained(quebec, atlanta)
	if last.GetVersion() <= after.GetVersion() {
		t.Errorf("version %d after %d", last.GetVersion(), after.GetVersion())
	}
	for _, site := range []string{quebec, atlanta} {
		if r.watch.had(site, func(s seen) bool { return s.phase() == v1alpha1.SiteFailed || s.phase() == v1alpha1.SiteDraining }) {
			t.Errorf("%s was drained or failed because its coordinator was away:\n%s", site, r.watch)
		}
	}
	r.remove()
	manifests := r.checkCommits()
	r.checkUpdates(manifests, 2)
	r.checkReplicas(manifests)
}

// One place is wanted and the site of higher priority does not get its GPUs in
// time: its capacity is handed back, the next site is asked and keeps the place.
func TestGPUsThatComeTooLateFailOverToTheNextSite(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{elect: true, driver: time.Hour, edit: func(f *v1alpha1.Federation, sites map[string]*v1alpha1.Site) {
		one := int32(1)
		f.Spec.MaxSites = &one
		sites[quebec].Spec.Capacity.ProvisioningDeadlineSeconds = 8
		sites[quebec].Spec.Capacity.RetrySeconds = 10
	}})
	r.until("asked quebec first", func() bool { return r.replicas() == 2 })
	if r.watch.had(atlanta, func(s seen) bool { return s.phase() == v1alpha1.SiteActive }) {
		t.Error("atlanta was asked at the same time")
	}
	r.until("gave quebec up", func() bool {
		return r.watch.had(quebec, func(s seen) bool {
			return s.condition(v1alpha1.ConditionCapacityReady) == "False/"+string(v1alpha1.ReasonCapacityDeadlineExceeded)
		})
	})
	r.untilPhase(atlanta, v1alpha1.SiteActive)
	r.untilTrained(atlanta)
	r.until("handed the machines back", func() bool { return r.replicas() == 0 })
	r.until("told of it", func() bool {
		events := &corev1.EventList{}
		if r.e.Client.List(context.Background(), events, client.InNamespace(r.ns)) != nil {
			return false
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == string(v1alpha1.ReasonFailover) })
	})
	// The first site's machines work again; the second one keeps its place until it
	// leaves.
	r.machines.SetDriver(0)
	r.untilTrained(atlanta)
	retry := r.site(quebec).Status.Provisioning.RetryAt
	if retry == nil {
		t.Fatal("quebec is never asked again")
	}
	r.alive(retry.Time)
	r.untilTrained(atlanta)
	if p := r.site(quebec).Status.Phase; p == v1alpha1.SiteActive {
		t.Errorf("quebec is %s though the place is taken", p)
	}
	r.override(atlanta, drainNow())
	r.untilPhase(quebec, v1alpha1.SiteActive)
	r.untilTrained(quebec)
	r.remove()
	r.checkCommits()
}
