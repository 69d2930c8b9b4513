package statusview

import (
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Changes tells what is new in a status, a line each, with the coordinator's time
// (UTC) in front. Against no earlier status all is new. Progress within a round is
// no change.
func Changes(before, now *coordinatorv1.FederationStatus) []string {
	var lines []string
	stamp := time.UnixMilli(now.GetNowUnixMs()).UTC().Format(time.RFC3339)
	add := func(format string, args ...any) {
		lines = append(lines, stamp+" "+fmt.Sprintf(format, args...))
	}

	if now.Version != nil && (before.GetVersion() != now.GetVersion() || before == nil || before.Version == nil) {
		add("model: version %d (%s)", now.GetVersion(), ShortDigest(now.GetDigest()))
	}
	if n := now.GetRoundsVoid(); before != nil && n > before.GetRoundsVoid() {
		add("round void: %d so far", n)
	}
	evaluationChanges(before, now, add)
	if r := now.GetRound(); r.GetNumber() != before.GetRound().GetNumber() && len(r.GetGranted()) > 0 {
		add("round %d: granted to %s", r.GetNumber(), list(r.GetGranted(), 8))
	}
	if before.GetPhase() != now.GetPhase() || before.GetReason() != now.GetReason() {
		line := fmt.Sprintf("%s: %s", clean(now.GetFederation()), clean(now.GetPhase()))
		if why := reasonAndMessage(now.GetReason(), now.GetPhase(), now.GetMessage()); why != "" {
			line += ", " + why
		}
		add("%s", line)
	}
	if e := now.GetEvents(); e.GetState() != before.GetEvents().GetState() && e.GetState() != "" {
		line := "events: " + clean(e.GetState())
		if m := clean(e.GetMessage()); m != "" {
			line += ", " + m
		}
		add("%s", line)
	}
	earlier := map[string]*coordinatorv1.SiteStatus{}
	for _, s := range before.GetSites() {
		earlier[s.GetName()] = s
	}
	for _, s := range now.GetSites() {
		old := earlier[s.GetName()]
		if old.GetPhase() != s.GetPhase() || old.GetReason() != s.GetReason() {
			line := fmt.Sprintf("site %s: %s", clean(s.GetName()), clean(s.GetPhase()))
			if why := reasonAndMessage(s.GetReason(), s.GetPhase(), s.GetMessage()); why != "" {
				line += ", " + why
			}
			if value := intensity(s.GetSignal()); value != "-" {
				line += " (" + value + ")"
			}
			add("%s", line)
		}
		if q := Quarantine(now, s); (q != "") != (old.GetQuarantine() != nil) {
			if q == "" {
				q = "the quarantine is over"
			}
			add("site %s: %s", clean(s.GetName()), q)
		}
		for _, m := range s.GetMembers() {
			if was := connected(old, m.GetNode()); was != m.GetConnected() {
				state := "here"
				if was {
					state = "gone"
				}
				add("member %s/%s: %s", clean(s.GetName()), clean(m.GetNode()), state)
			}
		}
		for _, m := range old.GetMembers() {
			if m.GetConnected() && !has(s, m.GetNode()) {
				add("member %s/%s: gone", clean(s.GetName()), clean(m.GetNode()))
			}
		}
	}
	return lines
}

func has(s *coordinatorv1.SiteStatus, node string) bool {
	for _, m := range s.GetMembers() {
		if m.GetNode() == node {
			return true
		}
	}
	return false
}

func connected(s *coordinatorv1.SiteStatus, node string) bool {
	for _, m := range s.GetMembers() {
		if m.GetNode() == node {
			return m.GetConnected()
		}
	}
	return false
}
