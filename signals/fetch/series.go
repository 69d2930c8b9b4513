package fetch

import (
	"slices"
	"time"

	"girassol.dev/signals"
)

// Usable copies a value. One that the kind cannot have, such as a negative
// intensity, is no value; the quality says so.
func Usable(k signals.Kind, v *float64, q signals.Quality) (*float64, signals.Quality) {
	if v == nil {
		return nil, q
	}
	if signals.CheckValue(k, *v) != nil {
		return nil, signals.Suspect
	}
	c := *v
	return &c, q
}

// Ordered sorts readings by point time. Of several for one time the last given
// stands: it is the newer.
func Ordered(rs []signals.Reading) []signals.Reading {
	slices.SortStableFunc(rs, func(a, b signals.Reading) int { return a.PointTime.Compare(b.PointTime) })
	out := rs[:0]
	for _, r := range rs {
		if n := len(out); n > 0 && out[n-1].PointTime.Equal(r.PointTime) {
			out[n-1] = r
			continue
		}
		out = append(out, r)
	}
	return out
}

// OrderedPoints sorts a forecast's points by start, keeps the last given of each
// start, and ends a point where the next begins.
func OrderedPoints(ps []signals.ForecastPoint) []signals.ForecastPoint {
	slices.SortStableFunc(ps, func(a, b signals.ForecastPoint) int { return a.Start.Compare(b.Start) })
	out := ps[:0]
	for _, p := range ps {
		if n := len(out); n > 0 {
			if out[n-1].Start.Equal(p.Start) {
				out[n-1] = p
				continue
			}
			out[n-1].Duration = min(out[n-1].Duration, p.Start.Sub(out[n-1].Start))
		}
		out = append(out, p)
	}
	return out
}

// Between copies the readings whose point times lie in [from, to).
func Between(rs []signals.Reading, from, to time.Time) []signals.Reading {
	var out []signals.Reading
	for _, r := range rs {
		if !r.PointTime.Before(from) && r.PointTime.Before(to) {
			out = append(out, Copy(r))
		}
	}
	return out
}

// Copy shares nothing with r.
func Copy(r signals.Reading) signals.Reading {
	if r.Value != nil {
		v := *r.Value
		r.Value = &v
	}
	return r
}

// Present is the reading that speaks for now: the one that covers it, or the
// newest before it, or else the first.
func Present(rs []signals.Reading, now time.Time) (signals.Reading, bool) {
	if len(rs) == 0 {
		return signals.Reading{}, false
	}
	best := rs[0]
	for _, r := range rs[1:] {
		if r.PointTime.After(now) {
			break
		}
		best = r
	}
	return Copy(best), true
}

// Pieces of [from, to) that are at most long; the end of one is the beginning of
// the next.
func Pieces(from, to time.Time, long time.Duration) [][2]time.Time {
	var out [][2]time.Time
	for from.Before(to) {
		end := from.Add(long)
		if end.After(to) {
			end = to
		}
		out = append(out, [2]time.Time{from, end})
		from = end
	}
	return out
}
