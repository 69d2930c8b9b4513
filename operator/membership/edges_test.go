package membership

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

func TestANodeThatGoesTakesNoGraceFromThoseThatStay(t *testing.T) {
	for _, c := range []struct {
		name  string
		stay  []inventory.Node
		grace time.Duration
	}{
		{"others stay", []inventory.Node{{Name: "n", Vendor: v1alpha1.VendorNVIDIA}}, time.Minute},
		{"none stays", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(at(v1alpha1.SiteActive, time.Hour, refuses, func(w *World) {
				w.Nodes.Enrol, w.Nodes.Withdraw = c.stay, []string{"stuck"}
				w.Nodes.GoneBy = midnight.Add(-time.Hour) // a machine that should have ended long ago
			}))
			if d.Status.DrainDeadline == nil || d.Status.DrainDeadline.Sub(midnight) != c.grace {
				t.Errorf("drains by %v, want in %s", d.Status.DrainDeadline, c.grace)
			}
		})
	}
}

func TestADeadlineThatPassedWhileNobodyLookedWaitsForTheFirstLook(t *testing.T) {
	for _, c := range []struct {
		reachable Tri
		phase     v1alpha1.SitePhase
	}{
		{Unknown, v1alpha1.SiteProvisioning},
		{No, v1alpha1.SiteFailed},
		{Yes, v1alpha1.SiteFailed},
	} {
		w := at(v1alpha1.SiteProvisioning, 20*time.Minute, bare, func(w *World) {
			w.Cluster = Cluster{Remote: true, Reachable: c.reachable}
		})
		if d := Decide(w); d.Status.Phase != c.phase {
			t.Errorf("cluster %v: %s (%s: %s), want %s", c.reachable, d.Status.Phase, d.Status.Reason, d.Status.Message, c.phase)
		}
	}
}

func TestARetryIsAWishOfItsOwn(t *testing.T) {
	w := at(v1alpha1.SiteFailed, 5*time.Second, func(w *World) {
		// It is asked again before its agents have ended, so nothing was handed back.
		usable(w)
		w.Nodes.Usable, w.Nodes.GPUs = 0, 0
		w.Site.Spec.Capacity.RetrySeconds = 1
		w.Site.Status.Provisioning = &v1alpha1.ProvisioningStatus{
			Wish: v1alpha1.WishProvision, State: v1alpha1.ProvisioningFailed, Since: *ago(time.Hour), Key: "k", AskedAt: ago(time.Hour),
			Deadline: ago(5 * time.Second), RetryAt: &metav1.Time{Time: midnight}, Failures: 1, Reason: v1alpha1.ReasonCapacityDeadlineExceeded,
		}
	})
	d := Decide(w)
	p := d.Status.Provisioning
	if d.Status.Phase != v1alpha1.SiteProvisioning || p.Key == "k" || !p.Since.Time.Equal(midnight) || p.Failures != 1 {
		t.Errorf("%s (%s): %+v, want a new wish", d.Status.Phase, d.Status.Reason, p)
	}
}

func TestASiteThatIsLostHasATimeOfItsOwn(t *testing.T) {
	for _, c := range []struct {
		since time.Duration
		grace int32
		phase v1alpha1.SitePhase
	}{
		{119 * time.Second, 120, v1alpha1.SiteLost},
		{120 * time.Second, 120, v1alpha1.SiteFailed},
		{899 * time.Second, 0, v1alpha1.SiteLost},
		{900 * time.Second, 0, v1alpha1.SiteFailed},
		{900 * time.Second, 3600, v1alpha1.SiteLost},
	} {
		d := Decide(at(v1alpha1.SiteLost, c.since, silent, func(w *World) { w.Site.Spec.Capacity.LossGraceSeconds = c.grace }))
		if d.Status.Phase != c.phase {
			t.Errorf("lost for %s of %d s: %s, want %s", c.since, c.grace, d.Status.Phase, c.phase)
		}
	}
	d := Decide(at(v1alpha1.SiteProvisioning, 899*time.Second, bare, func(w *World) { w.Site.Spec.Capacity.LossGraceSeconds = 1 }))
	if d.Status.Phase != v1alpha1.SiteProvisioning {
		t.Errorf("a site that comes is %s (%s)", d.Status.Phase, d.Status.Reason)
	}
}

func TestTroubleThatTimeMayEndIsLookedAtAgain(t *testing.T) {
	d := Decide(at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Agents.Again = midnight.Add(5 * time.Minute) }))
	if d.Wake.Sub(midnight) != 5*time.Minute {
		t.Errorf("wakes at %s", d.Wake)
	}
}
