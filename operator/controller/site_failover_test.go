package controller

import (
	"slices"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// counted is a metric's value, or its number of observations, summed over all
// that have these values among their labels.
func (g *rig) counted(name string, values ...string) (n float64) {
	g.t.Helper()
	families, err := g.registry.Gather()
	g.must(err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			has := map[string]bool{}
			for _, l := range m.Label {
				has[l.GetValue()] = true
			}
			if !slices.ContainsFunc(values, func(v string) bool { return !has[v] }) {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}

// lapse lets seconds pass, all sites looked at in each step.
func (g *rig) lapse(d, step time.Duration) {
	g.t.Helper()
	for end := g.now.Add(d); g.now.Before(end); {
		g.now = g.now.Add(min(step, end.Sub(g.now)))
		g.turnWorld()
		g.choose()
		g.must(g.reconcile())
	}
}

func TestCapacityThatDoesNotComeGoesToTheNextSiteByPriority(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec", func(s *v1alpha1.Site) { s.Spec.Priority = 10 })
	g.scaled("atlanta")
	g.boots["quebec"] = false
	f := g.federation("f", "quebec", "atlanta")
	one := int32(1)
	g.edit(f, func() { f.Spec.MaxSites = &one })
	g.energy.set("quebec", true)
	g.energy.set("atlanta", true)
	g.phase("quebec", v1alpha1.SiteProvisioning)
	asked := g.site("quebec").Status.Provisioning
	if asked.AskedAt == nil || asked.Deadline.Sub(asked.AskedAt.Time) != 900*time.Second {
		t.Fatalf("%+v", asked)
	}
	// A new operator each time: the clock is in the status.
	for g.now.Before(asked.Deadline.Add(-time.Second)) {
		g.restart()
		g.lapse(min(120*time.Second, asked.Deadline.Sub(g.now)-time.Second), time.Minute)
		if p := g.site("quebec").Status.Phase; p != v1alpha1.SiteProvisioning {
			t.Fatalf("the site is %s, %s before its deadline", p, asked.Deadline.Sub(g.now))
		}
	}
	if p := g.site("atlanta").Status.Phase; p != v1alpha1.SiteIdle {
		t.Fatalf("the next site is %s before the first has failed", p)
	}
	g.restart()
	g.phase("quebec", v1alpha1.SiteFailed)
	if !g.now.Equal(asked.Deadline.Time) && g.now.Sub(asked.Deadline.Time) > time.Second {
		t.Errorf("failed at %s, the deadline was %s", g.now, asked.Deadline)
	}
	g.phase("atlanta", v1alpha1.SiteActive)
	g.until("given back", func() bool {
		return g.outside("quebec")[len(g.outside("quebec"))-1] == "scale machines-quebec 0"
	})
	if c := conditionOf(g.site("quebec"), v1alpha1.ConditionCapacityReady); c.Reason != string(v1alpha1.ReasonCapacityDeadlineExceeded) {
		t.Errorf("%+v", c)
	}
	if g.events.count("quebec", v1alpha1.ReasonFailover) != 1 {
		t.Errorf("events %q", g.events.all())
	}
	if n := g.counted("girassol_operator_failovers_total", "quebec", string(v1alpha1.ReasonCapacityDeadlineExceeded)); n != 1 {
		t.Errorf("%v failovers are counted", n)
	}
	if n := g.counted("girassol_operator_capacity_wait_seconds", "quebec", "failed"); n != 1 {
		t.Errorf("%v waits for capacity are counted as failed", n)
	}
	// Its machines come late: that changes nothing.
	g.boots["quebec"] = true
	g.lapse(10*time.Second, time.Second)
	if got := g.site("quebec").Status.Phase; got != v1alpha1.SiteFailed {
		t.Errorf("the site that failed is %s", got)
	}
	if got := g.site("atlanta").Status.Phase; got != v1alpha1.SiteActive {
		t.Errorf("the next site is %s", got)
	}
}

func TestASiteThatFailsAgainIsAskedLater(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec", func(s *v1alpha1.Site) {
		s.Spec.Capacity.ProvisioningDeadlineSeconds, s.Spec.Capacity.RetrySeconds, s.Spec.Capacity.RetryMaxSeconds = 60, 100, 350
	})
	g.boots["quebec"] = false
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	for i, want := range []time.Duration{100, 200, 350, 350} {
		g.phase("quebec", v1alpha1.SiteProvisioning)
		g.phase("quebec", v1alpha1.SiteFailed)
		p := g.site("quebec").Status.Provisioning
		if p.Failures != int32(i+1) {
			t.Fatalf("failure %d is counted as %d", i+1, p.Failures)
		}
		if got := p.RetryAt.Sub(g.now); got != want*time.Second {
			t.Errorf("failure %d: asked again in %s, want %s", i+1, got, want*time.Second)
		}
		g.restart()
		g.now = p.RetryAt.Add(-time.Second)
		g.must(g.reconcile())
		if got := g.site("quebec").Status.Phase; got != v1alpha1.SiteFailed {
			t.Fatalf("the site is %s before it has cooled off", got)
		}
		g.now = p.RetryAt.Time
	}
	g.boots["quebec"] = true
	g.phase("quebec", v1alpha1.SiteActive)
	if p := g.site("quebec").Status.Provisioning; p.Failures != 0 || p.RetryAt != nil {
		t.Errorf("after success: %d failures, again at %v", p.Failures, p.RetryAt)
	}
}
