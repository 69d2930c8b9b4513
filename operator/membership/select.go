package membership

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// NewCandidate is what Select needs of a site. A site under way stays willing
// until the engine has decided, as after a restart.
func NewCandidate(s *v1alpha1.Site, e Energy, c Coordinator) Candidate {
	phase := s.Status.Phase
	in := underWay(phase)
	out := Candidate{
		Site: s.Name, Priority: s.Spec.Priority, In: in, Active: phase == v1alpha1.SiteActive,
		Willing: s.DeletionTimestamp.IsZero() && !c.Held && phase != v1alpha1.SiteBlocked &&
			(e.Known && e.Admit || !e.Known && in),
	}
	if p := s.Status.Provisioning; p != nil && p.RetryAt != nil {
		out.RetryAt = p.RetryAt.Time
	}
	return out
}

// Select the sites that may take part: of those that are willing and do not cool
// off, as many as wanted (nil: all sites, willing or not), those with the highest
// priority first; at equal priority those that are in, then by name. An active
// site leaves its place to one of higher priority only when that one is active
// too: capacity that does not come costs nobody a round. So at most wanted sites
// are active at a time, and some more may be on their way.
//
// why has an entry for each site that is not selected.
func Select(candidates []Candidate, wanted *int32, now time.Time) (selected map[string]bool, why map[string]Fault) {
	selected, why = map[string]bool{}, map[string]Fault{}
	if wanted == nil {
		for _, c := range candidates {
			selected[c.Site] = true
		}
		return selected, why
	}
	ranked := ranked(candidates)
	ranked = slices.DeleteFunc(ranked, func(c Candidate) bool {
		f := passedOver(c, *wanted, now)
		if f != nil {
			why[c.Site] = *f
		}
		return f != nil
	})
	places := min(int(max(*wanted, 0)), len(ranked))
	coming := 0
	var names []string
	for _, c := range ranked[:places] {
		selected[c.Site] = true
		names = append(names, c.Site)
		if !c.Active {
			coming++
		}
	}
	slices.Sort(names)
	for _, c := range ranked[places:] {
		if c.Active && coming > 0 {
			selected[c.Site] = true
			coming--
			continue
		}
		why[c.Site] = Fault{v1alpha1.ReasonHigherPriority, "the wanted places are filled by " + shortList(names)}
	}
	return selected, why
}

// passedOver is why a site is not considered; nil if it is.
func passedOver(c Candidate, wanted int32, now time.Time) *Fault {
	switch {
	case wanted <= 0:
		return &Fault{v1alpha1.ReasonScaledToZero, "no sites are wanted: maxSites is 0"}
	case !c.Willing:
		return &Fault{v1alpha1.ReasonNothingWanted, "it could not take part now"}
	case c.RetryAt.After(now):
		return &Fault{v1alpha1.ReasonCoolingOff, "failed before; asked again at " + clock(c.RetryAt)}
	}
	return nil
}

// ranked by who gets a place first.
func ranked(candidates []Candidate) []Candidate {
	out := slices.Clone(candidates)
	slices.SortFunc(out, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), first(a.In, b.In), strings.Compare(a.Site, b.Site))
	})
	return out
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func shortList(names []string) string {
	if n := len(names); n > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), n-3)
	}
	return strings.Join(names, ", ")
}
