package controller

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"girassol.dev/operator/membership"
)

// Selection says which sites of each federation may take part. The federation
// controller works it out from the sites' statuses and the energy engine's
// wishes, so that it is the same after a restart; it is in memory only so that a
// site need not look at all others. The zero value is ready for use.
type Selection struct {
	// Changed tells the Sites whose answer changed.
	Changed Fan

	mu     sync.Mutex
	places map[types.NamespacedName]places
}

// places of one federation.
type places struct {
	selected map[string]bool
	why      map[string]membership.Fault
}

// Of says whether a site of a federation may take part and, if not, why. known is
// false until the federation has been looked at since the operator began:
// nothing is to be decided about the site before that; Changed will tell.
func (s *Selection) Of(federation types.NamespacedName, site string) (selected bool, why membership.Fault, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.places[federation]
	if !ok {
		return false, membership.Fault{}, false
	}
	return p.selected[site], p.why[site], true
}

// Set replaces a federation's selection; why has an entry for each site that is
// not selected.
func (s *Selection) Set(federation types.NamespacedName, selected map[string]bool, why map[string]membership.Fault) {
	now := places{selected, why}
	s.mu.Lock()
	before, known := s.places[federation]
	if s.places == nil {
		s.places = make(map[types.NamespacedName]places)
	}
	s.places[federation] = now
	s.mu.Unlock()
	for site := range now.sites(before) {
		if !known || before.selected[site] != now.selected[site] || before.why[site] != now.why[site] {
			s.Changed.Tell(types.NamespacedName{Namespace: federation.Namespace, Name: site})
		}
	}
}

// Forget a federation that is gone.
func (s *Selection) Forget(federation types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.places, federation)
}

// sites of both.
func (p places) sites(q places) map[string]bool {
	all := maps.Clone(p.selected)
	if all == nil {
		all = make(map[string]bool)
	}
	maps.Copy(all, q.selected)
	for _, why := range []map[string]membership.Fault{p.why, q.why} {
		for site := range why {
			all[site] = true
		}
	}
	return all
}
