package simulate

import (
	"encoding/csv"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/replay"
)

// issues are forecasts by region, in order of issue.
type issues map[string][]signals.Forecast

// readForecasts reads forecasts as they were published: a header of
// generated_at, point_time and one column per region (with units as in a
// trace), then rows by issue and, within an issue, by time. Times are RFC 3339
// with an offset. An empty cell is no value. A point holds until the next one of
// its issue, the last one as long as the one before it.
func readForecasts(path, unit string) (issues, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out, err := parseForecasts(f, filepath.Base(path), unit)
	if err != nil {
		return nil, fmt.Errorf("forecasts %s: %w", filepath.Base(path), err)
	}
	return out, nil
}

// mostForecastBytes and mostForecastRows bound a file.
const (
	mostForecastBytes = 256 << 20
	mostForecastRows  = 4_000_000
)

func parseForecasts(r io.Reader, name, unit string) (issues, error) {
	in := csv.NewReader(io.LimitReader(r, mostForecastBytes))
	in.ReuseRecord = true
	first, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("its header: %w", err)
	}
	header, named, err := headerUnit(strings.TrimPrefix(strings.Join(first, ","), "\ufeff"))
	if err != nil {
		return nil, err
	}
	cells := strings.Split(strings.TrimSpace(header), ",")
	if len(cells) < 3 || cells[0] != "generated_at" || cells[1] != "point_time" {
		return nil, errors.New("its header must be generated_at,point_time and one column per region")
	}
	regions := cells[2:]
	for i, region := range regions {
		if strings.TrimSpace(region) != region || region == "" || slices.Contains(regions[:i], region) {
			return nil, fmt.Errorf("its header: region %q is empty, padded or there twice", region)
		}
	}
	if named != "" {
		unit = named
	}
	kind, u, err := parseUnit(unit)
	if err != nil {
		return nil, err
	}
	open := make([]signals.Forecast, len(regions))
	out := issues{}
	finish := func() error {
		for i, f := range open {
			open[i] = signals.Forecast{}
			if len(f.Points) == 0 {
				continue
			}
			f = lasting(f)
			if err := f.Validate(); err != nil {
				return fmt.Errorf("issue %s: %w", stamp(f.GeneratedAt), err)
			}
			out[regions[i]] = append(out[regions[i]], f)
		}
		return nil
	}
	var issued, last time.Time
	for rows := 0; ; rows++ {
		rec, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := in.FieldPos(0)
		if rows == mostForecastRows {
			return nil, fmt.Errorf("more than %d rows", mostForecastRows)
		}
		generated, err := parseTime(rec[0])
		if err != nil {
			return nil, fmt.Errorf("line %d generated_at: %w", line, err)
		}
		at, err := parseTime(rec[1])
		if err != nil {
			return nil, fmt.Errorf("line %d point_time: %w", line, err)
		}
		switch {
		case generated.Before(issued):
			return nil, fmt.Errorf("line %d: issue %s follows %s: sort the rows by generated_at", line, stamp(generated), stamp(issued))
		case generated.After(issued):
			if err := finish(); err != nil {
				return nil, err
			}
			issued = generated
		case !at.After(last):
			return nil, fmt.Errorf("line %d: point %s is not after %s", line, stamp(at), stamp(last))
		}
		last = at
		for i, cell := range rec[2:] {
			var v *float64
			if cell != "" {
				x, err := strconv.ParseFloat(cell, 64)
				if err == nil {
					err = signals.CheckValue(kind, x)
				}
				if err != nil {
					return nil, fmt.Errorf("line %d %s: %q: want a number or nothing: %w", line, regions[i], cell, err)
				}
				v = &x
			}
			open[i].Kind, open[i].Unit, open[i].Region = kind, u, regions[i]
			open[i].GeneratedAt, open[i].Source, open[i].Quality = generated, name, signals.Forecasted
			open[i].Points = append(open[i].Points, signals.ForecastPoint{Start: at, Value: v})
		}
	}
	return out, finish()
}

// lasting fills in how long the points hold.
func lasting(f signals.Forecast) signals.Forecast {
	for i := range f.Points {
		switch {
		case i+1 < len(f.Points):
			f.Points[i].Duration = f.Points[i+1].Start.Sub(f.Points[i].Start)
		case i > 0:
			f.Points[i].Duration = f.Points[i-1].Duration
		default:
			f.Points[i].Duration = replay.DefaultPeriod
		}
	}
	return f
}

func parseTime(cell string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, cell)
	if err != nil {
		t, err = time.Parse("2006-01-02T15:04Z07:00", cell)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no RFC 3339 time with an offset, such as 2026-03-02T00:05:00Z", cell)
	}
	if t.Year() < 1970 || t.Year() > 2200 {
		return time.Time{}, fmt.Errorf("year %d is outside 1970 to 2200", t.Year())
	}
	return t.UTC(), nil
}

// Made describes forecasts made of a trace where none were recorded.
type Made struct {
	// Every is the time between two issues, Horizon how far each reaches.
	Every, Horizon time.Duration
	// Error is the relative deviation of a point a day ahead; it grows with the
	// square root of the time ahead. 0: the forecast knows the trace.
	Error float64
	Seed  uint64
}

// memory is the correlation of the errors of two points five minutes apart.
const memory = 0.97

// issues of a series: what it will be, with errors that are correlated in time
// and of their own in each issue.
func (m Made) issues(s *replay.Series) []signals.Forecast {
	h := fnv.New64a()
	_, _ = h.Write([]byte("forecast/" + s.Region))
	random := rand.New(rand.NewPCG(m.Seed, h.Sum64()))
	var out []signals.Forecast
	row := 0
	for at := s.Start(); at.Before(s.End()); at = at.Add(m.Every) {
		for row+1 < s.Len() {
			if s.Time(row + 1).After(at) {
				break
			}
			row++
		}
		f := signals.Forecast{Kind: s.Kind, Unit: s.Unit, Region: s.Region, GeneratedAt: at, Source: "made of the trace", Quality: signals.Forecasted}
		noise := 0.0
		for i := row; i < s.Len(); i++ {
			t, v := s.Point(i)
			if t.Sub(at) >= m.Horizon {
				break
			}
			noise = memory*noise + math.Sqrt(1-memory*memory)*random.NormFloat64()
			if v != nil && m.Error > 0 {
				x := *v * math.Exp(m.Error*math.Sqrt(max(0, t.Sub(at).Hours())/24)*noise)
				if s.Kind == signals.Percentile {
					x = min(x, 100)
				}
				v = &x
			}
			f.Points = append(f.Points, signals.ForecastPoint{Start: t, Duration: s.Period(), Value: v})
		}
		out = append(out, trimmed(f))
	}
	return out
}

// trimmed cuts durations at the next point.
func trimmed(f signals.Forecast) signals.Forecast {
	for i := 0; i+1 < len(f.Points); i++ {
		if gap := f.Points[i+1].Start.Sub(f.Points[i].Start); gap < f.Points[i].Duration {
			f.Points[i].Duration = gap
		}
	}
	return f
}
