package view

import (
	"fmt"
	"strings"
	"time"

	"girassol.dev/examples/quickstart/timeline"
)

// Line says one entry in words, "" for an entry that is of no interest by
// itself. before is the site's entry before this one, nil for its first.
func Line(e timeline.Entry, start time.Time, before *timeline.Site) string {
	var text string
	switch {
	case e.Start != nil && e.Start.Resumed:
		text = "run taken up again"
	case e.Start != nil:
		text = fmt.Sprintf("run started, 1 s stands for %s", spanText(e.Start.Speed))
	case e.Phase != nil:
		reason := e.Phase.Reason
		if reason == e.Phase.Phase {
			reason = "" // it says nothing more
		}
		text = "federation " + e.Phase.Phase + because(reason, e.Phase.Message)
	case e.Site != nil:
		text = siteLine(*e.Site, before)
	case e.Round != nil && e.Round.Void:
		text = fmt.Sprintf("round %d void%s", e.Round.Number, because(e.Round.Reason, e.Round.Message))
	case e.Round != nil:
		text = roundLine(*e.Round)
	case e.Evaluation != nil:
		text = fmt.Sprintf("version %d: held-out loss %.3f over %s tokens", e.Evaluation.Version, e.Evaluation.Loss, count(float64(e.Evaluation.Tokens)))
	case e.Stop != nil:
		text = "run ended: " + e.Stop.Why
	}
	if text == "" {
		return ""
	}
	return hourMinute(max(0, e.Time.Sub(start))) + "  " + plain(text)
}

func siteLine(s timeline.Site, before *timeline.Site) string {
	old := timeline.Site{}
	if before != nil {
		old = *before
	}
	var parts []string
	if s.Window != old.Window && s.Window != "" {
		words := map[string]string{"Open": "opened", "Closed": "closed", "Unknown": "unknown"}
		if old.Window == "" { // nothing has changed yet
			words = map[string]string{"Open": "is open", "Closed": "is closed", "Unknown": "is unknown"}
		}
		w := "window " + words[s.Window]
		if s.Intensity != nil {
			w += fmt.Sprintf(" at %.0f %s", *s.Intensity, s.Unit)
		}
		parts = append(parts, strings.TrimSpace(w))
	}
	if s.Phase != old.Phase {
		switch s.Phase {
		case "Active":
			parts = append(parts, "joined")
		default:
			parts = append(parts, strings.ToLower(s.Phase))
		}
		if r := because(s.Reason, s.Message); r != "" {
			parts[len(parts)-1] += r
		}
	}
	if len(parts) == 0 {
		return "" // training began or ended inside a round: the round says it
	}
	return s.Name + ": " + strings.Join(parts, ", ")
}

func roundLine(r timeline.Round) string {
	var members []string
	for _, m := range r.Members {
		members = append(members, m.Site)
	}
	who := ""
	if len(members) > 0 {
		who = " by " + strings.Join(members, ", ")
	}
	loss := ""
	if r.Loss != nil {
		loss = fmt.Sprintf(", training loss %.3f", *r.Loss)
	}
	return fmt.Sprintf("round %d committed as version %d%s: %s tokens%s, %s up, %s down",
		r.Number, r.Version, who, count(float64(r.Tokens)), loss, bytesText(r.BytesUp), bytesText(r.BytesDown))
}

func because(reason, message string) string {
	switch {
	case reason == "" && message == "":
		return ""
	case message == "":
		return " (" + reason + ")"
	case reason == "":
		return " (" + message + ")"
	}
	return " (" + reason + ": " + message + ")"
}
