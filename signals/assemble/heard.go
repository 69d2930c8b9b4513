package assemble

import (
	"context"
	"sync"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/director"
)

// heardPoints is how many readings of a live source the ledger can look back on.
const heardPoints = 16

// heard is a live source that remembers what it said, so that the ledger books
// energy at the intensity that was known at the time.
type heard struct {
	director.Source

	mu     sync.Mutex
	points []signals.Reading // in gCO2/kWh, oldest first
}

// Latest implements director.Source.
func (h *heard) Latest(ctx context.Context) (signals.Reading, error) {
	r, err := h.Source.Latest(ctx)
	if n := r.Normalized(); err == nil && n.Value != nil && n.Unit == signals.GramsPerKWh {
		h.keep(n)
	}
	return r, err
}

func (h *heard) keep(r signals.Reading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.points); n > 0 && !r.PointTime.After(h.points[n-1].PointTime) {
		if r.PointTime.Equal(h.points[n-1].PointTime) {
			h.points[n-1] = r // revised
		}
		return
	}
	h.points = append(h.points, r)
	if len(h.points) > heardPoints {
		h.points = h.points[1:]
	}
}

// At implements ledger.Intensity: a value holds for its period, not longer.
func (h *heard) At(t time.Time) signals.Step {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := t.Add(time.Second) // a new point may be known by then
	for i := len(h.points) - 1; i >= 0; i-- {
		p := h.points[i]
		if t.Before(p.PointTime) {
			next = p.PointTime
			continue
		}
		until := p.ValidUntil()
		if next.Before(until) && i < len(h.points)-1 {
			until = next
		}
		if t.Before(until) {
			return signals.Step{From: p.PointTime, Until: until, Value: p.Value}
		}
		break
	}
	return signals.Step{From: t, Until: next}
}

// forecasting is a heard source that also looks ahead.
type forecasting struct {
	*heard
	signals.Forecaster
}
