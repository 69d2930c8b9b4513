package membership

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestSelect(t *testing.T) {
	on := func(site string, change ...func(*Candidate)) Candidate {
		c := Candidate{Site: site, Willing: true}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	priority := func(p int32) func(*Candidate) { return func(c *Candidate) { c.Priority = p } }
	in := func(c *Candidate) { c.In = true }
	active := func(c *Candidate) { c.In, c.Active = true, true }
	unwilling := func(c *Candidate) { c.Willing = false }
	cooling := func(c *Candidate) { c.RetryAt = midnight.Add(time.Minute) }
	number := func(n int32) *int32 { return &n }
	for _, c := range []struct {
		name       string
		candidates []Candidate
		wanted     *int32
		// selected, and the others with their reasons.
		selected string
		why      map[string]v1alpha1.Reason
	}{
		{"all are wanted, willing or not", []Candidate{on("a"), on("b", unwilling), on("c", cooling)}, nil, "a b c", nil},
		{"none is wanted", []Candidate{on("a", active)}, number(0), "", map[string]v1alpha1.Reason{"a": v1alpha1.ReasonScaledToZero}},
		{"the highest priority first", []Candidate{on("a"), on("b", priority(1)), on("c", priority(2))}, number(2), "b c",
			map[string]v1alpha1.Reason{"a": v1alpha1.ReasonHigherPriority}},
		{"by name among equals", []Candidate{on("b"), on("a")}, number(1), "a", map[string]v1alpha1.Reason{"b": v1alpha1.ReasonHigherPriority}},
		{"those in keep their place among equals", []Candidate{on("a"), on("b", in)}, number(1), "b", map[string]v1alpha1.Reason{"a": v1alpha1.ReasonHigherPriority}},
		{"one that is not willing leaves its place", []Candidate{on("a", priority(9), unwilling), on("b")}, number(1), "b",
			map[string]v1alpha1.Reason{"a": v1alpha1.ReasonNothingWanted}},
		{"one that failed gives its place to the next", []Candidate{on("a", priority(9), cooling), on("b")}, number(1), "b",
			map[string]v1alpha1.Reason{"a": v1alpha1.ReasonCoolingOff}},
		{"an active site stays until the higher one is active", []Candidate{on("a", priority(9), in), on("b", active)}, number(1), "a b", nil},
		{"and leaves then", []Candidate{on("a", priority(9), active), on("b", active)}, number(1), "a",
			map[string]v1alpha1.Reason{"b": v1alpha1.ReasonHigherPriority}},
		{"one that is only on its way leaves at once", []Candidate{on("a", priority(9)), on("b", in)}, number(1), "a",
			map[string]v1alpha1.Reason{"b": v1alpha1.ReasonHigherPriority}},
		{"as many stay as are on their way", []Candidate{on("a", priority(9)), on("b", active), on("c", active, priority(1))}, number(2), "a b c", nil},
		{"fewer wanted than active: the lowest leaves", []Candidate{on("a", active), on("b", active, priority(1))}, number(1), "b",
			map[string]v1alpha1.Reason{"a": v1alpha1.ReasonHigherPriority}},
	} {
		t.Run(c.name, func(t *testing.T) {
			selected, why := Select(c.candidates, c.wanted, midnight)
			var names []string
			for n, yes := range selected {
				if yes {
					names = append(names, n)
				}
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != c.selected {
				t.Errorf("selected %q, want %q", got, c.selected)
			}
			if len(why) != len(c.why) {
				t.Errorf("why %v, want %v", why, c.why)
			}
			for n, r := range c.why {
				if why[n].Reason != r || why[n].Message == "" {
					t.Errorf("why %s: %+v, want %s", n, why[n], r)
				}
			}
		})
	}
}

func TestSelectionOfAnyCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var cs []Candidate
		for i := range rapid.IntRange(0, 8).Draw(t, "sites") {
			c := Candidate{Site: string(rune('a' + i)), Priority: int32(rapid.IntRange(-1, 1).Draw(t, "priority")), Willing: drawBool(t, "willing"), In: drawBool(t, "in")}
			c.Active = c.In && drawBool(t, "active")
			if drawBool(t, "cooling") {
				c.RetryAt = midnight.Add(time.Second)
			}
			cs = append(cs, c)
		}
		wanted := int32(rapid.IntRange(0, 9).Draw(t, "wanted"))
		selected, why := Select(cs, &wanted, midnight)
		active, coming, eligible := 0, 0, 0
		for _, c := range cs {
			could := wanted > 0 && c.Willing && !c.RetryAt.After(midnight)
			if could {
				eligible++
			}
			_, told := why[c.Site]
			if selected[c.Site] == told || selected[c.Site] && !could {
				t.Fatalf("%+v: selected %t, told why %t", c, selected[c.Site], told)
			}
			if selected[c.Site] && c.Active {
				active++
			} else if selected[c.Site] {
				coming++
			}
		}
		if active > int(wanted) || coming > int(wanted) || active+coming < min(int(wanted), eligible) {
			t.Fatalf("%d active and %d coming of %d eligible, %d wanted", active, coming, eligible, wanted)
		}
		slices.Reverse(cs)
		if again, _ := Select(cs, &wanted, midnight); !slices.Equal(sorted(again), sorted(selected)) {
			t.Fatalf("order matters: %v and %v", again, selected)
		}
	})
}

func sorted(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func TestCandidates(t *testing.T) {
	known := Energy{Known: true, Admit: true}
	for _, c := range []struct {
		name                string
		w                   World
		willing, in, active bool
	}{
		{"idle and wanted", at(v1alpha1.SiteIdle, time.Hour), true, false, false},
		{"idle before the first decision about energy", at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Energy = Energy{} }), false, false, false},
		{"active before the first decision about energy", at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Energy = Energy{} }), true, true, true},
		{"active and no longer wanted", at(v1alpha1.SiteActive, time.Hour, refuses), false, true, true},
		{"lost keeps its place", at(v1alpha1.SiteLost, time.Hour), true, true, false},
		{"draining has none", at(v1alpha1.SiteDraining, time.Hour), true, false, false},
		{"held by a person", at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Coordinator.Held = true }), false, true, true},
		{"blocked", at(v1alpha1.SiteBlocked, time.Hour), false, false, false},
		{"deleted", at(v1alpha1.SiteActive, time.Hour, deletes(0)), false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := NewCandidate(c.w.Site, c.w.Energy, c.w.Coordinator)
			if got.Willing != c.willing || got.In != c.in || got.Active != c.active {
				t.Errorf("%+v", got)
			}
		})
	}
	w := at(v1alpha1.SiteFailed, time.Minute, func(w *World) { w.Site.Status.Provisioning.RetryAt = ago(-time.Minute) })
	if got := NewCandidate(w.Site, known, Coordinator{}); !got.RetryAt.Equal(midnight.Add(time.Minute)) {
		t.Errorf("%+v", got)
	}
}
