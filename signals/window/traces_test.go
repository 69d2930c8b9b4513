package window_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/window"
)

// shared opens a trace beside the checkout, or skips.
func shared(t *testing.T, file string, kind signals.Kind) *replay.Trace {
	t.Helper()
	path := filepath.Join("..", "..", "..", "shared", "traces", file)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no traces beside the checkout: %v", err)
	}
	tr, err := replay.ReadFile(path, kind, signals.GramsPerKWh)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// starts counts how often a policy opens over a region's trace, and for how long
// it is open.
func starts(t *testing.T, tr *replay.Trace, region string, p window.Policy) (n int, open time.Duration) {
	t.Helper()
	s, err := tr.Column(region)
	if err != nil {
		t.Fatal(err)
	}
	var state window.State
	admitted := false
	for i := range s.Len() {
		at, v := s.Point(i)
		var d window.Decision
		state, d = window.Decide(p, state, &signals.Reading{Kind: s.Kind, Unit: s.Unit, Region: region,
			Value: v, PointTime: at, Period: s.Period()}, at)
		if d.Admit && !admitted {
			n++
		}
		if admitted = d.Admit; admitted {
			open += s.Period()
		}
	}
	return n, open
}

func policy(t *testing.T, s v1alpha1.EnergySpec, enter, leave int32) window.Policy {
	t.Helper()
	s.EnterBelowGrams, s.LeaveAboveGrams = &enter, &leave
	p, err := window.FromSpec(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Spikes within windows and dips outside them: confirmations and minimum times
// take two thirds of the starts away.
func TestStartsOnATraceWithSpikesAndDips(t *testing.T) {
	tr := shared(t, "synthetic_moer_5min_7d.csv", signals.Marginal)
	plain := policy(t, v1alpha1.EnergySpec{EnterConfirmations: 1, LeaveConfirmations: 1}, 100, 100)
	linger := policy(t, v1alpha1.EnergySpec{EnterConfirmations: 1, LeaveConfirmations: 3}, 100, 100)
	steady := policy(t, v1alpha1.EnergySpec{EnterConfirmations: 2, LeaveConfirmations: 3,
		MinimumOnSeconds: 1800, MinimumOffSeconds: 900}, 100, 150)
	for _, c := range []struct {
		region                string
		plain, linger, steady int
	}{
		{"synth-west", 24, 17, 7}, {"synth-plains", 17, 13, 7}, {"synth-south", 22, 7, 3}, {"synth-flat", 0, 0, 0},
	} {
		for _, k := range []struct {
			name string
			p    window.Policy
			want int
		}{{"plain", plain, c.plain}, {"linger", linger, c.linger}, {"confirmed", steady, c.steady}} {
			if n, open := starts(t, tr, c.region, k.p); n != k.want {
				t.Errorf("%s %s: %d starts (%s open), want %d", c.region, k.name, n, open, k.want)
			}
		}
	}
}

// One wrong reading of a wind farm makes an hour look clean.
func TestOneFalseHourStartsNoConfirmedSite(t *testing.T) {
	tr := shared(t, "eia930_2023-06-10_2023-06-20_avg_intensity_gpkwh.csv", signals.Average)
	if n, _ := starts(t, tr, "SWPP", policy(t, v1alpha1.EnergySpec{EnterConfirmations: 1}, 100, 100)); n != 1 {
		t.Errorf("a single point started it %d times, want once", n)
	}
	if n, _ := starts(t, tr, "SWPP", policy(t, v1alpha1.EnergySpec{EnterConfirmations: 2}, 100, 100)); n != 0 {
		t.Errorf("two points started it %d times", n)
	}
}

// Half a day without values is neither clean nor dirty.
func TestHoursWithoutValuesAreUnknown(t *testing.T) {
	tr := shared(t, "eia930_2023-06-10_2023-06-20_avg_intensity_gpkwh.csv", signals.Average)
	s, err := tr.Column("NYIS")
	if err != nil {
		t.Fatal(err)
	}
	p := policy(t, v1alpha1.EnergySpec{MaxStaleSeconds: 3600}, 5000, 5000)
	var state window.State
	unknown, drained := 0, 0
	for i := range s.Len() {
		at, v := s.Point(i)
		var d window.Decision
		state, d = window.Decide(p, state, &signals.Reading{Kind: s.Kind, Unit: s.Unit, Region: "NYIS",
			Value: v, PointTime: at, Period: s.Period()}, at)
		if d.Window == v1alpha1.WindowUnknown {
			unknown++
			if !d.Admit {
				drained++
			}
		}
	}
	// Twelve hours: two of grace, one of hold, the rest drained.
	if unknown != 10 || drained != 9 {
		t.Errorf("%d hours unknown, %d of them drained", unknown, drained)
	}
}
