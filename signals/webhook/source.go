package webhook

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"girassol.dev/signals"
)

// ErrNothing says that nothing was pushed yet that can be read.
var ErrNothing = errors.New("nothing was pushed yet")

// Source serves what was pushed for one target and kind, as a provider would.
type Source struct {
	handler *Handler
	// source is the sender that counts; "" for all.
	source string
	target Target
	kind   signals.Kind
}

// Source makes one; source "" takes the newest of all senders.
func (h *Handler) Source(source string, t Target, kind signals.Kind) *Source {
	return &Source{handler: h, source: source, target: t, kind: kind}
}

func (s *Source) held(t Type) []held {
	s.handler.mu.Lock()
	defer s.handler.mu.Unlock()
	var out []held
	for source, streams := range s.handler.streams {
		if s.source != "" && s.source != source {
			continue
		}
		for _, kept := range streams {
			if kept.m.Type == t && kept.m.Kind == s.kind && kept.m.Target == s.target {
				out = append(out, kept)
			}
		}
	}
	// Newest first; ties in a fixed order.
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if !a.m.GeneratedAt.Equal(b.m.GeneratedAt) {
			return a.m.GeneratedAt.After(b.m.GeneratedAt)
		}
		if a.source != b.source {
			return a.source < b.source
		}
		return a.m.Series < b.m.Series
	})
	return out
}

// Latest is the newest observed reading that has begun. Where that is stale, or
// there is none, the newest forecast's point of the moment stands in, marked as
// forecast. A stale reading is better than none: it says since when.
func (s *Source) Latest(context.Context) (signals.Reading, error) {
	now := s.handler.config.Clock.Now()
	var best *signals.Reading
	for _, kept := range s.held(TypeObserved) {
		if !kept.m.ValidUntil.IsZero() && !now.Before(kept.m.ValidUntil) {
			continue
		}
		for _, p := range kept.m.Points {
			if ahead := p.Start.Sub(now); ahead > 0 && ahead > p.Period {
				continue
			}
			if best == nil || p.Start.After(best.PointTime) {
				r := kept.m.reading(p, kept.source, kept.received)
				best = &r
			}
		}
	}
	if best == nil || !now.Before(best.StaleAt()) {
		if r, ok := s.forecasted(now); ok {
			return r, nil
		}
	}
	if best == nil {
		return signals.Reading{}, fmt.Errorf("webhook: %s of %s: %w", s.kind, s.target, ErrNothing)
	}
	return *best, nil
}

func (s *Source) forecasted(now time.Time) (signals.Reading, bool) {
	for _, kept := range s.held(TypeForecast) {
		if kept.m.expired(now) || now.Sub(kept.m.GeneratedAt) > s.handler.config.MaxForecastAge {
			continue
		}
		for _, p := range kept.m.Points {
			if !now.Before(p.Start) && now.Before(p.Start.Add(p.Period)) {
				return kept.m.reading(p, kept.source, kept.received), true
			}
		}
	}
	return signals.Reading{}, false
}

// Forecast is the newest forecast that still reaches beyond the present. Series
// of one sender are joined; where they overlap the newest counts.
func (s *Source) Forecast(context.Context) (signals.Forecast, error) {
	now := s.handler.config.Clock.Now()
	var f signals.Forecast
	sender := ""
	for _, kept := range s.held(TypeForecast) {
		if len(kept.m.Points) == 0 || kept.m.expired(now) {
			continue
		}
		switch one := kept.m.forecast(kept.source); {
		case sender == "":
			f, sender = one, kept.source
		case sender == kept.source && kept.m.Unit == f.Unit:
			f.Points = joined(f.Points, one.Points)
		}
	}
	if sender == "" {
		return signals.Forecast{}, fmt.Errorf("webhook: forecast of %s of %s: %w", s.kind, s.target, ErrNothing)
	}
	return f, nil
}

// joined adds what does not overlap.
func joined(points, more []signals.ForecastPoint) []signals.ForecastPoint {
	first := points
	for _, p := range more {
		free := true
		for _, q := range first {
			if p.Start.Before(q.Start.Add(q.Duration)) && q.Start.Before(p.Start.Add(p.Duration)) {
				free = false
				break
			}
		}
		if free {
			points = append(points, p)
		}
	}
	sort.Slice(points, func(i, j int) bool { return points[i].Start.Before(points[j].Start) })
	return points
}
