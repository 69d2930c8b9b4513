package view

import (
	"bytes"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Screen redraws frames in place on a terminal's alternate screen. Every frame
// is one write, so that it does not flicker.
type Screen struct {
	w    io.Writer
	size func() (width, height int)
	buf  bytes.Buffer
}

// NewScreen takes the terminal over until Close. size is asked at each frame,
// which makes resizing work.
func NewScreen(w io.Writer, size func() (width, height int)) *Screen {
	_, _ = io.WriteString(w, "\x1b[?1049h\x1b[?25l\x1b[2J")
	return &Screen{w: w, size: size}
}

// Draw replaces the picture.
func (s *Screen) Draw(m Model) {
	width, height := s.size()
	s.buf.Reset()
	s.buf.WriteString("\x1b[?2026h\x1b[H\x1b[?7l")
	lines := Frame(m, width, height, true)
	for i, l := range lines {
		if i > 0 {
			s.buf.WriteString("\r\n")
		}
		// Erased before it is written: afterwards the cursor stands on the last
		// column, which would go too.
		s.buf.WriteString("\x1b[2K")
		s.buf.WriteString(l)
	}
	if len(lines) < height {
		s.buf.WriteString("\r\n\x1b[J")
	}
	s.buf.WriteString("\x1b[?7h\x1b[?2026l")
	_, _ = s.w.Write(s.buf.Bytes())
}

// Close gives the terminal back.
func (s *Screen) Close() { _, _ = io.WriteString(s.w, restore) }

// restore shows the cursor and the main screen.
const restore = "\x1b[?25h\x1b[?1049l"

// Restore is Close for an end without the Screen at hand; a w that is no
// terminal is left alone.
func Restore(w io.Writer) {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		_, _ = io.WriteString(w, restore)
	}
}

// Rates measures tokens per real second of each site from its statuses.
type Rates struct {
	sites map[string]*rate
	last  map[string]float64
}

// Last is what See returned last.
func (r *Rates) Last() map[string]float64 { return r.last }

type rate struct {
	samples uint64
	at      time.Time
	value   float64
}

// See takes a status in and returns the rates; a site that is not training has
// none.
func (r *Rates) See(s *coordinatorv1.FederationStatus, real time.Time) map[string]float64 {
	if r.sites == nil {
		r.sites = map[string]*rate{}
	}
	out := map[string]float64{}
	for _, site := range s.GetSites() {
		var samples uint64
		training := false
		for _, m := range site.GetMembers() {
			samples += m.GetSamples()
			training = training || m.GetState() == coordinatorv1.MemberState_MEMBER_STATE_TRAINING
		}
		old := r.sites[site.GetName()]
		if old == nil {
			old = &rate{samples: samples, at: real}
			r.sites[site.GetName()] = old
		}
		if dt := real.Sub(old.at).Seconds(); dt >= 0.5 {
			if samples > old.samples {
				now := float64(samples-old.samples) / dt
				if old.value == 0 {
					old.value = now
				}
				old.value += 0.4 * (now - old.value)
			}
			old.samples, old.at = samples, real
		}
		if training && old.value > 0 {
			out[site.GetName()] = old.value
		}
	}
	r.last = out
	return out
}
