// Package statusview owns how a federation's status looks to a person: the table
// of the girassol command and of the quickstart, and the line per change where
// there is no terminal. It is pure.
//
// It must not know where a status comes from, nor move a cursor.
package statusview

import (
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Table writes the federation's header and its sites, a line each and one more
// per member where a site has several. Texts are broken to width, and columns
// that do not fit are left out, the least needed first, except that messages move
// below the table; width 0 shows all. Errors of w are not reported.
func Table(w io.Writer, s *coordinatorv1.FederationStatus, width int) {
	var b strings.Builder
	for _, line := range header(s, width) {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	if len(s.GetSites()) > 0 {
		b.WriteByte('\n')
		writeSites(&b, s, width)
	}
	_, _ = io.WriteString(w, b.String())
}

func header(s *coordinatorv1.FederationStatus, width int) []string {
	first := fmt.Sprintf("%s: %s", or(clean(s.GetFederation()), "federation"), or(clean(s.GetPhase()), "starting"))
	if why := reasonAndMessage(s.GetReason(), s.GetPhase(), s.GetMessage()); why != "" {
		first += ", " + why
	}
	lines := breakWords(first, width)
	for _, parts := range [][]string{roundParts(s), modelParts(s), runParts(s)} {
		lines = append(lines, breakAt(parts, "   ", "  ", width)...)
	}
	if text := gateText(s); text != "" {
		lines = append(lines, breakWords(text, width)...)
	}
	if e := s.GetEvents(); e.GetState() == "Disconnected" || e.GetPending() > 0 || (e.GetState() == "Connected" && e.GetMessage() != "") {
		line := "events: " + strings.ToLower(clean(e.GetState()))
		if e.GetPending() > 0 {
			line += fmt.Sprintf(", %d wait", e.GetPending())
		}
		if m := clean(e.GetMessage()); m != "" {
			line += ": " + m
		}
		lines = append(lines, breakWords(line, width)...)
	}
	return lines
}

func roundParts(s *coordinatorv1.FederationStatus) []string {
	r := s.GetRound()
	number := "round 0"
	if r.GetNumber() > 0 {
		number = fmt.Sprintf("round %d", r.GetNumber())
	}
	if s.GetRoundsTotal() > 0 {
		number += fmt.Sprintf(" of %d", s.GetRoundsTotal())
	}
	parts := []string{number}
	if state := clean(r.GetState()); state != "" && state != "Idle" {
		text := fmt.Sprintf("%s %d of %d", strings.ToLower(state), len(r.GetReported()), len(r.GetGranted()))
		if left, ok := until(s, r.GetDeadlineUnixMs()); ok {
			text += ", " + left
		}
		if waiting := r.GetWaitingFor(); len(waiting) > 0 {
			text += ", waiting for " + list(waiting, 4)
		}
		parts = append(parts, text)
	}
	return parts
}

func modelParts(s *coordinatorv1.FederationStatus) []string {
	if s.Version == nil {
		return []string{"no model yet"}
	}
	model := fmt.Sprintf("version %d", s.GetVersion())
	if d := ShortDigest(s.GetDigest()); d != "" {
		model += " (" + d + ")"
	}
	parts := []string{model}
	if s.GetParameters() > 0 {
		parts = append(parts, Count(float64(s.GetParameters()))+" parameters")
	}
	if e := s.GetEvaluation(); e != nil && e.Loss != nil {
		parts = append(parts, fmt.Sprintf("held-out loss %.4f at version %d", e.GetLoss(), e.GetVersion()))
	}
	return append(parts, rollbackParts(s)...)
}

func runParts(s *coordinatorv1.FederationStatus) []string {
	parts := []string{fmt.Sprintf("%d committed, %d void", s.GetRoundsCommitted(), s.GetRoundsVoid())}
	if n := s.GetCommittedSamples(); n > 0 {
		parts = append(parts, Count(float64(n))+" tokens")
	}
	parts = append(parts, dataParts(s)...)
	if a := s.GetAlgorithm(); a.GetStrategy() != "" {
		parts = append(parts, clean(a.GetStrategy()))
		if a.GetOuterLearningRate() > 0 {
			// Of the outer step, as the newest commit made it.
			parts = append(parts, fmt.Sprintf("eta %.3g, mu %.3g", a.GetOuterLearningRate(), a.GetOuterMomentum()))
		}
	}
	if s.Agreement != nil {
		parts = append(parts, fmt.Sprintf("agreement %.2f", s.GetAgreement()))
	}
	if s.GetBytesUp()+s.GetBytesDown() > 0 {
		parts = append(parts, fmt.Sprintf("%s up, %s down", Bytes(s.GetBytesUp()), Bytes(s.GetBytesDown())))
	}
	return parts
}

// reasonAndMessage leaves out a reason that the phase says already.
func reasonAndMessage(reason, phase, message string) string {
	reason, message = clean(reason), clean(message)
	if reason == phase {
		reason = ""
	}
	if reason != "" && message != "" {
		return reason + ": " + message
	}
	return reason + message
}

// ShortDigest is enough of a digest to tell two models apart.
func ShortDigest(d []byte) string { return hex.EncodeToString(d[:min(len(d), 4)]) }

// Count writes a number with at most three significant digits: 950, 1.2k, 422k, 1.31M.
func Count(n float64) string { return scaled(n, "", []string{"k", "M", "G", "T"}) }

// Bytes writes a size in decimal units.
func Bytes(n uint64) string {
	return scaled(float64(n), " B", []string{" kB", " MB", " GB", " TB", " PB"})
}

func scaled(n float64, unit string, larger []string) string {
	if n < 1000 {
		return fmt.Sprintf("%.0f%s", n, unit)
	}
	for _, u := range larger {
		n /= 1000
		unit = u
		// 999.5 rounds to 1000 and belongs to the next unit.
		if n < 999.5 {
			break
		}
	}
	digits := 0
	switch {
	case n < 9.995:
		digits = 2
	case n < 99.95:
		digits = 1
	}
	return fmt.Sprintf("%.*f%s", digits, n, unit)
}

// until is the time left to a moment on the coordinator's clock.
func until(s *coordinatorv1.FederationStatus, unixMs int64) (string, bool) {
	if unixMs == 0 {
		return "", false
	}
	left := time.Duration(unixMs-s.GetNowUnixMs()) * time.Millisecond
	if left <= 0 {
		return "time is up", true
	}
	return duration(left) + " left", true
}

// duration has two units at most: 45s, 3m20s, 5h, 2d3h.
func duration(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String()
}

func list(names []string, most int) string {
	shown := make([]string, 0, most)
	for _, n := range names[:min(len(names), most)] {
		shown = append(shown, clean(n))
	}
	text := strings.Join(shown, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// clean makes a text of the network fit for one line of a terminal: what an agent
// or a provider says must not move the cursor.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r == utf8.RuneError || (r >= 0x7f && r < 0xa0) || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069):
			return -1
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// breakWords breaks a text between words into lines of at most width columns; a
// longer word is cut.
func breakWords(s string, width int) []string {
	if width <= 0 {
		return []string{s}
	}
	return breakAt(strings.Fields(s), " ", "  ", width)
}

// breakAt joins parts by separator and starts a new line, indented, where the next
// one does not fit.
func breakAt(parts []string, separator, indent string, width int) []string {
	var lines []string
	line := ""
	for _, part := range parts {
		switch {
		case line == "":
			line = part
		case width > 0 && utf8.RuneCountInString(line+separator+part) > width:
			lines = append(lines, cut(line, width))
			line = indent + part
		default:
			line += separator + part
		}
	}
	if line != "" {
		lines = append(lines, cut(line, width))
	}
	return lines
}

// cut shortens a line to width columns; 0 leaves it.
func cut(s string, width int) string {
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}
