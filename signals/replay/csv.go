package replay

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"girassol.dev/signals"
)

// Bounds of a CSV trace.
const (
	MaxBytes   = 64 << 20
	MaxRows    = 1_000_000
	MaxLines   = MaxRows + 1000 // with the header and blank lines
	MaxRegions = 256
	// MaxCells bounds rows times regions, and with it the memory of a trace.
	MaxCells = 8_000_000
	// MaxLine and MaxCell are the longest line and cell in bytes.
	MaxLine = 64 << 10
	MaxCell = 128
)

// timeColumns are the accepted names of the first column.
var timeColumns = []string{"time", "time_utc", "point_time", "from", "from_utc"}

// minutes is RFC 3339 without seconds, as half-hourly sources write it.
const minutes = "2006-01-02T15:04Z07:00"

// SyntaxError says where a trace is wrong.
type SyntaxError struct {
	Name string
	// Line and Column count from 1; Column counts cells, 0 is the whole line.
	Line, Column int
	// Header is the column's name, where it is known.
	Header  string
	Problem string
}

func (e *SyntaxError) Error() string {
	at := fmt.Sprintf("replay: trace %s line %d", e.Name, e.Line)
	if e.Column > 0 {
		at += fmt.Sprintf(" column %d", e.Column)
	}
	if e.Header != "" {
		at += fmt.Sprintf(" (%s)", e.Header)
	}
	return at + ": " + e.Problem
}

// ReadFile reads a CSV trace from a file.
func ReadFile(path string, kind signals.Kind, unit signals.Unit) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	defer f.Close()
	return Read(f, filepath.Base(path), kind, unit)
}

// Read reads a CSV trace: a header of a time column (time, time_utc, point_time,
// from or from_utc) and one column per region; then rows of an RFC 3339 time
// with its offset (seconds may be left out), strictly rising, and one value per
// region. An empty cell is no value, never 0. Name is for messages. Errors are
// *SyntaxError unless r itself fails.
func Read(r io.Reader, name string, kind signals.Kind, unit signals.Unit) (*Trace, error) {
	if err := signals.CheckUnit(kind, unit); err != nil {
		return nil, fmt.Errorf("replay: trace %s: %w", name, err)
	}
	p := parser{name: name, kind: kind, in: bufio.NewReaderSize(r, MaxLine)}
	if err := p.header(); err != nil {
		return nil, err
	}
	for {
		done, err := p.row()
		if err != nil {
			return nil, err
		}
		if done {
			break
		}
	}
	if len(p.times) == 0 {
		return nil, p.fail(0, "no points after the header")
	}
	return NewTrace(name, kind, unit, p.times, p.regions, p.columns)
}

type parser struct {
	name    string
	kind    signals.Kind
	in      *bufio.Reader
	line    int
	bytes   int64
	time    string
	regions []string
	times   []time.Time
	columns [][]*float64
}

func (p *parser) fail(column int, format string, args ...any) error {
	e := &SyntaxError{Name: p.name, Line: p.line, Column: column, Problem: fmt.Sprintf(format, args...)}
	switch {
	case column == 1:
		e.Header = p.time
	case column > 1 && column-2 < len(p.regions):
		e.Header = p.regions[column-2]
	}
	return e
}

// record reads one line's cells; none at the end. Blank lines are skipped.
// Reading line by line bounds what a hostile file can make us hold.
func (p *parser) record() ([]string, error) {
	for {
		raw, err := p.in.ReadSlice('\n')
		p.line++
		p.bytes += int64(len(raw))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, p.fail(0, "longer than %d bytes", MaxLine)
		case err != nil && !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("replay: trace %s: %w", p.name, err)
		case p.line > MaxLines:
			return nil, p.fail(0, "more than %d lines", MaxLines)
		case p.bytes > MaxBytes:
			return nil, p.fail(0, "the trace is longer than %d bytes", MaxBytes)
		}
		line := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
		if p.line == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // spreadsheets write a byte order mark
		}
		if line != "" {
			return p.split(line)
		}
		if err != nil {
			return nil, nil //nolint:nilerr // io.EOF: there is no record left
		}
	}
}

// split honours quotes within the line.
func (p *parser) split(line string) ([]string, error) {
	cells := strings.Split(line, ",")
	if strings.Contains(line, `"`) {
		quoted := csv.NewReader(strings.NewReader(line))
		var err error
		if cells, err = quoted.Read(); err != nil {
			var syntax *csv.ParseError
			if errors.As(err, &syntax) {
				err = syntax.Err // its line would be that of this line alone
			}
			return nil, p.fail(0, "%v", err)
		}
	}
	for i, cell := range cells {
		if len(cell) > MaxCell {
			return nil, p.fail(i+1, "a cell of %d bytes, at most %d", len(cell), MaxCell)
		}
	}
	return cells, nil
}

func (p *parser) header() error {
	rec, err := p.record()
	if err != nil {
		return err
	}
	if len(rec) == 0 {
		return p.fail(0, "empty, want a header of time and regions")
	}
	first, known := rec[0], false
	for _, c := range timeColumns {
		known = known || c == first
	}
	if !known {
		return p.fail(1, "the first column is %q, want one of %s", first, strings.Join(timeColumns, ", "))
	}
	p.time = first
	if len(rec) < 2 || len(rec)-1 > MaxRegions {
		return p.fail(0, "%d regions, want 1 to %d", len(rec)-1, MaxRegions)
	}
	seen := make(map[string]bool, len(rec))
	for i, region := range rec[1:] {
		if !regionName(region) || seen[region] {
			return p.fail(i+2, "region %q is empty, padded, unreadable or there twice", region)
		}
		seen[region] = true
		p.regions = append(p.regions, region)
	}
	p.columns = make([][]*float64, len(p.regions))
	return nil
}

func (p *parser) row() (done bool, err error) {
	rec, err := p.record()
	if err != nil || rec == nil {
		return true, err
	}
	if len(rec) != 1+len(p.regions) {
		return false, p.fail(0, "%d cells, the header has %d", len(rec), 1+len(p.regions))
	}
	if rows := len(p.times); rows == MaxRows || (rows+1)*len(p.regions) > MaxCells {
		return false, p.fail(0, "too many points, at most %d rows and %d values", MaxRows, MaxCells)
	}
	at, err := parseTime(rec[0])
	if err != nil {
		return false, p.fail(1, "%v", err)
	}
	if n := len(p.times); n > 0 && !at.After(p.times[n-1]) {
		return false, p.fail(1, "time %s is not after %s", stamp(at), stamp(p.times[n-1]))
	}
	p.times = append(p.times, at)
	for i, cell := range rec[1:] {
		v, err := p.value(cell)
		if err != nil {
			return false, p.fail(i+2, "%v", err)
		}
		p.columns[i] = append(p.columns[i], v)
	}
	return false, nil
}

// parseTime wants an offset: a naive local time shifts everything by the zone.
func parseTime(cell string) (time.Time, error) {
	var at time.Time
	if err := at.UnmarshalText([]byte(cell)); err != nil {
		if at, err = time.Parse(minutes, cell); err != nil {
			return time.Time{}, fmt.Errorf("%q is no RFC 3339 time with an offset, such as 2026-03-02T00:05:00Z", cell)
		}
	}
	if at.Year() < 1970 || at.Year() > 2200 {
		return time.Time{}, fmt.Errorf("year %d is outside 1970 to 2200", at.Year())
	}
	return at.UTC(), nil
}

// value wants a plain decimal number.
func (p *parser) value(cell string) (*float64, error) {
	if cell == "" {
		return nil, nil
	}
	if strings.ContainsAny(cell, "xXpP_iInN") { // hexadecimal, inf, nan
		return nil, fmt.Errorf("%q is no decimal number", cell)
	}
	v, err := strconv.ParseFloat(cell, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is no decimal number", cell)
	}
	if err := signals.CheckValue(p.kind, v); err != nil {
		return nil, err
	}
	return &v, nil
}

// WriteCSV writes the trace so that Read gives the same back.
func (t *Trace) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write(append([]string{timeColumns[0]}, t.regions...)); err != nil {
		return fmt.Errorf("replay: write trace %s: %w", t.Name, err)
	}
	rec := make([]string, 1+len(t.regions))
	for row, at := range t.times {
		rec[0] = at.UTC().Format(time.RFC3339Nano)
		for i, column := range t.columns {
			rec[i+1] = ""
			if v := column[row]; v != nil {
				rec[i+1] = strconv.FormatFloat(*v, 'f', -1, 64)
			}
		}
		if err := out.Write(rec); err != nil {
			return fmt.Errorf("replay: write trace %s: %w", t.Name, err)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("replay: write trace %s: %w", t.Name, err)
	}
	return nil
}
