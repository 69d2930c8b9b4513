package statusview

import (
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func TestAQuarantineIsShownWithItsEnd(t *testing.T) {
	free := &coordinatorv1.FederationStatus{Federation: "fed", Round: &coordinatorv1.RoundStatus{Number: 7},
		Sites: []*coordinatorv1.SiteStatus{{Name: "porto", Phase: "Active", Reason: "Training"}}}
	shut := &coordinatorv1.FederationStatus{Federation: "fed", Round: &coordinatorv1.RoundStatus{Number: 7},
		Sites: []*coordinatorv1.SiteStatus{{Name: "porto", Phase: "Active", Reason: "Training",
			Quarantine: &coordinatorv1.Quarantine{Reason: "NormTooLarge", Message: "norm 1e4\x1b[2J", UntilRound: 12}}}}
	var b strings.Builder
	writeSites(&b, shut, 200)
	const want = "in quarantine until round 12 (now 7): norm 1e4"
	if !strings.Contains(b.String(), want) || !strings.Contains(b.String(), "NormTooLarge") || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", b.String())
	}
	if lines := Changes(free, shut); len(lines) != 1 || !strings.Contains(lines[0], "site porto: "+want) {
		t.Errorf("%q", lines)
	}
	if lines := Changes(shut, free); len(lines) != 1 || !strings.Contains(lines[0], "the quarantine is over") {
		t.Errorf("%q", lines)
	}
}
