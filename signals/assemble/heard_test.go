package assemble

import (
	"context"
	"testing"
	"time"

	"girassol.dev/signals"
)

// scripted gives one reading after the other.
type scripted []signals.Reading

func (s *scripted) Latest(context.Context) (signals.Reading, error) {
	r := (*s)[0]
	*s = (*s)[1:]
	return r, nil
}

func TestLiveIntensityIsKnownForItsPeriodOnly(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	point := func(minute int, v float64) signals.Reading {
		return signals.Reading{Kind: signals.Marginal, Unit: signals.PoundsPerMWh, Value: &v, PointTime: t0.Add(time.Duration(minute) * time.Minute), Period: 5 * time.Minute}
	}
	missing := point(10, 0)
	missing.Value = nil
	h := &heard{Source: &scripted{point(0, 1000), point(5, 2000), point(5, 3000), missing, point(0, 7)}}
	for range 5 {
		if _, err := h.Latest(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for minute, want := range map[float64]float64{0: 453.59237, 4.9: 453.59237, 5: 1360.77711, 9.9: 1360.77711, 10: -1, 30: -1, -1: -1} {
		at := t0.Add(time.Duration(minute * float64(time.Minute)))
		got := h.At(at)
		if at.Before(got.From) || !at.Before(got.Until) {
			t.Errorf("minute %v lies outside its step [%s, %s)", minute, got.From, got.Until)
		}
		if (got.Value == nil) != (want < 0) || got.Value != nil && (*got.Value-want > 1e-6 || want-*got.Value > 1e-6) {
			t.Errorf("minute %v: %v, want %v", minute, got.Value, want)
		}
	}
}
