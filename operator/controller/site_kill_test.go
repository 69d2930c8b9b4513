package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// TestAnOperatorKilledAfterAnyWriteEndsRight kills the operator right after its
// n-th write, for every n of a site's life and death, and starts one that knows
// nothing. Then it kills each operator after its first, second and third write
// until all is done.
func TestAnOperatorKilledAfterAnyWriteEndsRight(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 4
	}
	for _, mode := range []string{"Scale", "NodeLabel"} {
		t.Run(mode, func(t *testing.T) {
			for n, killed := 1, true; killed; n += step {
				t.Run(fmt.Sprintf("once after write %d", n), func(t *testing.T) { killed = liveAndDie(t, mode, n, false) })
			}
			for n := 1; n <= 3; n++ {
				t.Run(fmt.Sprintf("always after %d writes", n), func(t *testing.T) { liveAndDie(t, mode, n, true) })
			}
		})
	}
}

// liveAndDie plays a site's life and deletion; killed says whether an operator
// was killed in it.
func liveAndDie(t *testing.T, mode string, writes int, always bool) (killed bool) {
	g := newRig(t)
	g.writes = writes
	g.restart()
	if !always {
		g.writes = -1
	}
	first := g.life
	want := []string{"label", "seat ADMIT quebec", "seat DRAIN quebec", "unlabel"}
	if mode == "Scale" {
		g.scaled("quebec")
		want = slices.Concat([]string{"scale machines-quebec 2"}, want, []string{"scale machines-quebec 0"})
	} else {
		g.labelled("quebec")
		g.node("quebec", 0)
	}
	g.federation("f", "quebec")
	g.wholeLife("quebec")
	g.wantOrder("quebec", want...)
	s := g.site("quebec")
	if s.Status.EnrolledNodes != 0 || len(s.Finalizers) != 1 {
		t.Errorf("idle with %d enrolled nodes and finalizers %v", s.Status.EnrolledNodes, s.Finalizers)
	}
	g.must(g.e.Client.Delete(t.Context(), s))
	g.until("gone", func() bool { return g.gone("quebec") })
	if r := len(slices.DeleteFunc(g.journal.all(), func(l string) bool { return !strings.HasPrefix(l, "scale ") })); mode == "Scale" && r != 2 {
		t.Errorf("the capacity was moved %d times, want twice: up once and down once", r)
	}
	for _, n := range g.nodes("quebec") {
		if n.Labels[v1alpha1.LabelNodeSite] != "" || n.Labels[v1alpha1.LabelAgent] != "" {
			t.Errorf("node %s keeps %v", n.Name, n.Labels)
		}
	}
	return first.over()
}
