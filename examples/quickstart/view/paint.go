package view

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// painter collects lines of one width.
type painter struct {
	width  int
	styled bool
	lines  []string
}

func (p *painter) style(code, s string) string {
	if !p.styled || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *painter) bold(s string) string  { return p.style("1", s) }
func (p *painter) dim(s string) string   { return p.style("2", s) }
func (p *painter) gold(s string) string  { return p.style("33", s) }
func (p *painter) blue(s string) string  { return p.style("36", s) }
func (p *painter) green(s string) string { return p.style("32", s) }
func (p *painter) red(s string) string   { return p.style("31", s) }

func (p *painter) phase(s string) string {
	switch s {
	case "Training", "Completed":
		return p.green(s)
	case "Failed":
		return p.red(s)
	}
	return p.gold(s)
}

func (p *painter) sitePhase(s string) string {
	switch strings.TrimSpace(s) {
	case "Active":
		return p.green(s)
	case "Lost", "Blocked", "Failed":
		return p.red(s)
	case "Idle":
		return p.dim(s)
	}
	return p.gold(s)
}

// row adds a line with one text at the left and one at the right edge, cut and
// padded to the width.
func (p *painter) row(left, right string) {
	room := p.width
	if right != "" {
		room -= visible(right) + 1
	}
	if room < 8 {
		room, right = p.width, ""
	}
	left = cut(left, room)
	p.lines = append(p.lines, left+strings.Repeat(" ", max(0, p.width-visible(left)-visible(right)))+right)
}

// top is what a terminal of this height shows; 0 shows all.
func (p *painter) top(height int) []string {
	if height > 0 && len(p.lines) > height {
		return p.lines[:height]
	}
	return p.lines
}

func (p *painter) blank() { p.row("", "") }

// visible counts the columns of a text without its ANSI sequences. All of the
// view's own signs are one column wide.
func visible(s string) int {
	n := 0
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			if j := strings.IndexByte(s[i:], 'm'); j >= 0 {
				i += j + 1
				continue
			}
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
		n++
	}
	return n
}

// cut shortens a text to so many columns; ANSI sequences are kept, so that a
// style that was opened is closed.
func cut(s string, columns int) string {
	if visible(s) <= columns {
		return s
	}
	if columns <= 0 {
		return ""
	}
	var b strings.Builder
	n := 0
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			if j := strings.IndexByte(s[i:], 'm'); j >= 0 {
				b.WriteString(s[i : i+j+1])
				i += j + 1
				continue
			}
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		n++
		switch {
		case n < columns:
			b.WriteRune(r)
		case n == columns:
			b.WriteRune('…')
		}
	}
	return b.String()
}

// plain replaces what would break a line or the terminal: control characters
// in a message that came over the network.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}

func pad(s string, columns int) string {
	return s + strings.Repeat(" ", max(0, columns-visible(s)))
}

func padLeft(s string, columns int) string {
	return strings.Repeat(" ", max(0, columns-visible(s))) + s
}

// meter is a bar of so many cells, filled to a share of 0 to 1 in eighths.
func meter(share float64, cells int) string {
	if cells <= 0 {
		return ""
	}
	if !finite(share) {
		share = 0
	}
	eighths := int(math.Round(min(max(share, 0), 1) * float64(cells*8)))
	var b strings.Builder
	for i := range cells {
		switch n := min(max(eighths-i*8, 0), 8); n {
		case 0:
			b.WriteRune('░')
		default:
			b.WriteRune([]rune("▏▎▍▌▋▊▉█")[n-1])
		}
	}
	return b.String()
}

// spark draws the last values as a row of bars, scaled to their own range.
func spark(values []float64, cells int) string {
	if len(values) > cells {
		values = values[len(values)-cells:]
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if finite(v) {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	if len(values) < 2 || !finite(lo) {
		return ""
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if hi > lo && finite(v) {
			level = int(math.Round((v - lo) / (hi - lo) * 7))
		}
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[level])
	}
	return b.String()
}

func count(x float64) string {
	switch {
	case x >= 999.5e3:
		return fmt.Sprintf("%.2f M", x/1e6)
	case x >= 9999.5:
		return fmt.Sprintf("%.0f k", x/1e3)
	case x >= 999.5:
		return fmt.Sprintf("%.1f k", x/1e3)
	}
	return fmt.Sprintf("%.0f", x)
}

func bytesText(n uint64) string {
	switch x := float64(n); {
	case x >= 999.5e6:
		return fmt.Sprintf("%.2f GB", x/1e9)
	case x >= 999.5e3:
		return fmt.Sprintf("%.2f MB", x/1e6)
	case x >= 999.5:
		return fmt.Sprintf("%.1f kB", x/1e3)
	}
	return fmt.Sprintf("%d B", n)
}

func hourMinute(d time.Duration) string {
	m := int(d.Minutes())
	return fmt.Sprintf("%d:%02d", m/60, m%60)
}

func trimHours(d time.Duration) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Hours()), ".0")
}

// spanText says what a real second stands for: "9 min".
func spanText(speed float64) string {
	switch {
	case speed >= 5400:
		return fmt.Sprintf("%.3g h", speed/3600)
	case speed >= 90:
		return fmt.Sprintf("%.3g min", speed/60)
	}
	return fmt.Sprintf("%.3g s", speed)
}
