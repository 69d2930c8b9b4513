package power

import (
	"math"
	"testing"
	"time"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

const raplRange = 262143328850

// look is a counter's value at a second; missing without a value.
type look struct {
	second  float64
	value   uint64
	missing bool
}

func TestCounterSeries(t *testing.T) {
	for _, c := range []struct {
		name           string
		most           uint64
		maxWatts       float64
		looks          []look
		joules, spread float64
		covered        float64 // seconds
		event          Event
	}{
		{name: "one look tells nothing", looks: []look{{0, 5e6, false}}},
		{name: "steady", looks: []look{{0, 5e6, false}, {10, 1005e6, false}, {20, 3005e6, false}}, joules: 3000, covered: 20},
		{
			name: "stands still, then tells all", covered: 20, joules: 500,
			looks: []look{{0, 5e6, false}, {10, 5e6, false}, {20, 505e6, false}},
		},
		{
			name: "wraps at the range", most: raplRange, event: Wrapped, covered: 10, joules: 1000,
			looks: []look{{0, raplRange - 400e6, false}, {10, 600e6, false}},
		},
		{
			name: "wraps at 2^32", most: 1 << 32, maxWatts: 300, event: Wrapped, covered: 10, joules: 1000,
			looks: []look{{0, 1<<32 - 400e6, false}, {10, 600e6, false}},
		},
		{
			name: "a second look at the same time changes nothing", covered: 10, joules: 100,
			looks: []look{{0, 0, false}, {0, 50e6, false}, {10, 100e6, false}, {10, 120e6, false}, {5, 130e6, false}},
		},
		{
			// 100 W before, so 1000 J of the 1000..3030 that are possible, seen 200.
			name: "begins anew: at the power before", maxWatts: 300, event: Reset, covered: 10,
			looks: []look{{0, 50e9, false}, {10, 51e9, false}, {20, 200e6, false}}, joules: 2000, spread: 2030,
		},
		{
			name: "begins anew and has shown more than the power before", maxWatts: 300, event: Reset, covered: 10,
			looks: []look{{0, 50e9, false}, {10, 51e9, false}, {20, 2000e6, false}}, joules: 3000, spread: 1030,
		},
		{
			name: "a fall that no wrap explains is a reset", most: raplRange, maxWatts: 300, event: Reset, covered: 10,
			looks: []look{{0, 50e9, false}, {10, 51e9, false}, {20, 200e6, false}}, joules: 2000, spread: 2030,
		},
		{
			name: "missing for a minute with a range: nothing is lost", most: raplRange, covered: 80, joules: 8000,
			looks: []look{{0, 0, false}, {10, 1000e6, false}, {20, 0, true}, {70, 0, true}, {80, 8000e6, false}},
		},
		{
			name: "missing for a minute without a range: it may have begun anew", maxWatts: 300, event: Gap, covered: 10, joules: 8000,
			looks: []look{{0, 0, false}, {10, 1000e6, false}, {20, 0, true}, {80, 8000e6, false}}, spread: 300*70.1 - 7000,
		},
		{
			// 100 W before: 6000 J, so one lap of 4295 J besides the 1705 J.
			name: "so long a gap that it may have wrapped several times", most: 1 << 32, maxWatts: 150, event: Gap, covered: 10, joules: 7000,
			looks:  []look{{0, 0, false}, {10, 1000e6, false}, {20, 0, true}, {70, 7000000000 - 1<<32, false}},
			spread: 6000 - (6000 - 4294.967296),
		},
		{
			name: "more than it can draw is not believed", maxWatts: 300, event: Refused, covered: 20,
			looks: []look{{0, 0, false}, {10, 1000e6, false}, {20, 90000e6, false}, {30, 91000e6, false}}, joules: 3000, spread: 2030,
		},
		{
			// The monotonic clock stood still for the night.
			name: "suspend: the register begins anew within seconds", most: raplRange, maxWatts: 300, event: Reset, covered: 10,
			looks: []look{{0, 50e9, false}, {10, 50.5e9, false}, {12, 30e6, false}}, joules: 600, spread: 530,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.maxWatts == 0 {
				c.maxWatts = maxZoneWatts
			}
			var d device
			var joules, spread, covered float64
			var event Event
			for _, l := range c.looks {
				if l.missing {
					d.missed = true
					continue
				}
				r := Reading{Cumulative: true, Microjoules: l.value, Range: c.most, MaxWatts: c.maxWatts}
				i, ok := d.add(r, second(l.second))
				if !ok {
					continue
				}
				joules, spread = joules+i.joules, spread+i.spread
				if i.covered {
					covered += i.span().Seconds()
				}
				if i.event != "" {
					event = i.event
				}
			}
			if !near(joules, c.joules) || !near(spread, c.spread) || !near(covered, c.covered) || event != c.event {
				t.Errorf("%g J ± %g, %g s covered, %q; want %g ± %g, %g, %q", joules, spread, covered, event, c.joules, c.spread, c.covered, c.event)
			}
		})
	}
}

func TestPowerIsIntegratedBetweenItsReadings(t *testing.T) {
	var d device
	d.add(Reading{Watts: 100, MaxWatts: 400}, second(0))
	if i, _ := d.add(Reading{Watts: 200, MaxWatts: 400}, second(10)); i.joules != 1500 || i.spread != 500 || !i.covered {
		t.Errorf("seen: %+v", i)
	}
	d.missed = true
	if i, _ := d.add(Reading{Watts: 200, MaxWatts: 400}, second(30)); i.joules != 4000 || i.spread != 4000 || i.covered || i.event != Gap {
		t.Errorf("a gap: %+v", i)
	}
	if i, _ := d.add(Reading{Watts: 200, MaxWatts: 400, Accuracy: 0.1}, second(40)); i.joules != 2000 || i.spread != 200 {
		t.Errorf("calibration: %+v", i)
	}
	if i, _ := d.add(Reading{Cumulative: true, Microjoules: 7e6, MaxWatts: 400}, second(50)); i.joules != 2000 || i.spread != 2000 || i.event != Reset {
		t.Errorf("another driver with a counter: %+v", i)
	}
}

func second(s float64) time.Time { return noon.Add(time.Duration(s * float64(time.Second))) }

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(b)) }
