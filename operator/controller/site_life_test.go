package controller

import (
	"testing"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestAScaledSiteComesAndLeavesInOrder(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	g.federation("f", "quebec")
	g.phase("quebec", v1alpha1.SiteIdle)
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.energy.set("quebec", false)
	g.phase("quebec", v1alpha1.SiteIdle)
	t.Log(g.journal.all(), g.events.all())
}
