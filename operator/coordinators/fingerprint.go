package coordinators

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// fingerprint is what of a status is news when it changes.
func fingerprint(s *coordinatorv1.FederationStatus) string {
	var b strings.Builder
	version := int64(-1)
	if s.Version != nil {
		version = int64(s.GetVersion())
	}
	reason := s.GetReason()
	if s.GetPhase() == string(v1alpha1.FederationTraining) { // collecting, committing: progress
		reason = ""
	}
	fmt.Fprintf(&b, "%s %s %d %d %d %s\n", s.GetPhase(), reason, version, s.GetRoundsCommitted(),
		s.GetRound().GetLastVoid().GetNumber(), s.GetEvents().GetState())
	for _, site := range s.GetSites() {
		connected, busy, reason := 0, 0, site.GetReason()
		links := map[string]bool{}
		if site.GetPhase() == string(v1alpha1.SiteActive) { // training, ready: progress
			reason = ""
		}
		for _, m := range site.GetMembers() {
			if m.GetConnected() {
				connected++
				links[m.GetLink().GetMode()] = true
			}
			// Work of a site that stays is progress; of one that leaves it is what its
			// leave waits for.
			if site.GetPhase() == string(v1alpha1.SiteDraining) && Busy(m) {
				busy++
			}
		}
		fmt.Fprintf(&b, "%s %s %s %d %d %d %v\n", site.GetName(), site.GetPhase(), reason, site.GetMembership(), connected, busy, slices.Sorted(maps.Keys(links)))
	}
	return b.String()
}

// Busy says whether a member has work in hand that a leave should wait for.
func Busy(m *coordinatorv1.MemberStatus) bool {
	switch m.GetState() {
	case coordinatorv1.MemberState_MEMBER_STATE_TRAINING, coordinatorv1.MemberState_MEMBER_STATE_UPLOADING:
		return m.GetConnected()
	}
	return false
}
