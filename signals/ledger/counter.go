package ledger

import (
	"fmt"
	"math"
	"time"
)

// Counter is an energy counter: cumulative, updated in its own rhythm, starting
// anew with its driver, and wrapping if it is a register.
type Counter struct {
	// JoulesPerUnit of the counter: 1e-3 for NVML, 1e-6 for RAPL.
	JoulesPerUnit float64
	// Range is the value at which the counter wraps to 0 (RAPL's
	// max_energy_range_uj), in its units; 0 if it does not wrap.
	Range uint64
	// MaxWatts is more than the device can draw: what implies more is no reading.
	// 0: no limit.
	MaxWatts float64
	// MaxGap is the longest span between two samples in which a wrap can be told
	// from several; 0: no limit.
	MaxGap time.Duration
}

// RAPL is a powercap counter of a package, sampled at least every minute: in
// that time the fastest register wraps at most once.
func RAPL(maxEnergyRange uint64, maxWatts float64) Counter {
	return Counter{JoulesPerUnit: 1e-6, Range: maxEnergyRange, MaxWatts: maxWatts, MaxGap: time.Minute}
}

// NVML is the total energy counter of a board, in millijoules since its driver
// was loaded.
func NVML(maxWatts float64) Counter { return Counter{JoulesPerUnit: 1e-3, MaxWatts: maxWatts} }

// Validate refuses a counter without meaning.
func (c Counter) Validate() error {
	if !(c.JoulesPerUnit > 0) || math.IsInf(c.JoulesPerUnit, 0) || !(c.MaxWatts >= 0) || math.IsInf(c.MaxWatts, 0) || c.MaxGap < 0 {
		return fmt.Errorf("ledger: a counter of %v J per unit, at most %v W, gaps of %s", c.JoulesPerUnit, c.MaxWatts, c.MaxGap)
	}
	return nil
}

// CounterState is what is remembered of a counter. Its JSON round trip continues
// identically; the zero CounterState has seen nothing.
type CounterState struct {
	// At and Value of the last sample at which the counter had moved.
	At    time.Time `json:"at,omitzero"`
	Value uint64    `json:"value"`
	// Resets, Wraps, Gaps and Refused count samples: those after which the counter
	// began anew, wrapped, was not seen for too long, and implied an impossible
	// power. After a reset, a gap with a wrap or a refusal the energy since the
	// last sample is unknown.
	Resets  int64 `json:"resets,omitempty"`
	Wraps   int64 `json:"wraps,omitempty"`
	Gaps    int64 `json:"gaps,omitempty"`
	Refused int64 `json:"refused,omitempty"`
}

// Measured is the energy of a span.
type Measured struct {
	From, To time.Time
	Joules   float64
}

// Read takes a sample and gives the energy since the last one that moved, nil if
// there is none to tell: at the first sample, while the counter stands still
// (its update may be due; the energy comes with the next change, over the whole
// span), and after a reset. A sample that is not later than the last is ignored.
func (c Counter) Read(s CounterState, at time.Time, value uint64) (CounterState, *Measured) {
	at = at.Round(0).UTC()
	from := s.At
	anew := func() (CounterState, *Measured) {
		s.At, s.Value = at, value
		return s, nil
	}
	switch {
	case from.IsZero():
		return anew()
	case !at.After(from) || value == s.Value:
		return s, nil
	}
	span := at.Sub(from)
	units := value - s.Value
	if value < s.Value {
		switch {
		case c.Range == 0 || s.Value > c.Range:
			s.Resets++
			return anew()
		case c.MaxGap > 0 && span > c.MaxGap:
			s.Gaps++ // it may have wrapped more than once
			return anew()
		}
		units = c.Range - s.Value + value
		if joules := float64(units) * c.JoulesPerUnit; c.MaxWatts > 0 && joules > c.MaxWatts*span.Seconds() {
			s.Resets++ // too much for a wrap: the driver began anew
			return anew()
		}
		s.Wraps++
	} else if c.Range > 0 && c.MaxGap > 0 && span > c.MaxGap {
		s.Gaps++
		return anew()
	}
	joules := float64(units) * c.JoulesPerUnit
	if c.MaxWatts > 0 && joules > c.MaxWatts*span.Seconds() {
		s.Refused++
		return anew()
	}
	s.At, s.Value = at, value
	return s, &Measured{From: from, To: at, Joules: joules}
}
