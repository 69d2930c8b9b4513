// Package view shows a run while it runs: a live picture for a terminal, and
// plain lines for a log.
//
// It owns layout and wording. Frame and Line are pure functions; Screen alone
// writes to a terminal. It must not know where the statuses come from.
package view

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/examples/quickstart/timeline"
)

// Model is what a frame shows.
type Model struct {
	Status *coordinatorv1.FederationStatus
	// Start and End bound the trace, Now is the virtual time of the status.
	Start, End, Now time.Time
	// Speed is virtual seconds per real second.
	Speed float64
	// History is the run so far.
	History []timeline.Entry
	// TokensPerSecond by site, real seconds; see Rates.
	TokensPerSecond map[string]float64
	// BytesUp and BytesDown on the members' sockets so far.
	BytesUp, BytesDown uint64
	// Note is one line at the foot.
	Note string
}

// Frame draws the model into lines of exactly the given width, at most height
// of them. Styled lines carry ANSI sequences; their visible width is the same.
func Frame(m Model, width, height int, styled bool) []string {
	width = max(width, 40)
	p := painter{width: width, styled: styled}
	s := m.Status
	if s == nil {
		p.row(p.bold(p.gold("Girassol"))+"  starting", "")
		p.row(p.dim(m.Note), "")
		return p.top(height)
	}
	s = printable(s)
	m.Status = s
	now := m.Now.UTC()
	p.row(p.bold(p.gold("Girassol"))+"  "+s.GetFederation()+", "+s.GetAlgorithm().GetStrategy(),
		p.phase(s.GetPhase())+versionText(s))
	p.row(p.dim(federationText(s)), "")
	p.blank()
	p.clock(m, now)
	p.blank()
	full := height <= 0 || height >= 10+3*len(s.GetSites())+6
	p.siteHeader()
	for _, site := range s.GetSites() {
		p.site(m, site, now)
		if full {
			p.row("  "+p.dim(siteText(site, p.width-2)), "")
		}
	}
	p.blank()
	p.round(s)
	p.loss(m)
	p.wire(m)
	p.blank()
	p.row(p.dim(m.Note), "")
	return p.top(height)
}

// printable is the status without control characters in its texts: they came
// over the network and go to a terminal.
func printable(s *coordinatorv1.FederationStatus) *coordinatorv1.FederationStatus {
	s = proto.CloneOf(s)
	texts := []*string{&s.Federation, &s.Phase, &s.Reason, &s.Message}
	if s.Algorithm != nil {
		texts = append(texts, &s.Algorithm.Strategy)
	}
	if s.Events != nil {
		texts = append(texts, &s.Events.State)
	}
	if s.Round != nil {
		texts = append(texts, &s.Round.State)
		for i := range s.Round.WaitingFor {
			texts = append(texts, &s.Round.WaitingFor[i])
		}
	}
	for _, site := range s.Sites {
		texts = append(texts, &site.Name, &site.Phase, &site.Reason, &site.Message)
		if site.Signal != nil {
			texts = append(texts, &site.Signal.Unit, &site.Signal.Window)
		}
	}
	for _, t := range texts {
		*t = plain(*t)
	}
	return s
}

func versionText(s *coordinatorv1.FederationStatus) string {
	if s.Version == nil {
		return ""
	}
	return fmt.Sprintf("  version %d", s.GetVersion())
}

func federationText(s *coordinatorv1.FederationStatus) string {
	text := s.GetReason()
	if s.GetMessage() != "" {
		if text != "" {
			text += ": "
		}
		text += s.GetMessage()
	}
	return text
}

// clock is the virtual time and how much of the trace is over.
func (p *painter) clock(m Model, now time.Time) {
	total, done := m.End.Sub(m.Start), now.Sub(m.Start)
	left := fmt.Sprintf("%s  %s of %s h", now.Format("Mon 15:04"), hourMinute(max(done, 0)), trimHours(total))
	right := fmt.Sprintf("1 s = %s", spanText(m.Speed))
	share := 0.0
	if total > 0 {
		share = float64(done) / float64(total)
	}
	room := p.width - visible(left) - visible(right) - 4
	p.row(left+"  "+p.gold(meter(share, room)), right)
}

func (p *painter) siteHeader() {
	c := p.columns()
	p.row(p.dim(pad("site", c.name)+"  "+pad("phase", c.phase)+"  "+pad("window", c.window)+"  "+padLeft("gCO2/kWh", c.value)+"  "+pad("so far", c.history)+"  "+padLeft("tok/s", c.rate)), "")
}

// columns shares out the width: what is left goes to the window history.
func (p *painter) columns() (c struct{ name, phase, window, value, history, rate int }) {
	c.name, c.phase, c.window, c.value, c.rate = 16, 12, 7, 8, 6
	if p.width < 72 {
		c.name, c.phase = 10, 9
	}
	c.history = max(4, p.width-c.name-c.phase-c.window-c.value-c.rate-10)
	return c
}

func (p *painter) site(m Model, s *coordinatorv1.SiteStatus, now time.Time) {
	c := p.columns()
	sig := s.GetSignal()
	window, value := sig.GetWindow(), "unknown"
	if window == "" {
		window = "Unknown"
	}
	if sig != nil && sig.Value != nil && finite(sig.GetValue()) {
		value = fmt.Sprintf("%.0f", sig.GetValue())
		if u := sig.GetUnit(); u != "" && u != "gCO2/kWh" {
			value += " " + u
		}
	}
	rate := "-"
	if r, ok := m.TokensPerSecond[s.GetName()]; ok && finite(r) && r > 0 {
		rate = count(r)
	}
	win := pad(window, c.window)
	if window == "Open" {
		win = p.gold(win)
	} else {
		win = p.dim(win)
	}
	p.row(p.bold(pad(cut(s.GetName(), c.name), c.name))+"  "+p.sitePhase(pad(cut(s.GetPhase(), c.phase), c.phase))+"  "+win+"  "+
		padLeft(cut(value, c.value), c.value)+"  "+p.history(m, s.GetName(), now, c.history)+"  "+padLeft(rate, c.rate), "")
}

// history shows the trace's span in cells: trained, open, closed, to come.
func (p *painter) history(m Model, site string, now time.Time, cells int) string {
	total := m.End.Sub(m.Start)
	if total <= 0 {
		return strings.Repeat(" ", cells)
	}
	open := timeline.Spans(m.History, site, timeline.WindowOpen)
	trained := timeline.Spans(m.History, site, timeline.Training)
	cell := total / time.Duration(cells)
	var b strings.Builder
	for i := range cells {
		from := m.Start.Add(time.Duration(i) * cell)
		to := from.Add(cell)
		switch {
		case from.After(now):
			b.WriteString(p.dim("·"))
		case overlaps(trained, from, to):
			b.WriteString(p.blue("█"))
		case overlaps(open, from, to):
			b.WriteString(p.gold("▒"))
		default:
			b.WriteString(p.dim("▁"))
		}
	}
	return b.String()
}

func overlaps(spans []timeline.Span, from, to time.Time) bool {
	for _, s := range spans {
		if s.From.Before(to) && s.To.After(from) {
			return true
		}
	}
	return false
}

// siteText says what the site does and why.
func siteText(s *coordinatorv1.SiteStatus, room int) string {
	text := s.GetReason()
	if s.GetMessage() != "" {
		text += ": " + s.GetMessage()
	}
	for _, m := range s.GetMembers() {
		if m.GetState() != coordinatorv1.MemberState_MEMBER_STATE_TRAINING {
			continue
		}
		step := fmt.Sprintf("step %d", m.GetSteps())
		if m.GetMaxSteps() > 0 {
			step += fmt.Sprintf("/%d", m.GetMaxSteps())
		}
		if m.Loss != nil && finite(m.GetLoss()) {
			step += fmt.Sprintf(", loss %.2f", m.GetLoss())
		}
		text = step + "; " + text
		break
	}
	return cut(strings.TrimSuffix(strings.TrimSpace(text), ";"), room)
}

func (p *painter) round(s *coordinatorv1.FederationStatus) {
	r := s.GetRound()
	head := pad("round", 7)
	if r == nil || r.GetNumber() == 0 {
		p.row(p.dim(head)+"none yet", "")
		return
	}
	text := fmt.Sprintf("%d %s", r.GetNumber(), strings.ToLower(r.GetState()))
	share := 0.0
	if span := r.GetStopAtUnixMs() - r.GetStartedUnixMs(); span > 0 && r.GetState() != "Idle" {
		share = float64(s.GetNowUnixMs()-r.GetStartedUnixMs()) / float64(span)
	}
	tail := fmt.Sprintf("%d of %d reported", len(r.GetReported()), len(r.GetGranted()))
	if w := r.GetWaitingFor(); len(w) > 0 && len(r.GetReported()) > 0 {
		tail += ", waits for " + strings.Join(w, ", ")
	}
	tail = cut(tail, max(10, p.width-visible(head+text)-16))
	room := max(6, min(24, p.width-visible(head+text+tail)-4))
	p.row(p.dim(head)+text+"  "+p.blue(meter(share, room))+"  "+tail,
		"")
}

func (p *painter) loss(m Model) {
	head := p.dim(pad("loss", 7))
	var held, train []float64
	for _, e := range m.History {
		switch {
		case e.Evaluation != nil:
			held = append(held, e.Evaluation.Loss)
		case e.Round != nil && e.Round.Loss != nil:
			train = append(train, *e.Round.Loss)
		}
	}
	if len(held)+len(train) == 0 {
		p.row(head+"not measured yet", "")
		return
	}
	var parts []string
	if n := len(held); n > 0 {
		parts = append(parts, fmt.Sprintf("held-out %.3f", held[n-1]))
		if n > 1 {
			parts[0] += fmt.Sprintf(" from %.2f", held[0])
		}
	}
	if n := len(train); n > 0 {
		parts = append(parts, fmt.Sprintf("training %.3f", train[n-1]))
	}
	text := strings.Join(parts, ", ")
	line := held
	if len(line) < 2 {
		line = train
	}
	p.row(head+text+"  "+p.blue(spark(line, max(0, p.width-7-visible(text)-2))), "")
}

func (p *painter) wire(m Model) {
	s := m.Status
	text := fmt.Sprintf("%s up, %s down", bytesText(m.BytesUp), bytesText(m.BytesDown))
	rounds := fmt.Sprintf("%d committed, %d void rounds, %s tokens", s.GetRoundsCommitted(), s.GetRoundsVoid(), count(float64(s.GetCommittedSamples())))
	p.row(p.dim(pad("total", 7))+rounds, "")
	right := ""
	if e := s.GetEvents(); e != nil && e.GetState() != "" {
		right = "redis " + strings.ToLower(e.GetState())
	}
	p.row(p.dim(pad("bytes", 7))+text, p.dim(right))
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
