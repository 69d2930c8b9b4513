package ledger

import "time"

// Mean is an intensity's time average over the spans in which it was known.
type Mean struct {
	// GramSeconds is the integral, in gCO2/kWh times seconds; Seconds is its length.
	GramSeconds float64 `json:"gramSeconds"`
	Seconds     float64 `json:"seconds"`
}

// Over takes in what is known of the intensity from one time to another.
func (m Mean) Over(x Intensity, from, to time.Time) Mean {
	for t := from; t.Before(to); {
		s := x.At(t)
		end := to
		if !s.Until.IsZero() && s.Until.Before(end) {
			end = s.Until
		}
		if !end.After(t) {
			return m // a step that does not hold where it was asked for
		}
		if s.Value != nil {
			d := end.Sub(t).Seconds()
			m.GramSeconds, m.Seconds = m.GramSeconds+*s.Value*d, m.Seconds+d
		}
		t = end
	}
	return m
}

// GramsPerKWh is the average; not ok before anything was known.
func (m Mean) GramsPerKWh() (grams float64, ok bool) {
	if m.Seconds <= 0 {
		return 0, false
	}
	return m.GramSeconds / m.Seconds, true
}
