package simulate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/replay"
)

// traceUnits are the ways to write a trace's unit, in a header and in --unit.
var traceUnits = []struct {
	name string
	kind signals.Kind
	unit signals.Unit
}{
	{"g/kWh", signals.Marginal, signals.GramsPerKWh},
	{"gCO2/kWh", signals.Marginal, signals.GramsPerKWh},
	{"lb/MWh", signals.Marginal, signals.PoundsPerMWh},
	{"lbCO2/MWh", signals.Marginal, signals.PoundsPerMWh},
	{"percentile", signals.Percentile, signals.PercentileOf},
}

// unitNames for messages.
const unitNames = "g/kWh, lb/MWh or percentile"

func parseUnit(name string) (signals.Kind, signals.Unit, error) {
	for _, u := range traceUnits {
		if strings.EqualFold(u.name, name) {
			return u.kind, u.unit, nil
		}
	}
	return "", "", fmt.Errorf("unit %q: want %s", name, unitNames)
}

// traces are the columns of all files, by kind and region. Several files of one
// region follow one another in time.
type traces struct {
	columns map[columnKey]*replay.Series
	regions []string // in order of appearance
}

type columnKey struct {
	kind   signals.Kind
	region string
}

// read adds a file. Unit is what --unit says, for files whose headers do not.
// With average all intensities are of the average kind.
func (t *traces) read(path, unit string, average bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, replay.MaxLine)
	line, err := in.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("trace %s: its first line: %w", filepath.Base(path), err)
	}
	header, named, err := headerUnit(string(line))
	if err != nil {
		return fmt.Errorf("trace %s: %w", filepath.Base(path), err)
	}
	if named != "" {
		unit = named
	}
	kind, u, err := parseUnit(unit)
	if err != nil {
		return fmt.Errorf("trace %s: %w", filepath.Base(path), err)
	}
	if average {
		if kind != signals.Marginal {
			return fmt.Errorf("trace %s: the average ledger needs an intensity, not %s", filepath.Base(path), unit)
		}
		kind = signals.Average
	}
	trace, err := replay.Read(io.MultiReader(bytes.NewReader([]byte(header)), in), filepath.Base(path), kind, u)
	if err != nil {
		return err
	}
	return t.add(trace)
}

// headerUnit takes the units out of a header: "region [lb/MWh]". A file has one
// unit.
func headerUnit(line string) (header, unit string, err error) {
	cells := strings.Split(strings.TrimRight(line, "\r\n"), ",")
	for i, cell := range cells {
		name, rest, found := strings.Cut(strings.TrimRight(cell, " "), "[")
		u, closed := strings.CutSuffix(rest, "]")
		if !found || !closed {
			continue
		}
		if unit != "" && !strings.EqualFold(u, unit) {
			return "", "", fmt.Errorf("its header has units %q and %q: put them into files of their own", unit, u)
		}
		if _, _, err := parseUnit(u); err != nil {
			return "", "", fmt.Errorf("its header: %w", err)
		}
		unit = u
		cells[i] = strings.TrimSpace(name)
	}
	return strings.Join(cells, ",") + "\n", unit, nil
}

// add takes every column of a trace.
func (t *traces) add(trace *replay.Trace) error {
	if t.columns == nil {
		t.columns = map[columnKey]*replay.Series{}
	}
	for _, region := range trace.Regions() {
		one, err := trace.Column(region)
		if err != nil {
			return err
		}
		key := columnKey{trace.Kind, region}
		if !slices.Contains(t.regions, region) {
			t.regions = append(t.regions, region)
		}
		if before := t.columns[key]; before != nil {
			if one, err = joined(before, one); err != nil {
				return fmt.Errorf("trace %s: %w", trace.Name, err)
			}
		}
		t.columns[key] = one
	}
	return nil
}

// joined is one series that is as long as both.
func joined(a, b *replay.Series) (*replay.Series, error) {
	if b.Start().Before(a.Start()) {
		a, b = b, a
	}
	if b.Start().Before(a.Time(a.Len() - 1).Add(1)) {
		return nil, fmt.Errorf("two files both have region %s at %s", a.Region, stamp(b.Start()))
	}
	first, err := single(a)
	if err != nil {
		return nil, err
	}
	second, err := single(b)
	if err != nil {
		return nil, err
	}
	if first, err = first.Append(second); err != nil {
		return nil, err
	}
	return first.Column(a.Region)
}

// single is a series as a trace of one column.
func single(s *replay.Series) (*replay.Trace, error) {
	times := make([]time.Time, s.Len())
	values := make([]*float64, s.Len())
	for i := range times {
		times[i], values[i] = s.Point(i)
	}
	return replay.NewTrace("region "+s.Region, s.Kind, s.Unit, times, []string{s.Region}, [][]*float64{values})
}

// series of a region, nil if there is none.
func (t *traces) series(kind signals.Kind, region string) *replay.Series {
	return t.columns[columnKey{kind, region}]
}

// grams is a region's series in gCO2/kWh, nil if there is none.
func (t *traces) grams(kind signals.Kind, region string) *replay.Series {
	s := t.series(kind, region)
	if s == nil {
		return nil
	}
	g, err := s.Grams()
	if err != nil {
		return nil // no intensity
	}
	return g
}

// span from the first start to the last end of the traces that sites decide by.
func spanOf(series []*replay.Series) (from, to time.Time) {
	for _, s := range series {
		if from.IsZero() || s.Start().Before(from) {
			from = s.Start()
		}
		to = later(to, s.End())
	}
	return from, to
}
