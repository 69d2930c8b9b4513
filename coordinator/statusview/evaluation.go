package statusview

import (
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// rollbackParts tell the newest return to an older version.
func rollbackParts(s *coordinatorv1.FederationStatus) []string {
	r := s.GetLastRollback()
	if r == nil {
		return nil
	}
	return []string{fmt.Sprintf("version %d went back to %d (%s)", r.GetVersion(), r.GetToVersion(), clean(r.GetReason()))}
}

// gateText is what the gate thinks, unless all is well or the message above says it.
func gateText(s *coordinatorv1.FederationStatus) string {
	switch verdict := s.GetGate().GetVerdict(); verdict {
	case "Worse", "NotComparable":
		return fmt.Sprintf("gate: %s, %s", verdict, clean(s.GetGate().GetMessage()))
	}
	return ""
}

// evaluationChanges tell new results, verdicts and rollbacks.
func evaluationChanges(before, now *coordinatorv1.FederationStatus, add func(string, ...any)) {
	if e := now.GetEvaluation(); e != nil && e.Loss != nil && (before.GetEvaluation() == nil || before.GetEvaluation().GetVersion() != e.GetVersion()) {
		add("held-out loss: %.4f at version %d", e.GetLoss(), e.GetVersion())
	}
	if text, old := gateText(now), gateText(before); text != "" && text != old {
		add("%s", text)
	}
	if r := now.GetLastRollback(); r != nil && r.GetVersion() != before.GetLastRollback().GetVersion() {
		line := fmt.Sprintf("rolled back: version %d has the state of version %d, version %d was left, %s", r.GetVersion(), r.GetToVersion(), r.GetFromVersion(), clean(r.GetReason()))
		if m := clean(r.GetMessage()); m != "" {
			line += ": " + m
		}
		if before == nil {
			line += " (" + time.UnixMilli(r.GetUnixMs()).UTC().Format(time.RFC3339) + ")"
		}
		add("%s", line)
	}
}
