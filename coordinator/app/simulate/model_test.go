package simulate

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/signals"
)

func near(t *testing.T, name string, got *float64, want float64) {
	t.Helper()
	if got == nil || math.Abs(*got-want) > 1e-9*math.Max(1, math.Abs(want)) {
		t.Errorf("%s is %v, want %v", name, optional(got, 12), want)
	}
}

// figures that were worked out by hand: sites draw 1 kW while they train and
// 0.1 kW otherwise, start in 5 minutes, and rounds take 10 minutes.
func TestFiguresWorkedOutByHand(t *testing.T) {
	window := slices.Concat(repeat(200, 1), repeat(50, 6), repeat(200, 3))
	for _, tc := range []struct {
		name   string
		values [][]float64 // a site each
		change func(*Config)
		// wanted
		hours, kWh, kg, clean float64
		starts                []int
		open, use, trained    []float64
		rounds                uint64
	}{
		{
			// In from 5 min, trains from 10 to 35 min in three rounds, drained at its
			// step's end: 25/60 kWh and 5 min at 0.1 kW, all at 50 g.
			name: "one window of half an hour", values: [][]float64{window},
			hours: 50.0 / 60, kWh: 25.0/60 + 0.1*5/60, kg: (25.0/60 + 0.1*5/60) * 0.05, clean: 1,
			starts: []int{1}, open: []float64{0.5}, use: []float64{1}, trained: []float64{25.0 / 30}, rounds: 3,
		},
		{
			// Two points confirm: in from 10 to 40 min, of which 5 are dirty at 200 g;
			// trains from 15 to 40 min.
			name: "two points each way", values: [][]float64{window},
			change: func(c *Config) {
				c.Sites[0].Policy.EnterConfirmations, c.Sites[0].Policy.LeaveConfirmations = 2, 2
			},
			hours: 50.0 / 60, kWh: 25.0/60 + 0.1*5/60, kg: (20.0/60+0.1*5/60)*0.05 + 5.0/60*0.2,
			clean:  (20.0/60 + 0.1*5/60) / (25.0/60 + 0.1*5/60),
			starts: []int{1}, open: []float64{0.5}, use: []float64{25.0 / 30}, trained: []float64{20.0 / 30}, rounds: 3,
		},
		{
			// Two sites train 600 s and synchronise 60 s, three times; an hour of work
			// is done at 2220 s and committed at 2280 s.
			name: "an hour of work at two sites", values: [][]float64{repeat(50, 12), repeat(80, 12)},
			change: func(c *Config) { c.Work, c.Sync = Work{1, SiteHours}, 0.1 },
			hours:  2280.0 / 3600, kWh: 1 + 2*0.1*480/3600, kg: (0.5 + 0.1*480/3600) * 0.13, clean: 1,
			starts: []int{1, 1}, open: []float64{2280.0 / 3600, 2280.0 / 3600}, use: []float64{1, 1},
			trained: []float64{1800.0 / 2280, 1800.0 / 2280}, rounds: 3,
		},
		{
			// The same in kWh; PUE counts in the energy and not in the work.
			name: "a kWh of work at a PUE of 1.5", values: [][]float64{repeat(50, 30)},
			change: func(c *Config) { c.Work, c.Sites[0].Power.PUE = Work{1, KWh}, 1.5 },
			hours:  3900.0 / 3600, kWh: 1.5 * (1 + 0.1*300/3600), kg: 1.5 * (1 + 0.1*300/3600) * 0.05, clean: 1,
			starts: []int{1}, open: []float64{3900.0 / 3600}, use: []float64{1}, trained: []float64{3600.0 / 3900}, rounds: 6,
		},
		{
			// A first zero opens nothing: another one must confirm it, while another
			// region shows that the feed is alive.
			name: "true zeros", values: [][]float64{repeat(0, 6), repeat(500, 6)},
			hours: 0.5, kWh: 20.0/60 + 0.1*5/60, kg: 0, clean: 1,
			starts: []int{1, 0}, open: []float64{0.5, 0}, use: []float64{25.0 / 30, -1}, trained: []float64{20.0 / 30, -1}, rounds: 2,
		},
		{
			// At most one of two: the cleaner.
			name: "one site wanted", values: [][]float64{repeat(60, 6), repeat(50, 6)},
			change: func(c *Config) { c.Plan.Wanted = 1 },
			hours:  0.5, kWh: 25.0/60 + 0.1*5/60, kg: (25.0/60 + 0.1*5/60) * 0.05, clean: 1,
			starts: []int{0, 1}, open: []float64{0.5, 0.5}, use: []float64{0, 1}, trained: []float64{0, 25.0 / 30}, rounds: 2,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var sites []Site
			for i, values := range tc.values {
				name := string(rune('a' + i))
				sites = append(sites, place(name, series(t, name, signals.Marginal, values...)))
			}
			c := config(sites...)
			if tc.change != nil {
				tc.change(&c)
			}
			r := simulated(t, c)
			near(t, "hours", &r.Hours, tc.hours)
			near(t, "kWh", &r.KWh, tc.kWh)
			near(t, "kg", r.KgCO2e.Marginal, tc.kg)
			near(t, "clean share", r.CleanShare, tc.clean)
			for i, s := range c.Sites {
				got := r.Sites[s.Name]
				if got.Starts != tc.starts[i] {
					t.Errorf("%s started %d times, want %d", s.Name, got.Starts, tc.starts[i])
				}
				near(t, s.Name+" open", &got.OpenHours, tc.open[i])
				if tc.use[i] < 0 {
					if got.WindowUse != nil || got.TrainingUse != nil {
						t.Errorf("%s used a share of nothing", s.Name)
					}
					continue
				}
				near(t, s.Name+" use", got.WindowUse, tc.use[i])
				near(t, s.Name+" trained", got.TrainingUse, tc.trained[i])
			}
			if r.Rounds != tc.rounds {
				t.Errorf("%d rounds, want %d", r.Rounds, tc.rounds)
			}
			if r.KgCO2e.Average != nil {
				t.Errorf("an average ledger of %v without an average trace", *r.KgCO2e.Average)
			}
		})
	}
}

func TestASignalThatStopsIsHeldAndThenDrains(t *testing.T) {
	s := series(t, "a", signals.Marginal, slices.Concat(repeat(50, 4), repeat(gap, 20), repeat(50, 2))...)
	r := simulated(t, config(place("a", s)))
	// The last point is of 15 min: stale at 30, held until 60, back at 120.
	want := []struct {
		at    time.Duration
		admit bool
	}{{0, true}, {time.Hour, false}, {2 * time.Hour, true}}
	got := r.Changes("a")
	if len(got) != len(want) {
		t.Fatalf("changes %v", got)
	}
	for i, w := range want {
		if got[i].At.Sub(origin) != w.at || got[i].Admit != w.admit {
			t.Errorf("change %d at %s: admit %v (%s)", i, got[i].At.Sub(origin), got[i].Admit, got[i].Message)
		}
	}
	if got[1].Reason != v1alpha1.ReasonSignalStale {
		t.Errorf("drained because of %s", got[1].Reason)
	}
	// Energy in the gap has no emissions that are known, and is not called clean.
	open := 30.0 / 60
	near(t, "open hours", ref(r.Sites["a"].OpenHours), open)
	inside := 0.1*5/60 + 15.0/60 + 0.1*5/60 + 5.0/60
	near(t, "kg", r.KgCO2e.Marginal, inside*0.05)
	near(t, "clean share", r.CleanShare, inside/r.KWh)
}

func ref(v float64) *float64 { return &v }

func TestWhatIsNotKnownIsNullAndNothingIsDividedByZero(t *testing.T) {
	for name, c := range map[string]Config{
		"percentile only": func() Config {
			s := place("a", series(t, "a", signals.Percentile, repeat(10, 12)...))
			s.Policy.Mode, s.Policy.Enter, s.Policy.Leave = "percentile", 30, 40
			return config(s)
		}(),
		"never open": config(place("a", series(t, "a", signals.Marginal, repeat(500, 12)...))),
		"only gaps":  config(place("a", series(t, "a", signals.Marginal, repeat(gap, 12)...))),
		"all zero": func() Config {
			s := place("a", series(t, "a", signals.Marginal, repeat(0, 12)...))
			s.Policy.TrustZero, s.Sanity.TrustZero = true, true
			return config(s)
		}(),
		"outage": config(place("a", series(t, "a", signals.Marginal, repeat(0, 12)...)), place("b", series(t, "b", signals.Marginal, repeat(0, 12)...))),
		"no power": func() Config {
			c := config(place("a", series(t, "a", signals.Marginal, repeat(9, 12)...)))
			c.Sites[0].Power.TrainingWatts, c.Sites[0].Power.IdleWatts = 0, 0
			return c
		}(),
		"no start": func() Config {
			c := config(place("a", series(t, "a", signals.Marginal, repeat(9, 12)...)))
			c.Sites[0].Provisioning = 0
			return c
		}(),
		"single point": config(place("a", series(t, "a", signals.Marginal, 9))),
	} {
		t.Run(name, func(t *testing.T) {
			r := simulated(t, c)
			text := document(t, r) // JSON has no NaN and no infinity
			var page, lines strings.Builder
			if err := r.WriteHTML(&page); err != nil {
				t.Fatal(err)
			}
			if err := r.WriteTable(&lines); err != nil {
				t.Fatal(err)
			}
			for _, out := range []string{page.String(), lines.String()} {
				if strings.Contains(out, "NaN") || strings.Contains(out, "Inf") {
					t.Errorf("a figure is no number:\n%s", out)
				}
			}
			switch name {
			case "percentile only":
				if r.KgCO2e.Marginal != nil || r.Bound != nil || len(r.Baselines) != 0 || r.Sites["a"].Starts != 1 {
					t.Errorf("emissions out of percentiles: %s", text)
				}
			case "never open", "only gaps":
				if r.CleanShare != nil || r.Sites["a"].WindowUse != nil || r.Rounds != 0 || len(r.Baselines) != 0 {
					t.Errorf("shares of nothing: %s", text)
				}
			case "outage":
				if r.Sites["a"].Starts+r.Sites["b"].Starts != 0 {
					t.Errorf("an outage of zeros opened a window: %s", text)
				}
			case "all zero":
				if b := r.Baselines["a"]; b.Ratio != nil || value(b.KgCO2e) != 0 || b.KgCO2e == nil {
					t.Errorf("ratio to a baseline of 0: %s", text)
				}
			}
		})
	}
}

func TestAForecastCountsFromItsIssueOn(t *testing.T) {
	dirtyFrom := func(issued time.Duration, row int) signals.Forecast {
		f := signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "a", GeneratedAt: origin.Add(issued)}
		for i := range 24 {
			v := 50.0
			if i >= row {
				v = 300
			}
			f.Points = append(f.Points, signals.ForecastPoint{Start: origin.Add(time.Duration(i) * 5 * time.Minute), Duration: 5 * time.Minute, Value: &v})
		}
		return f
	}
	s := place("a", series(t, "a", signals.Marginal, repeat(50, 24)...))
	s.Policy.MinWindow = 25 * time.Minute
	// The first issue calls the window too short, the one of 20 min takes that back.
	s.Forecasts = []signals.Forecast{dirtyFrom(0, 4), dirtyFrom(20*time.Minute, 24)}
	got := simulated(t, config(s)).Changes("a")
	if len(got) != 1 || got[0].At.Sub(origin) != 20*time.Minute || !got[0].Admit {
		t.Errorf("changes %v, want one at 20 min", got)
	}
}

func TestADrainThatIsTooShortForTheUpdateLosesIt(t *testing.T) {
	values := slices.Concat(repeat(50, 4), repeat(300, 4))
	c := config(place("a", series(t, "a", signals.Marginal, values...)), place("b", series(t, "b", signals.Marginal, repeat(50, 8)...)))
	c.Sync = 0.5 // five minutes for a round, and a minute of grace
	c.Round = round.Config{MinSites: 1, Train: 10 * time.Minute, Collect: 10 * time.Minute, Join: 5 * time.Minute, Settle: 5 * time.Second, Grace: time.Minute}
	r := simulated(t, c)
	// Both train from 5 to 15 min and synchronise until 20 min, when a is drained.
	if r.Work.Lost != 0 || r.Sites["a"].Starts != 1 {
		t.Errorf("lost %v", r.Work.Lost)
	}
	c.Round.Train = 12 * time.Minute // until 17 min, which is in time for nobody
	r = simulated(t, c)
	near(t, "lost site-hours", &r.Work.Lost, 12.0/60)
}

func TestAConfigurationWithoutMeaningIsRefused(t *testing.T) {
	good := func() Config { return config(place("a", series(t, "a", signals.Marginal, repeat(50, 4)...))) }
	for want, change := range map[string]func(*Config){
		"has no sites":             func(c *Config) { c.Sites = nil },
		"the run ends at":          func(c *Config) { c.End = c.Start },
		"work of NaN":              func(c *Config) { c.Work.Amount = math.NaN() },
		"synchronisation takes -1": func(c *Config) { c.Sync = -1 },
		`work in "potatoes"`:       func(c *Config) { c.Work.Unit = "potatoes" },
		"a local step takes 0s":    func(c *Config) { c.Sites[0].Step = 0 },
		"--tokens-per-second a=N":  func(c *Config) { c.Work = Work{1, Tokens} },
		"spec.power.trainingWatts": func(c *Config) { c.Work = Work{1, KWh}; c.Sites[0].Power.TrainingWatts = 0 },
		`no trace has region "a"`:  func(c *Config) { c.Sites[0].Signal = nil },
	} {
		c := good()
		change(&c)
		if _, err := Run(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
}
