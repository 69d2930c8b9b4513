package openadr

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// forEver is what P9999Y means: no end is known.
const forEver = "P9999Y"

// Duration is an ISO 8601 duration: years and months of the calendar, and a span.
// The zero Duration is none.
type Duration struct {
	Years, Months int
	Span          time.Duration
	// Open: there is no end.
	Open bool
}

// ParseDuration reads P[nY][nM][nW][nD][T[nH][nM][nS]] and P9999Y. A day is 24
// hours: intervals are spans, not calendar days. Fractions are allowed of seconds
// only, signs not at all.
func ParseDuration(s string) (Duration, error) {
	if s == forEver {
		return Duration{Open: true}, nil
	}
	refuse := fmt.Errorf("%.40q is no ISO 8601 duration like PT1H", s)
	rest, ok := strings.CutPrefix(s, "P")
	if !ok || rest == "" || len(s) > 40 {
		return Duration{}, refuse
	}
	var d Duration
	date, clock, timed := strings.Cut(rest, "T")
	if timed && clock == "" {
		return Duration{}, refuse
	}
	var span float64
	for _, part := range []struct {
		text, units string
		seconds     []float64
	}{
		{date, "YMWD", []float64{0, 0, 7 * 86400, 86400}},
		{clock, "HMS", []float64{3600, 60, 1}},
	} {
		last := -1
		for text := part.text; text != ""; {
			n := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
			if n <= 0 {
				return Duration{}, refuse
			}
			unit := strings.IndexByte(part.units, text[n])
			if unit <= last {
				return Duration{}, refuse
			}
			last = unit
			number, err := strconv.ParseFloat(text[:n], 64)
			if err != nil || number > 1e6*86400 || text[n] != 'S' && number != math.Trunc(number) ||
				text[n-1] == '.' || text[0] == '.' || text[n] != 'S' && strings.Contains(text[:n], ".") {
				return Duration{}, refuse
			}
			switch {
			case part.seconds[unit] != 0:
				span += number * part.seconds[unit]
			case number > 9999:
				return Duration{}, refuse
			case text[n] == 'Y':
				d.Years = int(number)
			default:
				d.Months = int(number)
			}
			text = text[n+1:]
		}
	}
	if span > 100*365*86400 {
		return Duration{}, refuse
	}
	d.Span = time.Duration(math.Round(span * float64(time.Second)))
	return d, nil
}

// None says that the duration is of no length.
func (d Duration) None() bool { return d == Duration{} }

// After is the end of a span of d from t; zero for an open one.
func (d Duration) After(t time.Time) time.Time {
	if d.Open {
		return time.Time{}
	}
	if d.Years != 0 || d.Months != 0 {
		t = t.AddDate(d.Years, d.Months, 0)
	}
	return t.Add(d.Span)
}
