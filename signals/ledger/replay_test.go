package ledger_test

import (
	"math"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/synthetic"
	"girassol.dev/signals/window"
)

// The field study's power model and amount of work.
const (
	trainingWatts = 2024
	idleWatts     = 468
	provisioning  = 240 * time.Second
	usefulHours   = 17.785
	step          = 10 * time.Second
)

// outcome of a replayed schedule.
type outcome struct {
	hours, kWh, kg, cleanShare float64
	starts                     int
	baselines                  map[string]float64 // kg by region
}

// schedule replays a policy on the sites of traces: every 10 s each site decides;
// an admitted one provisions at idle power and then trains; while two or more
// train, the share of time given to synchronisation is idle. It ends when the
// useful site-hours are done or after the trace.
func schedule(t *testing.T, traces synthetic.Traces, p window.Policy, syncShare float64) outcome {
	t.Helper()
	type site struct {
		name    string
		series  *replay.Series
		state   window.State
		on      bool
		readyAt time.Time
	}
	var sites []*site
	grids := map[string]ledger.Grid{}
	for _, r := range traces.Sites {
		marginal, err := traces.Marginal.Column(r.Name)
		if err != nil {
			t.Fatal(err)
		}
		average, err := traces.Average.Column(r.Name)
		if err != nil {
			t.Fatal(err)
		}
		sites = append(sites, &site{name: r.Name, series: marginal})
		grids[r.Name] = ledger.Grid{Marginal: marginal, Average: average}
	}
	book := ledger.New(grids)
	out := outcome{baselines: map[string]float64{}}
	var useful, cleanJoules float64
	now := traces.Marginal.Start()
	for ; useful < usefulHours*3600 && now.Before(traces.Marginal.End()); now = now.Add(step) {
		training := 0
		for _, s := range sites {
			held := s.series.At(now)
			r := signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: s.name,
				Value: held.Value, PointTime: held.From, Period: s.series.Period()}
			var d window.Decision
			s.state, d = window.Decide(p, s.state, &r, now)
			if d.Admit && !s.on {
				s.readyAt = now.Add(provisioning)
				out.starts++
			}
			s.on = d.Admit
			if s.on && !now.Before(s.readyAt) {
				training++
			}
		}
		busy := 1.0
		if training >= 2 {
			busy -= syncShare
		}
		for _, s := range sites {
			var watts float64
			switch {
			case !s.on:
				continue
			case now.Before(s.readyAt):
				watts = idleWatts
			default:
				watts = busy*trainingWatts + (1-busy)*idleWatts
				useful += busy * step.Seconds()
			}
			if err := book.Add(s.name, now, now.Add(step), watts, 1); err != nil {
				t.Fatal(err)
			}
			if *s.series.At(now).Value < 100 {
				cleanJoules += watts * step.Seconds()
			}
		}
	}
	var total ledger.Account
	for _, s := range sites {
		total = total.Plus(book.Account(s.name))
	}
	out.hours = now.Sub(traces.Marginal.Start()).Hours()
	out.kWh, out.kg = total.KWh(), *total.MarginalGrams/1000
	out.cleanShare = cleanJoules / total.Joules
	if total.MarginalCoverage() < 1-1e-9 || total.AverageCoverage() < 1-1e-9 {
		t.Errorf("coverage %v and %v", total.MarginalCoverage(), total.AverageCoverage())
	}
	for _, region := range traces.Marginal.Regions() {
		series, err := traces.Marginal.Column(region)
		if err != nil {
			t.Fatal(err)
		}
		base, err := ledger.AlwaysOn(region, series, traces.Marginal.Start(),
			time.Duration(usefulHours*float64(time.Hour)), trainingWatts, 1)
		if err != nil {
			t.Fatal(err)
		}
		if base.Repeated {
			t.Errorf("baseline of %s repeats the trace", region)
		}
		out.baselines[region] = *base.Grams / 1000
	}
	return out
}

// policy below 100 g that leaves at the n-th point above: 1 at the window's end,
// 3 after 600 s.
func policy(t *testing.T, leaveConfirmations int32) window.Policy {
	t.Helper()
	grams := int32(100)
	p, err := window.FromSpec(v1alpha1.EnergySpec{EnterBelowGrams: &grams,
		EnterConfirmations: 1, LeaveConfirmations: leaveConfirmations}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The field study's own trace gave 1.345 kg in 14.42 h for the first policy,
// 0.962 kg in 14.64 h for the second and 0.994 kg in 13.53 h for the third; its
// baselines were 11.40, 14.55, 12.33 and 27.07 kg.
func TestEmissionsOfTheFieldStudysPoliciesOnItsTwin(t *testing.T) {
	const seed = 1
	twin := synthetic.Twin(seed)
	baselines := map[string]float64{"ca-north": 11.396, "us-plains": 14.521, "au-south": 12.306, "de": 27.065}
	for _, c := range []struct {
		name                  string
		leave                 int32
		sync                  float64
		hours, kWh, kg, clean float64
		starts                int
	}{
		{"leave 600 s after the window, 20 % overhead", 3, 0.2, 14.417, 37.27, 1.315, 0.9795, 4},
		{"stop at the window's end, 20 % overhead", 1, 0.2, 14.639, 37.28, 1.010, 1, 5},
		{"stop at the window's end, 2 % overhead", 1, 0.02, 13.533, 36.25, 1.019, 1, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := schedule(t, twin, policy(t, c.leave), c.sync)
			near(t, "hours", got.hours, c.hours, 0.01)
			near(t, "kWh", got.kWh, c.kWh, 0.02)
			near(t, "kgCO2e", got.kg, c.kg, 0.002)
			near(t, "share of energy below 100 g", got.cleanShare, c.clean, 0.0005)
			if got.starts != c.starts {
				t.Errorf("%d starts, want %d", got.starts, c.starts)
			}
			for region, want := range baselines {
				near(t, "baseline of "+region, got.baselines[region], want, 0.002)
				t.Logf("%s: %.2f %% of always on in %s", c.name, 100*got.kg/want, region)
			}
		})
	}
}

// The gate: not more than the field study's 1.38 kg in 14.6 h with its policy,
// a fifth less by leaving in time, whatever the seed.
func TestEmissionGateHoldsForOtherSeeds(t *testing.T) {
	for seed := range uint64(3) {
		twin := synthetic.Twin(seed)
		linger, stop := schedule(t, twin, policy(t, 3), 0.2), schedule(t, twin, policy(t, 1), 0.02)
		if linger.kg > 1.38 || linger.hours > 14.6 || linger.cleanShare < 0.97 {
			t.Errorf("seed %d: 600 s tail: %.3f kg in %.2f h, %.3f clean", seed, linger.kg, linger.hours, linger.cleanShare)
		}
		if stop.kg > 1.04 || stop.hours > 13.6 || stop.cleanShare < 0.995 {
			t.Errorf("seed %d: stop at the end: %.3f kg in %.2f h, %.3f clean", seed, stop.kg, stop.hours, stop.cleanShare)
		}
		if stop.kg > 0.8*linger.kg {
			t.Errorf("seed %d: leaving in time saves too little: %.3f of %.3f kg", seed, stop.kg, linger.kg)
		}
	}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.4f, want %.4f", what, got, want)
	}
}
