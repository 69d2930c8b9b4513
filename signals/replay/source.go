package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"girassol.dev/signals"
)

// ErrOutside says that the clock shows a time that the trace does not have.
var ErrOutside = errors.New("outside the trace")

// Source serves the point of the moment of one series, as a provider would.
type Source struct {
	series *Series
	clock  signals.Clock
	name   string
}

// NewSource serves series under clock; give series.Repeat() for a trace that
// wraps, otherwise reading ends with it. Name is shown as the readings' source.
func NewSource(series *Series, clock signals.Clock, name string) *Source {
	return &Source{series: series, clock: clock, name: name}
}

// Latest is the newest point at or before now, with a nil value where the trace
// has none. Outside a trace that does not repeat it fails with ErrOutside.
func (s *Source) Latest(context.Context) (signals.Reading, error) {
	now := s.clock.Now()
	if !s.series.repeat && (now.Before(s.series.Start()) || !now.Before(s.series.End())) {
		return signals.Reading{}, fmt.Errorf("replay: region %s from %s: %s is %w (%s to %s)", s.series.Region, s.name,
			stamp(now), ErrOutside, stamp(s.series.Start()), stamp(s.series.End()))
	}
	at, value := s.series.point(now)
	return signals.Reading{
		Kind: s.series.Kind, Unit: s.series.Unit, Region: s.series.Region, Value: value,
		PointTime: at, ReceivedTime: now, Period: s.series.period, Source: s.name, Quality: signals.Good,
	}, nil
}

// point is the newest point at or before now, which must not lie before the
// start of a series that does not repeat.
func (s *Series) point(now time.Time) (time.Time, *float64) {
	var shift time.Duration
	if s.repeat {
		now, shift = s.wrap(now)
	}
	i := s.after(now) - 1
	return s.times[i].Add(shift), copied(s.values[i])
}
