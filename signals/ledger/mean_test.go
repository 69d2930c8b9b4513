package ledger

import (
	"testing"
	"time"

	"girassol.dev/signals"
)

// steps are values that hold an hour each, from the zero hour; nil is not known.
type steps []*float64

func (s steps) At(t time.Time) signals.Step {
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	i := int(t.Sub(zero) / time.Hour)
	if i >= len(s) {
		return signals.Step{From: t}
	}
	from := zero.Add(time.Duration(i) * time.Hour)
	return signals.Step{From: from, Until: from.Add(time.Hour), Value: s[i]}
}

func TestMeanCountsOnlyWhatIsKnownAndDoesNotDependOnTheSpans(t *testing.T) {
	x := steps{new(100.), nil, new(400.)}
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, ok := (Mean{}).GramsPerKWh(); ok {
		t.Error("nothing known has a mean")
	}
	whole := Mean{}.Over(x, zero, zero.Add(5*time.Hour))
	var parts Mean
	for at := zero; at.Before(zero.Add(5 * time.Hour)); at = at.Add(20 * time.Minute) {
		parts = parts.Over(x, at, at.Add(20*time.Minute))
	}
	for name, m := range map[string]Mean{"whole": whole, "parts": parts} {
		if g, ok := m.GramsPerKWh(); !ok || g != 250 || m.Seconds != 7200 {
			t.Errorf("%s: %g g/kWh over %g s, want 250 over 7200", name, g, m.Seconds)
		}
	}
}
