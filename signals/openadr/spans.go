package openadr

import (
	"fmt"
	"time"
)

// span is an interval's place in time.
type span struct {
	start, until time.Time // a zero until is open
	// delay that a demand may take to begin.
	delay time.Duration
}

// generated is when the event became what it is; now for servers that do not say.
func (e Event) generated(now time.Time) time.Time {
	for _, t := range []Time{e.ModificationDateTime, e.CreatedDateTime} {
		if !t.IsZero() && t.Before(now) {
			return t.Time
		}
	}
	return now
}

// spans gives each interval its place. An interval's own period overrides the
// event's; without one, intervals follow one another from the event's start, each
// as long as the event's period says.
func (e Event) spans(now time.Time, share float64) ([]span, error) {
	var next time.Time
	var common Duration
	var random string
	if p := e.IntervalPeriod; p != nil {
		next, random = p.Start.from(e.generated(now)), p.RandomizeStart
		var err error
		if common, err = optional(p.Duration); err != nil {
			return nil, fmt.Errorf("intervalPeriod: duration: %w", err)
		}
	}
	whole, err := optional(e.Duration)
	if err != nil {
		return nil, fmt.Errorf("duration: %w", err)
	}
	spans := make([]span, len(e.Intervals))
	open := false
	for i, interval := range e.Intervals {
		duration, jitter, own := common, random, false
		if p := interval.IntervalPeriod; p != nil {
			if p.Start.given() {
				next, own = p.Start.from(e.generated(now)), true
			}
			if p.Duration != "" {
				if duration, err = ParseDuration(p.Duration); err != nil {
					return nil, fmt.Errorf("interval %d: duration: %w", interval.ID, err)
				}
			}
			if p.RandomizeStart != "" {
				jitter = p.RandomizeStart
			}
		}
		switch {
		case next.IsZero():
			return nil, fmt.Errorf("interval %d: neither it nor the event has a start", interval.ID)
		case open && !own:
			return nil, fmt.Errorf("interval %d: the one in front of it has no end", interval.ID)
		case duration.None() && len(e.Intervals) == 1:
			duration = whole
		}
		if duration.None() {
			// The standard leaves it open; only the last may be.
			duration.Open = true
		}
		delay, err := optional(jitter)
		if err != nil || delay.Open || delay.Years != 0 || delay.Months != 0 {
			return nil, fmt.Errorf("interval %d: randomizeStart %.40q is no short ISO 8601 duration", interval.ID, jitter)
		}
		spans[i] = span{start: next, until: duration.After(next), delay: time.Duration(share * float64(delay.Span))}
		open = spans[i].until.IsZero()
		next = spans[i].until
		if open {
			next = spans[i].start // for the check above
		}
	}
	return spans, nil
}

// from is the start; now means when the event was made: mapping it again later
// must not move it.
func (t Time) from(made time.Time) time.Time {
	if t.Now {
		return made
	}
	return t.Time
}

func optional(s string) (Duration, error) {
	if s == "" {
		return Duration{}, nil
	}
	return ParseDuration(s)
}
