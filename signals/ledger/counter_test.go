package ledger_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"girassol.dev/signals/ledger"
)

func TestCounters(t *testing.T) {
	rapl, nvml := ledger.RAPL(1_000_000_000, 400), ledger.NVML(700) // 1000 J range
	type sample struct {
		second float64
		value  uint64
		joules float64 // -1: none
	}
	for _, c := range []struct {
		name                         string
		counter                      ledger.Counter
		samples                      []sample
		resets, wraps, gaps, refused int64
	}{
		{"the first sample tells nothing", rapl, []sample{{0, 5_000_000, -1}}, 0, 0, 0, 0},
		{"counts", rapl, []sample{{0, 5_000_000, -1}, {10, 505_000_000, 500}, {20, 905_000_000, 400}}, 0, 0, 0, 0},
		{"standing still is not no energy", nvml, []sample{{0, 1000, -1}, {1, 1000, -1}, {2, 901_000, 900}}, 0, 0, 0, 0},
		{"wraps", rapl, []sample{{0, 900_000_000, -1}, {10, 100_000_000, 200}}, 0, 1, 0, 0},
		{"a fall that is too much for a wrap is a reset", rapl, []sample{{0, 100_000_000, -1}, {1, 50_000_000, -1}, {2, 60_000_000, 10}}, 1, 0, 0, 0},
		{"a driver that began anew", nvml, []sample{{0, 900_000, -1}, {10, 100, -1}, {20, 200_100, 200}}, 1, 0, 0, 0},
		{"too long to tell one wrap from two", rapl, []sample{{0, 900_000_000, -1}, {61, 100_000_000, -1}, {71, 200_000_000, 100}}, 0, 0, 1, 0},
		{"too long without a fall as well", rapl, []sample{{0, 100_000_000, -1}, {61, 200_000_000, -1}}, 0, 0, 1, 0},
		{"a board without a range may be away for long", nvml, []sample{{0, 1000, -1}, {3600, 361_000, 360}}, 0, 0, 0, 0},
		{"more than the board can draw", nvml, []sample{{0, 1000, -1}, {1, 9_001_000, -1}, {2, 9_101_000, 100}}, 0, 0, 0, 1},
		{"backwards and twice the same time", nvml, []sample{{10, 1000, -1}, {5, 2000, -1}, {10, 3000, -1}, {11, 101_000, 100}}, 0, 0, 0, 0},
		{"a value beyond the range", rapl, []sample{{0, 1_500_000_000, -1}, {10, 100, -1}}, 1, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.counter.Validate(); err != nil {
				t.Fatal(err)
			}
			var s ledger.CounterState
			for i, x := range c.samples {
				var m *ledger.Measured
				s, m = c.counter.Read(s, t0.Add(time.Duration(x.second*float64(time.Second))), x.value)
				if x.joules < 0 && m != nil || x.joules >= 0 && (m == nil || math.Abs(m.Joules-x.joules) > 1e-9) {
					t.Errorf("sample %d: %+v, want %v J", i, m, x.joules)
				}
			}
			if s.Resets != c.resets || s.Wraps != c.wraps || s.Gaps != c.gaps || s.Refused != c.refused {
				t.Errorf("%+v, want %d resets, %d wraps, %d gaps, %d refused", s, c.resets, c.wraps, c.gaps, c.refused)
			}
		})
	}
}

// A register of any range, started anywhere and sampled at uneven times, tells
// all that was drawn, over restarts of the reader.
func TestAWrappingCounterLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Uint64Range(1000, 1<<40).Draw(t, "range")
		c := ledger.Counter{JoulesPerUnit: 1e-6, Range: limit}
		raw := rapid.Uint64Range(0, limit-1).Draw(t, "start")
		now := t0
		s, _ := c.Read(ledger.CounterState{}, now, raw)
		var drawn, told float64
		covered := now
		for range rapid.IntRange(1, 40).Draw(t, "samples") {
			units := rapid.Uint64Range(0, limit-1).Draw(t, "units")
			now = now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
			raw = (raw + units) % limit
			drawn += float64(units) * 1e-6
			b, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			s = ledger.CounterState{}
			if err := json.Unmarshal(b, &s); err != nil {
				t.Fatal(err)
			}
			var m *ledger.Measured
			if s, m = c.Read(s, now, raw); m != nil {
				told += m.Joules
				if !m.From.Equal(covered) || m.Joules < 0 {
					t.Fatalf("%+v, covered up to %s", m, covered)
				}
				covered = m.To
			}
		}
		if math.Abs(drawn-told) > 1e-9*math.Max(1, drawn) || s.Resets != 0 {
			t.Fatalf("%v J drawn, %v told, %+v", drawn, told, s)
		}
	})
}

func TestCountersWithoutMeaningAreRefused(t *testing.T) {
	for _, c := range []ledger.Counter{{}, {JoulesPerUnit: -1}, {JoulesPerUnit: math.NaN()}, {JoulesPerUnit: 1, MaxWatts: -1}, {JoulesPerUnit: 1, MaxGap: -1}} {
		if c.Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
