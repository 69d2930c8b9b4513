package statusview

import (
	"fmt"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Quarantine says why a site's updates are refused and how it ends; empty for a
// site that is in none.
func Quarantine(s *coordinatorv1.FederationStatus, site *coordinatorv1.SiteStatus) string {
	q := site.GetQuarantine()
	if q == nil {
		return ""
	}
	text := fmt.Sprintf("in quarantine until round %d", q.GetUntilRound())
	if now := s.GetRound().GetNumber(); now > 0 {
		text += fmt.Sprintf(" (now %d)", now)
	}
	if m := clean(q.GetMessage()); m != "" {
		text += ": " + m
	}
	return text
}
