// Package signals holds what is measured of electricity: a Reading with its
// kind, unit, region and validity, the Step that a signal takes over a span of
// time, and the Clock under which signals are read.
//
// It owns the rules that keep readings honest: which unit belongs to which kind,
// that a missing value is never zero, when a reading is stale. It must not know
// Kubernetes, training, rounds or sites.
package signals

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Kind says what a signal measures. Kinds are never mixed: a marginal and an
// average intensity of the same minute are two different quantities.
type Kind string

// The kinds of signals.
const (
	// Marginal is the intensity of the generation that answers one more kWh.
	Marginal Kind = "marginal"
	// Average is the intensity of all generation.
	Average Kind = "average"
	// Percentile ranks the present intensity in its past, 0 clean to 100 dirty.
	Percentile Kind = "percentile"
	// Price of energy; may be negative.
	Price Kind = "price"
	// RenewableShare of the load; may exceed 100 %.
	RenewableShare Kind = "renewable_share"
	// TrafficLight is a grid operator's advice to consumers: -1 the grid is
	// congested, 0 red, 1 yellow, 2 green.
	TrafficLight Kind = "traffic_light"
)

// Unit is the unit of a value, always said with it.
type Unit string

// The units.
const (
	GramsPerKWh   Unit = "gCO2/kWh"
	PoundsPerMWh  Unit = "lbCO2/MWh"
	PercentileOf  Unit = "percentile"
	EurosPerMWh   Unit = "EUR/MWh"
	DollarsPerMWh Unit = "USD/MWh"
	Percent       Unit = "%"
	Level         Unit = "level"
)

// GramsPerPound is exact: one international avoirdupois pound in grams. A pound
// per MWh is GramsPerPound/1000 grams per kWh.
const GramsPerPound = 453.59237

// MaxPeriod is the longest that one reading may claim to hold.
const MaxPeriod = 100 * 24 * time.Hour

// gracePeriods is how many periods a reading outlives its validity before it is
// stale.
const gracePeriods = 2

// Quality says how far to trust a value.
type Quality string

// The qualities. The empty quality is Good.
const (
	Good       Quality = "ok"
	Estimated  Quality = "estimated"
	Imputed    Quality = "imputed"
	Forecasted Quality = "forecast"
	// Suspect values are shown but never open a window.
	Suspect Quality = "suspect"
)

// units lists which units each kind may have.
var units = map[Kind][]Unit{
	Marginal:       {GramsPerKWh, PoundsPerMWh},
	Average:        {GramsPerKWh, PoundsPerMWh},
	Percentile:     {PercentileOf},
	Price:          {EurosPerMWh, DollarsPerMWh},
	RenewableShare: {Percent},
	TrafficLight:   {Level},
}

// CheckUnit refuses a kind that does not exist and a unit that does not belong
// to it.
func CheckUnit(k Kind, u Unit) error {
	allowed, ok := units[k]
	if !ok {
		return fmt.Errorf("unknown kind %q", k)
	}
	for _, a := range allowed {
		if a == u {
			return nil
		}
	}
	return fmt.Errorf("%s is not given in %q, use one of %q", k, u, allowed)
}

// CheckValue refuses values that the kind cannot have.
func CheckValue(k Kind, v float64) error {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return fmt.Errorf("%s %v is no number", k, v)
	case (k == Marginal || k == Average || k == RenewableShare) && v < 0:
		return fmt.Errorf("%s %v is negative", k, v)
	case k == Percentile && (v < 0 || v > 100):
		return fmt.Errorf("percentile %v is outside 0 to 100", v)
	case k == TrafficLight && v != -1 && v != 0 && v != 1 && v != 2:
		return fmt.Errorf("traffic light %v is none of -1, 0, 1 and 2", v)
	}
	return nil
}

// Reading is one point of a signal. It holds from PointTime for Period.
type Reading struct {
	Kind   Kind
	Unit   Unit
	Region string
	// Value is nil when there is none; a pointer to 0 is a zero.
	Value *float64
	// Omitted tells a nil value that the source left out from one that it gave
	// as null; both mean that there is no value.
	Omitted bool
	// PointTime is the start of the span the value speaks for.
	PointTime    time.Time
	ReceivedTime time.Time
	Period       time.Duration
	// Source names where the reading came from.
	Source  string
	Quality Quality
	// Model tells what the values were made with, such as the date of a
	// provider's model or its factors ("lifecycle", "direct"); "" if not said.
	// Values of two models are not comparable.
	Model string
}

// Validate refuses a reading that cannot be right, naming its region.
func (r Reading) Validate() error {
	if err := r.check(); err != nil {
		return fmt.Errorf("signals: reading of region %q from %q: %w", r.Region, r.Source, err)
	}
	return nil
}

func (r Reading) check() error {
	if err := CheckUnit(r.Kind, r.Unit); err != nil {
		return err
	}
	if r.PointTime.IsZero() {
		return errors.New("no point time")
	}
	if r.Period <= 0 || r.Period > MaxPeriod {
		return fmt.Errorf("period %s is outside 0 to %s", r.Period, MaxPeriod)
	}
	switch r.Quality {
	case "", Good, Estimated, Imputed, Forecasted, Suspect:
	default:
		return fmt.Errorf("unknown quality %q", r.Quality)
	}
	if r.Value == nil {
		return nil
	}
	return CheckValue(r.Kind, *r.Value)
}

// Normalized gives intensities in gCO2/kWh and everything else as it is. The
// value is copied, so that changing one reading never changes the other.
func (r Reading) Normalized() Reading {
	if r.Value == nil {
		if r.Unit == PoundsPerMWh {
			r.Unit = GramsPerKWh
		}
		return r
	}
	v := *r.Value
	if r.Unit == PoundsPerMWh {
		v, r.Unit = GramsFromPounds(v), GramsPerKWh
	}
	r.Value = &v
	return r
}

// GramsFromPounds converts lbCO2/MWh to gCO2/kWh.
func GramsFromPounds(lb float64) float64 { return lb * GramsPerPound / 1000 }

// ValidUntil is the end of the span the value speaks for.
func (r Reading) ValidUntil() time.Time { return r.PointTime.Add(r.Period) }

// Covers says whether t lies in [PointTime, PointTime+Period).
func (r Reading) Covers(t time.Time) bool {
	return !t.Before(r.PointTime) && t.Before(r.ValidUntil())
}

// StaleAt is when a point stops counting as present: its validity plus a grace
// of two periods.
func (r Reading) StaleAt() time.Time { return StaleAt(r.PointTime, r.Period) }

// StaleAt is Reading.StaleAt for a point without its reading.
func StaleAt(point time.Time, period time.Duration) time.Time {
	return point.Add((1 + gracePeriods) * period)
}

// Fresh says that there is a value and that it is not stale at t. A point of up
// to one period ahead is fresh too: clocks of providers differ from ours.
func (r Reading) Fresh(t time.Time) bool {
	return r.Value != nil && !t.Before(r.PointTime.Add(-r.Period)) && t.Before(r.StaleAt())
}

// Step is the value that a signal holds over [From, Until). A zero From or
// Until means that the step has no known beginning or end. Value is nil when
// nothing is known of the span.
type Step struct {
	From, Until time.Time
	Value       *float64
}
