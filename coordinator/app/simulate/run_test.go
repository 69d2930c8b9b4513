package simulate

import (
	"bytes"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/window"
)

var origin = time.Date(2026, time.March, 2, 0, 0, 0, 0, time.UTC)

// gap is no value.
const gap = -1

// series of five-minute points.
func series(t testing.TB, region string, kind signals.Kind, values ...float64) *replay.Series {
	t.Helper()
	unit := signals.GramsPerKWh
	if kind == signals.Percentile {
		unit = signals.PercentileOf
	}
	times := make([]time.Time, len(values))
	column := make([]*float64, len(values))
	for i, v := range values {
		times[i] = origin.Add(time.Duration(i) * 5 * time.Minute)
		if v != gap {
			column[i] = &values[i]
		}
	}
	trace, err := replay.NewTrace("test", kind, unit, times, []string{region}, [][]*float64{column})
	if err != nil {
		t.Fatal(err)
	}
	s, err := trace.Column(region)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// repeat makes n equal values.
func repeat(v float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func policy() window.Policy {
	return window.Policy{Mode: window.Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1,
		OnStale: v1alpha1.StaleHold, MaxStale: 30 * time.Minute}
}

// place draws 1 kW while it trains and 100 W otherwise and starts in 5 minutes.
func place(name string, s *replay.Series) Site {
	out := Site{Name: name, Region: name, Policy: policy(), Signal: s, Power: ledger.Power{TrainingWatts: 1000, IdleWatts: 100, PUE: 1},
		Provisioning: 5 * time.Minute, Step: time.Second}
	if s != nil && s.Unit == signals.GramsPerKWh {
		out.Grid.Marginal = s
	}
	return out
}

func config(sites ...Site) Config {
	c := Config{Federation: "test", Sites: sites, Start: origin,
		Round: round.Config{MinSites: 1, Train: 10 * time.Minute, Collect: 2 * time.Minute, Join: 5 * time.Minute, Settle: 5 * time.Second, Grace: time.Minute}}
	for _, s := range sites {
		if s.Signal != nil {
			c.End = later(c.End, s.Signal.End())
			if s.Signal.Unit == signals.GramsPerKWh {
				c.Regions = append(c.Regions, Region{s.Region, s.Signal})
			}
		}
	}
	return c
}

func simulated(t testing.TB, c Config) *Result {
	t.Helper()
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func document(t testing.TB, r *Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func twin(t testing.TB, change func(*Options)) Config {
	t.Helper()
	seed := uint64(7)
	o := Options{Files: []string{"../../../examples/fieldstudy/federation.yaml"}, Twin: &seed, Sync: 0.02,
		Work:   Work{36, KWh},
		Models: map[string]Model{"": {Provisioning: 240 * time.Second, Step: 3 * time.Second, TokensPerSecond: 1000}}}
	if change != nil {
		change(&o)
	}
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheSameInputGivesTheSameResultToTheLastBit(t *testing.T) {
	all := func() string {
		r := simulated(t, twin(t, func(o *Options) {
			o.Made = Made{Every: time.Hour, Horizon: 24 * time.Hour, Error: 0.2, Seed: 3}
		}))
		var page bytes.Buffer
		if err := r.WriteHTML(&page); err != nil {
			t.Fatal(err)
		}
		return document(t, r) + page.String()
	}
	if a, b := all(), all(); a != b {
		t.Fatal("two runs differ")
	}
}
