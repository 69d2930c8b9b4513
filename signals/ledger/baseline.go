package ledger

import (
	"fmt"
	"time"

	"girassol.dev/signals"
)

// Trace is an intensity with a beginning and an end, which it may be repeated
// after.
type Trace interface {
	Intensity
	Start() time.Time
	End() time.Time
}

// Baseline is one site, always on, doing the same work from the same start.
type Baseline struct {
	Region   string
	Start    time.Time
	Duration time.Duration
	Joules   float64
	// Grams is nil if no intensity was known; CoveredJoules is the energy for
	// which one was.
	Grams         *float64
	CoveredJoules float64
	// Repeated says that the run was longer than the trace from its start, so
	// that the trace was begun anew.
	Repeated bool
}

// AlwaysOn computes a baseline on a region's trace: duration is the useful
// site-hours of the run that it is compared with, watts its training power.
func AlwaysOn(region string, trace Trace, start time.Time, duration time.Duration, watts, pue float64) (Baseline, error) {
	a, err := account(Grid{Marginal: wrapped{trace}}, start, start.Add(duration), watts, pue)
	if err != nil {
		return Baseline{}, fmt.Errorf("ledger: baseline of region %s: %w", region, err)
	}
	return Baseline{
		Region: region, Start: start, Duration: duration,
		Joules: a.Joules, Grams: a.MarginalGrams, CoveredJoules: a.MarginalJoules,
		Repeated: start.Before(trace.Start()) || start.Add(duration).After(trace.End()),
	}, nil
}

// wrapped goes on with a trace's beginning after its end.
type wrapped struct{ trace Trace }

func (w wrapped) At(t time.Time) signals.Step {
	start, length := w.trace.Start(), w.trace.End().Sub(w.trace.Start())
	d := t.Sub(start)
	laps := d / length
	if d < 0 && d%length != 0 {
		laps--
	}
	step := w.trace.At(t.Add(-laps * length))
	if !step.From.IsZero() {
		step.From = step.From.Add(laps * length)
	}
	if !step.Until.IsZero() {
		step.Until = step.Until.Add(laps * length)
	}
	return step
}
