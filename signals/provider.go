package signals

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"girassol.dev/api/federation/v1alpha1"
)

// Source gives the newest reading of one signal in one region.
type Source interface {
	Latest(ctx context.Context) (Reading, error)
}

// Historian gives the readings whose point times lie in [from, to), by time,
// each time once. A span without any is an empty list, not an error.
type Historian interface {
	History(ctx context.Context, from, to time.Time) ([]Reading, error)
}

// Forecaster gives the newest forecast. Together with an error it gives the last
// good one while that still reaches beyond the present, otherwise one without
// points.
type Forecaster interface {
	Forecast(ctx context.Context) (Forecast, error)
}

// Forecast is what a provider expects, as issued at GeneratedAt.
type Forecast struct {
	Kind   Kind
	Unit   Unit
	Region string
	// GeneratedAt orders forecasts: a later one replaces an earlier one.
	GeneratedAt time.Time
	Source      string
	// Model is Reading.Model.
	Model   string
	Quality Quality
	// Points by Start, not overlapping; there may be gaps, and it may end before
	// the horizon that was asked for.
	Points []ForecastPoint
}

// ForecastPoint is what is expected over [Start, Start+Duration).
type ForecastPoint struct {
	Start    time.Time
	Duration time.Duration
	// Value is nil when none is forecast; it is never 0 for that.
	Value *float64
}

// End is when the last point ends; zero without points.
func (f Forecast) End() time.Time {
	if len(f.Points) == 0 {
		return time.Time{}
	}
	p := f.Points[len(f.Points)-1]
	return p.Start.Add(p.Duration)
}

// At is the point that covers t.
func (f Forecast) At(t time.Time) (ForecastPoint, bool) {
	i, found := slices.BinarySearchFunc(f.Points, t, func(p ForecastPoint, t time.Time) int { return p.Start.Compare(t) })
	if !found {
		i--
	}
	if i < 0 || !t.Before(f.Points[i].Start.Add(f.Points[i].Duration)) {
		return ForecastPoint{}, false
	}
	return f.Points[i], true
}

// Clone shares nothing with f.
func (f Forecast) Clone() Forecast {
	f.Points = slices.Clone(f.Points)
	for i, p := range f.Points {
		if p.Value != nil {
			v := *p.Value
			f.Points[i].Value = &v
		}
	}
	return f
}

// Normalized gives intensities in gCO2/kWh and everything else as it is; it
// shares nothing with f.
func (f Forecast) Normalized() Forecast {
	f = f.Clone()
	if f.Unit != PoundsPerMWh {
		return f
	}
	f.Unit = GramsPerKWh
	for _, p := range f.Points {
		if p.Value != nil {
			*p.Value = GramsFromPounds(*p.Value)
		}
	}
	return f
}

// Validate refuses a forecast that cannot be right.
func (f Forecast) Validate() error {
	refuse := func(err error) error {
		return fmt.Errorf("signals: forecast of region %q from %q: %w", f.Region, f.Source, err)
	}
	if err := CheckUnit(f.Kind, f.Unit); err != nil {
		return refuse(err)
	}
	for i, p := range f.Points {
		switch {
		case p.Start.IsZero():
			return refuse(fmt.Errorf("point %d has no start", i))
		case p.Duration <= 0 || p.Duration > MaxPeriod:
			return refuse(fmt.Errorf("point %d lasts %s, which is outside 0 to %s", i, p.Duration, MaxPeriod))
		case i > 0 && p.Start.Before(f.Points[i-1].Start.Add(f.Points[i-1].Duration)):
			return refuse(fmt.Errorf("point %d begins at %s, before the one in front of it ends", i, p.Start.Format(time.RFC3339)))
		}
		if p.Value != nil {
			if err := CheckValue(f.Kind, *p.Value); err != nil {
				return refuse(err)
			}
		}
	}
	return nil
}

// LastForecast keeps a forecast until its own end, so that an answer without one
// does not take away what is known. It is safe for concurrent use.
type LastForecast struct {
	mu   sync.Mutex
	last Forecast
}

// Keep is what a Forecaster answers when it got f or err at now: the newer of f
// and the last one, or with an error the last one if it reaches beyond now.
func (l *LastForecast) Keep(f Forecast, err error, now time.Time) (Forecast, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && (len(l.last.Points) == 0 || !f.GeneratedAt.Before(l.last.GeneratedAt) ||
		f.Region != l.last.Region || !l.last.End().After(now)) {
		l.last = f.Clone()
		return f, nil
	}
	if !l.last.End().After(now) {
		l.last = Forecast{}
	}
	return l.last.Clone(), err
}

// ProviderError is why a provider gave nothing. Its reason is one of the
// ReasonSignal… words, shown as such in conditions and metrics.
type ProviderError struct {
	// Provider, Region and Endpoint say what was asked for.
	Provider, Region, Endpoint string
	Reason                     v1alpha1.Reason
	// Permanent says that asking again changes nothing until a person does:
	// wrong credentials, a plan that does not cover the region, a region that
	// does not exist.
	Permanent bool
	// RetryAt is before when asking again is answered with the same error
	// without a call; zero when it may be asked at once.
	RetryAt time.Time
	// Status is the HTTP status, 0 without an answer.
	Status int
	// Detail says what happened and the way out, without credentials.
	Detail string
	// Err is the cause; may be nil.
	Err error
}

// Error implements error.
func (e *ProviderError) Error() string {
	var b strings.Builder
	b.WriteString(e.Provider)
	if e.Region != "" {
		b.WriteString(": region " + e.Region)
	}
	if e.Endpoint != "" {
		b.WriteString(": " + e.Endpoint)
	}
	b.WriteString(": " + string(e.Reason))
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *ProviderError) Unwrap() error { return e.Err }
