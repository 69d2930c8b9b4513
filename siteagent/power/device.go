package power

import (
	"math"
	"time"
)

const (
	// counterLag is how late a counter may show what was drawn.
	counterLag = 100 * time.Millisecond
	// longestGap between two looks at a power sensor that still tell the energy.
	longestGap = time.Minute
)

// Event is what made an interval's energy less than sure.
type Event string

// The events. After all but a wrap the interval's energy is an estimate between
// bounds.
const (
	Wrapped Event = "the counter wrapped"
	Reset   Event = "the counter began anew"
	Gap     Event = "not readable for a while"
	Refused Event = "more than the device can draw"
	Gone    Event = "no reading any more"
)

// interval is the energy of one device between two of its readings. The true
// energy is within joules ± spread if the instrument is.
type interval struct {
	from, to       time.Time
	joules, spread float64
	// covered says that the meter has seen all of it.
	covered bool
	event   Event // "" for none
}

func (i interval) span() time.Duration { return i.to.Sub(i.from) }

// device is what is remembered of a device.
type device struct {
	last Reading
	at   time.Time // of the last reading that closed an interval, or the first
	// missed: there was no reading at some look since at.
	missed bool
	// watts in the last interval that was seen; known once there was one.
	watts float64
	known bool
}

// add takes a reading and gives the energy since the last; none at the first, for
// one that is not later, and while a counter stands still: its energy comes with
// the next change, over the whole span.
func (d *device) add(r Reading, at time.Time) (interval, bool) {
	if d.at.IsZero() {
		d.last, d.at = r, at
		return interval{}, false
	}
	span := at.Sub(d.at)
	if span <= 0 || r.Cumulative && d.last.Cumulative && r.Microjoules == d.last.Microjoules && !d.missed {
		return interval{}, false
	}
	var i interval
	switch {
	case r.Cumulative != d.last.Cumulative: // another driver
		i = d.between(0, r.MaxWatts*span.Seconds(), span, Reset)
	case r.Cumulative:
		i = d.counted(r, span)
	default:
		i = d.integrated(r, span)
	}
	i.from, i.to = d.at, at
	if !r.Cumulative {
		d.watts, d.known = r.Watts, true
	} else if i.covered {
		d.watts, d.known = i.joules/span.Seconds(), true
	}
	d.last, d.at, d.missed = r, at, false
	i.spread += r.Accuracy * i.joules
	return i, true
}

// counted is the energy between two readings of a counter. A fall that a wrap
// explains is taken for one. A reset hides what was drawn before it, and a long
// gap how often the counter wrapped, or that it began anew. A reset that shows
// neither as a fall nor as a gap cannot be seen.
func (d *device) counted(r Reading, span time.Duration) interval {
	most := r.MaxWatts * (span + counterLag).Seconds()
	value, old := r.Microjoules, d.last.Microjoules
	fell := value < old
	wraps := r.Range > 0 && r.Range == d.last.Range && old <= r.Range
	units := value - old
	if fell {
		units = value
		if wraps {
			units = r.Range - old + value
		}
	}
	joules := float64(units) / 1e6
	if joules > most {
		seen := float64(value) / 1e6
		if fell && seen <= most {
			return d.between(seen, most, span, Reset)
		}
		return d.between(0, most, span, Refused)
	}
	if fell && !wraps {
		return d.between(joules, most, span, Reset)
	}
	if wraps {
		if lap := float64(r.Range) / 1e6; joules+lap <= most {
			// Several laps are possible: that nearest to the power before.
			i := d.between(joules, most, span, Gap)
			laps := math.Round(max(i.joules-joules, 0) / lap)
			i.joules = min(joules+laps*lap, most)
			i.spread = max(i.joules-joules, most-i.joules)
			return i
		}
	} else if d.missed {
		// It may have begun anew unseen, and then more than this was drawn.
		return interval{joules: joules, spread: most - joules, event: Gap}
	}
	i := interval{joules: joules, covered: true}
	if fell {
		i.event = Wrapped
	}
	return i
}

// integrated is the energy between two readings of a power sensor, if the power
// stayed between them.
func (d *device) integrated(r Reading, span time.Duration) interval {
	s := span.Seconds()
	i := interval{joules: r.Watts * s, spread: r.WattsError * s}
	if !r.Mean {
		i.joules, i.spread = (r.Watts+d.last.Watts)/2*s, math.Abs(r.Watts-d.last.Watts)/2*s
		i.covered = true
		if d.missed || span > longestGap {
			i.covered, i.event = false, Gap
			i.spread = max(i.joules, r.MaxWatts*s-i.joules)
		}
	}
	return i
}

// between is the energy of a span that nobody saw: at the power before, within
// bounds that the spread covers.
func (d *device) between(least, most float64, span time.Duration, e Event) interval {
	joules := min(max(d.watts*span.Seconds(), least), most)
	return interval{joules: joules, spread: max(joules-least, most-joules), event: e}
}
