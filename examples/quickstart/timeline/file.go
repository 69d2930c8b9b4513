package timeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// Read parses a timeline. A torn last line, as a kill leaves it, is ignored and
// the length of what is good is returned so that a writer can cut the rest off;
// a bad line elsewhere is an error.
func Read(r io.Reader) (entries []Entry, good int64, err error) {
	br := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, rerr := br.ReadBytes('\n')
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return nil, 0, rerr
		}
		last := rerr != nil
		if last && len(line) == 0 {
			return entries, good, nil
		}
		var e Entry
		if perr := json.Unmarshal(line, &e); perr != nil || !e.valid() {
			if last {
				return entries, good, nil //nolint:nilerr // io.EOF: a kill tore the last line
			}
			return nil, 0, fmt.Errorf("timeline: line %d is not an entry: %.60q", n, bytes.TrimSpace(line))
		}
		if last {
			// Complete JSON without its newline: the writer ends lines, so this
			// one may have been cut inside a number.
			return entries, good, nil //nolint:nilerr // io.EOF
		}
		entries = append(entries, e)
		good += int64(len(line))
	}
}

func (e Entry) valid() bool {
	switch e.Kind {
	case KindStart:
		return e.Start != nil
	case KindSite:
		return e.Site != nil
	case KindRound:
		return e.Round != nil
	case KindEvaluation:
		return e.Evaluation != nil
	case KindProgress:
		return e.Progress != nil
	case KindPhase:
		return e.Phase != nil
	case KindStop:
		return e.Stop != nil
	}
	return false
}

// Writer appends entries to a file, one line each.
type Writer struct {
	f   *os.File
	buf []byte
}

// Create starts an empty timeline.
func Create(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("timeline: %w", err)
	}
	return &Writer{f: f}, nil
}

// Append opens a timeline to go on with and returns what it holds.
func Append(path string) (*Writer, []Entry, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("timeline: %w", err)
	}
	past, good, err := Read(f)
	if err == nil {
		err = f.Truncate(good)
	}
	if err == nil {
		_, err = f.Seek(good, io.SeekStart)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("timeline: %s: %w", path, err), f.Close())
	}
	return &Writer{f: f}, past, nil
}

// Write appends the entries with one write.
func (w *Writer) Write(entries ...Entry) error {
	w.buf = w.buf[:0]
	for _, e := range entries {
		b, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		w.buf = append(append(w.buf, b...), '\n')
	}
	if _, err := w.f.Write(w.buf); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }

// Span is a stretch of virtual time.
type Span struct{ From, To time.Time }

// Hours of the span.
func (s Span) Hours() float64 { return s.To.Sub(s.From).Hours() }

// Total is the hours of all spans.
func Total(spans []Span) float64 {
	var h float64
	for _, s := range spans {
		h += s.Hours()
	}
	return h
}

// Spans returns when a site's state held what is asked, in order. A stop ends
// every span: between a stop and the next start nothing is known.
func Spans(entries []Entry, site string, holds func(Site) bool) []Span {
	var out []Span
	var open *time.Time
	var last time.Time
	end := func(t time.Time) {
		if open != nil && t.After(*open) {
			out = append(out, Span{*open, t})
		}
		open = nil
	}
	for _, e := range entries {
		switch {
		case e.Kind == KindStart:
			end(last)
		case e.Kind == KindStop:
			end(e.Time)
		case e.Site != nil && e.Site.Name == site:
			if held := holds(*e.Site); held && open == nil {
				t := e.Time
				open = &t
			} else if !held {
				end(e.Time)
			}
		}
		if e.Time.After(last) {
			last = e.Time
		}
	}
	end(last)
	return out
}

// WindowOpen and Training are what Spans is asked for.
func WindowOpen(s Site) bool { return s.Window == "Open" }

// Training says that the site runs local steps.
func Training(s Site) bool { return s.Training }

// LastProgress is the newest totals, nil without any.
func LastProgress(entries []Entry) *Progress {
	for _, e := range slices.Backward(entries) {
		if e.Progress != nil {
			return e.Progress
		}
	}
	return nil
}

// End is the newest virtual time, zero without entries.
func End(entries []Entry) time.Time {
	var t time.Time
	for _, e := range entries {
		if e.Time.After(t) {
			t = e.Time
		}
	}
	return t
}
