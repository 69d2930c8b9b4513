package statusview

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// column of the table of sites. Those with a greater rank are left out first when
// the width does not suffice; rank 0 always stays.
type column struct {
	title string
	rank  int
	right bool
}

var columns = []column{
	{"SITE", 0, false},
	{"PHASE", 0, false},
	{"REASON", 0, false},
	{"INTENSITY", 1, true},
	{"WINDOW", 3, false},
	{"MEMBER", 2, false},
	{"STEPS", 2, true},
	{"LOSS", 3, true},
	{"TOKENS/S", 4, true},
	{"KWH", 3, true},
	{"KGCO2E", 1, true},
	{"AVERAGE", 5, true},
	{"MESSAGE", 6, false},
}

const (
	averageColumn = 11
	messageColumn = 12
	gap           = 2
)

func writeSites(b *strings.Builder, s *coordinatorv1.FederationStatus, width int) {
	rows := [][]string{make([]string, len(columns))}
	for i, c := range columns {
		rows[0][i] = c.title
	}
	average := false
	for _, site := range s.GetSites() {
		rows = append(rows, siteRows(s, site)...)
		average = average || site.GetLedger() != nil && site.GetLedger().AverageKgco2E != nil
	}
	lines, messages := layOut(rows, width, average)
	if !messages {
		lines = append(lines, messagesBelow(rows[1:], width)...)
	}
	for _, line := range lines {
		b.WriteString(line)
		b.WriteByte('\n')
	}
}

// messagesBelow are the messages that did not fit beside their site or member.
func messagesBelow(rows [][]string, width int) []string {
	var lines []string
	site := ""
	for _, row := range rows {
		name := row[0]
		if member, ok := strings.CutPrefix(name, "  "); ok {
			name = site + "/" + member
		} else {
			site = name
		}
		if row[messageColumn] != "" {
			lines = append(lines, breakWords(name+": "+row[messageColumn], width)...)
		}
	}
	if len(lines) > 0 {
		lines = append([]string{""}, lines...)
	}
	return lines
}

func siteRows(s *coordinatorv1.FederationStatus, site *coordinatorv1.SiteStatus) [][]string {
	members := site.GetMembers()
	ledger := site.GetLedger()
	row := []string{
		clean(site.GetName()), clean(site.GetPhase()), clean(site.GetReason()),
		intensity(site.GetSignal()), window(s, site.GetSignal()),
		"-", "-", "-", "-",
		"-", "-", "-", clean(site.GetMessage()),
	}
	if q := Quarantine(s, site); q != "" {
		row[2] = clean(site.GetQuarantine().GetReason())
		row[messageColumn] = strings.TrimSuffix(q+"; "+row[messageColumn], "; ")
	}
	if ledger != nil {
		row[9] = fmt.Sprintf("%.4g", ledger.GetEnergyKwh())
		row[10] = emissions(ledger.MarginalKgco2E, ledger.GetCoverage())
		row[11] = emissions(ledger.AverageKgco2E, ledger.GetCoverage())
	}
	if len(members) == 1 {
		copy(row[5:9], memberCells(members[0]))
		if row[messageColumn] == "" {
			row[messageColumn] = clean(members[0].GetDetail())
		}
		return [][]string{row}
	}
	rows := [][]string{row}
	if len(members) > 1 {
		connected, total := 0, 0.0
		for _, m := range members {
			if m.GetConnected() {
				connected++
			}
			total += TokensPerSecond(m)
			cells := make([]string, len(columns))
			cells[0] = "  " + clean(m.GetNode())
			copy(cells[5:9], memberCells(m))
			cells[messageColumn] = clean(m.GetDetail())
			rows = append(rows, cells)
		}
		row[5] = fmt.Sprintf("%d of %d here", connected, len(members))
		if total > 0 {
			row[8] = Count(total)
		}
	}
	return rows
}

// memberCells are the columns MEMBER to TOKENS/S.
func memberCells(m *coordinatorv1.MemberStatus) []string {
	cells := []string{memberState(m), "-", "-", "-"}
	switch {
	case m.GetMaxSteps() > 0:
		cells[1] = fmt.Sprintf("%d/%d", m.GetSteps(), m.GetMaxSteps())
	case m.GetSteps() > 0:
		cells[1] = fmt.Sprint(m.GetSteps())
	}
	if m.Loss != nil {
		cells[2] = fmt.Sprintf("%.4f", m.GetLoss())
	}
	if rate := TokensPerSecond(m); rate > 0 {
		cells[3] = Count(rate)
	}
	return cells
}

func memberState(m *coordinatorv1.MemberStatus) string {
	if !m.GetConnected() {
		return "gone"
	}
	switch m.GetState() {
	case coordinatorv1.MemberState_MEMBER_STATE_IDLE:
		return "idle"
	case coordinatorv1.MemberState_MEMBER_STATE_SYNCING:
		return "syncing"
	case coordinatorv1.MemberState_MEMBER_STATE_READY:
		return "ready"
	case coordinatorv1.MemberState_MEMBER_STATE_TRAINING:
		return "training"
	case coordinatorv1.MemberState_MEMBER_STATE_UPLOADING:
		return "uploading"
	case coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER:
		return "no trainer"
	}
	return "connected"
}

// TokensPerSecond is a training member's samples of a step over the measured time
// of a step; 0 when it does not train or has not measured one.
func TokensPerSecond(m *coordinatorv1.MemberStatus) float64 {
	if m.GetState() != coordinatorv1.MemberState_MEMBER_STATE_TRAINING || m.GetSteps() == 0 || !(m.GetStepSeconds() > 0) {
		return 0
	}
	return float64(m.GetSamples()) / float64(m.GetSteps()) / m.GetStepSeconds()
}

func intensity(signal *coordinatorv1.Signal) string {
	if signal == nil {
		return "-"
	}
	if signal.Value == nil {
		return "unknown"
	}
	return strings.TrimSpace(fmt.Sprintf("%.4g %s", signal.GetValue(), clean(signal.GetUnit())))
}

// window says its state and how long it will last at least.
func window(s *coordinatorv1.FederationStatus, signal *coordinatorv1.Signal) string {
	if clean(signal.GetWindow()) == "" {
		return "-"
	}
	text := clean(signal.GetWindow())
	if next := signal.GetNextChangeUnixMs(); next > s.GetNowUnixMs() {
		text += ", " + duration(time.Duration(next-s.GetNowUnixMs())*time.Millisecond) + "+"
	}
	return text
}

// emissions names the share of the energy that a figure covers, unless it is all.
func emissions(kg *float64, coverage float64) string {
	if kg == nil || coverage == 0 {
		return "-"
	}
	if coverage < 0.995 {
		return fmt.Sprintf("%.4g of %.0f%%", *kg, 100*coverage)
	}
	return fmt.Sprintf("%.4g", *kg)
}

// layOut pads the cells of the columns that fit into width and says whether all
// messages are among them.
func layOut(rows [][]string, width int, average bool) (lines []string, withMessages bool) {
	widths := make([]int, len(columns))
	messages := false
	for i, row := range rows {
		for c, cell := range row {
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
		}
		messages = messages || i > 0 && row[messageColumn] != ""
	}
	shown := make([]bool, len(columns))
	for c := range columns {
		shown[c] = (c != averageColumn || average) && (c != messageColumn || messages)
	}
	fit(widths, shown, width)
	lines = make([]string, len(rows))
	for i, row := range rows {
		var cells []string
		for c, cell := range row {
			if shown[c] {
				cells = append(cells, pad(cell, widths[c], columns[c].right))
			}
		}
		lines[i] = cut(strings.TrimRight(strings.Join(cells, strings.Repeat(" ", gap)), " "), width)
	}
	return lines, !messages || shown[messageColumn]
}

// fit leaves columns out until the rest fits.
func fit(widths []int, shown []bool, width int) {
	if width <= 0 {
		return
	}
	for {
		total, last := -gap, -1
		for c := range columns {
			if !shown[c] {
				continue
			}
			total += widths[c] + gap
			if columns[c].rank > 0 && (last < 0 || columns[c].rank >= columns[last].rank) {
				last = c
			}
		}
		if total <= width || last < 0 {
			return
		}
		shown[last] = false
	}
}

func pad(s string, width int, right bool) string {
	fill := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
	if right {
		return fill + s
	}
	return s + fill
}
