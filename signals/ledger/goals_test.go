package ledger_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/synthetic"
)

// What the pieces reach together on the field study's twin. The study had
// 1.379 kg in 14.6 h. Sync is the share of time that synchronisation takes while
// two or more sites train. Forecasts are right.
//
// 1.0 kg within 13.6 h is not reached by the plain reactive policies: the twin
// gives 1.013 to 1.037 kg in 13.53 h (seeds 100 to 119). The second row reaches
// it with thresholds that were picked on this very trace out of some sixty pairs;
// of those twenty other seeds one does with the same thresholds. It is kept as a
// figure, not as evidence.
func TestEmissionsOfTheWholeChainOnTheTwin(t *testing.T) {
	twin := synthetic.Twin(1)
	regions := names(twin.Sites)
	start := twin.Marginal.Start()
	for _, c := range []struct {
		name                string
		study               study
		hours, kg           float64
		starts              int
		boundHours, boundKg float64
		mostHours, mostKg   float64
	}{
		{name: "reactive, 2 % overhead", hours: 13.533, kg: 1.019, starts: 5, mostHours: 13.6, mostKg: 1.02,
			study: study{window: steady(t, 100, 1, 1, 100, 0, 0), sync: 0.02}},
		{name: "reactive, thresholds picked on this trace, 1 % overhead", hours: 13.569, kg: 0.9985, starts: 5, mostHours: 13.6, mostKg: 1,
			study: study{window: steady(t, 78, 1, 1, 96, 0, 0), sync: 0.01}},
		{name: "look-ahead, 2 % overhead", hours: 13.600, kg: 1.003, starts: 4, mostHours: 13.6, mostKg: 1.02,
			study: study{window: look(steady(t, 100, 1, 1, 100, 0, 0)), forecast: true, sync: 0.02}},
		{name: "planned to end in 14.6 h, 2 % overhead", hours: 14.594, kg: 0.717, starts: 6, mostHours: 14.6, mostKg: 0.75,
			study: study{window: look(steady(t, 100, 1, 1, 100, 0, 0)), forecast: true, sync: 0.02,
				plan: deadline(start.Add(876 * time.Minute))}},
		{name: "planned to end in 16 h, 2 % overhead", hours: 16.006, kg: 0.492, starts: 7, mostHours: 16.1, mostKg: 0.52,
			study: study{window: look(steady(t, 100, 1, 1, 100, 0, 0)), forecast: true, sync: 0.02,
				plan: deadline(start.Add(16 * time.Hour))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.study.hours = usefulHours
			r := c.study.run(t, twin.Marginal, regions)
			b := bound(t, twin.Marginal, regions, r.hours, usefulHours)
			starts := 0
			for _, n := range r.starts {
				starts += n
			}
			t.Logf("%.3f h, %.4f kg, %.2f kWh, %d starts, %.4f clean; bound %.3f kg", r.hours, r.kg, r.kWh, starts, r.cleanShare, b.Grams/1000)
			near(t, "hours", r.hours, c.hours, 0.01)
			near(t, "kgCO2", r.kg, c.kg, 0.002)
			if starts != c.starts || r.cleanShare < 0.999 {
				t.Errorf("%d starts, want %d; %.4f clean", starts, c.starts, r.cleanShare)
			}
			if r.hours > c.mostHours || r.kg > c.mostKg || r.kg < b.Grams/1000 {
				t.Errorf("%.3f h, %.4f kg: at most %.1f h and %.2f kg, at least %.3f kg", r.hours, r.kg, c.mostHours, c.mostKg, b.Grams/1000)
			}
		})
	}
}

// With a right forecast and a deadline the study's time is enough for about half
// its emissions. The margin was picked on seeds 0 to 3; these are others. The end
// is within four minutes of the deadline, which knows nothing of the overhead.
func TestAPlanHalvesTheStudysEmissionsForOtherSeeds(t *testing.T) {
	for seed := uint64(100); seed < 104; seed++ {
		twin := synthetic.Twin(seed)
		r := study{window: look(steady(t, 100, 1, 1, 100, 0, 0)), forecast: true, sync: 0.02, hours: usefulHours,
			plan: deadline(twin.Marginal.Start().Add(876 * time.Minute))}.run(t, twin.Marginal, names(twin.Sites))
		if r.kg > 0.75 || r.hours > 14.67 {
			t.Errorf("seed %d: %.3f kg in %.3f h", seed, r.kg, r.hours)
		}
	}
}

// The field study's own trace has the bounds 7.51, 4.75, 3.24, 0.552, 0.341 and
// 0.331 kg.
func TestClairvoyantBoundsOfTheTwin(t *testing.T) {
	twin := synthetic.Twin(1)
	before := 1e9
	for _, c := range []struct{ hours, kg float64 }{
		{10, 7.408}, {11.1, 4.714}, {12, 3.126}, {14.6, 0.654}, {16, 0.432}, {18, 0.364}} {
		b := bound(t, twin.Marginal, names(twin.Sites), c.hours, usefulHours)
		near(t, "bound", b.Grams/1000, c.kg, 0.001)
		if !b.Complete || b.Grams > before {
			t.Errorf("%.1f h: %+v", c.hours, b)
		}
		before = b.Grams
	}
	if b := bound(t, twin.Marginal, names(twin.Sites), 2, usefulHours); b.Complete || b.Done != 6*time.Hour {
		t.Errorf("17.8 site-hours in two hours of three sites: %+v", b)
	}
}

// week is seven days at 5 minutes: "day" is clean for 7 h 15 min of each with a
// spike of one point in the middle and dips of one point outside, "long" for
// three spans of more than a day at 0 with spikes, "dirty" never.
func week(t *testing.T) *replay.Trace {
	const points = 7 * 288
	var times []time.Time
	columns := make([][]*float64, 3)
	for i := range points {
		times = append(times, t0.Add(time.Duration(i)*5*time.Minute))
		n, wobble := i%288, float64(i*31%17)
		day, long, dirty := 420+2*wobble, 820+2*wobble, 700+2*wobble
		if n >= 100 && n < 187 {
			day = 40 + wobble
		}
		if n == 130 || n == 160 {
			day = 430
		}
		if n == 20 || n == 250 && i%2 == 0 {
			day = 15
		}
		if at := i % 672; at >= 120 && at < 480 {
			long = 0
		}
		if i%97 == 0 {
			long = 815
		}
		for c, v := range []float64{day, long, dirty} {
			columns[c] = append(columns[c], &v)
		}
	}
	tr, err := replay.NewTrace("week", signals.Marginal, signals.GramsPerKWh, times, []string{"day", "long", "dirty"}, columns)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// A start for each window and no more, although every window has spikes and
// every night dips; almost all of the open time is used.
func TestAStartForEachWindowOfAWeek(t *testing.T) {
	tr := week(t)
	for _, forecast := range []bool{false, true} {
		p := steady(t, 100, 2, 3, 150, 1800, 900)
		if forecast {
			p = look(steady(t, 100, 1, 3, 150, 1800, 900))
		}
		r := study{window: p, forecast: forecast, step: time.Minute}.run(t, tr, tr.Regions())
		t.Logf("forecast %v: starts %v, use %v, inside %v", forecast, r.starts, r.windowUse, r.inside)
		for region, windows := range map[string]int{"day": 7, "long": 3, "dirty": 0} {
			if r.starts[region] != windows || windows > 0 && (r.windowUse[region] < 0.96 || r.inside[region] < 0.95) {
				t.Errorf("forecast %v: %s: %d starts for %d windows, %.4f of them used, %.4f of it inside", forecast, region,
					r.starts[region], windows, r.windowUse[region], r.inside[region])
			}
		}
	}
}

// The trace has 7, 7 and 3 windows: nobody can do with fewer starts.
func TestAStartForEachWindowOfTheSharedWeek(t *testing.T) {
	path := filepath.Join("..", "..", "..", "shared", "traces", "synthetic_moer_5min_7d.csv")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no traces beside the checkout: %v", err)
	}
	tr, err := replay.ReadFile(path, signals.Marginal, signals.GramsPerKWh)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		study study
	}{
		{"reactive", study{window: steady(t, 100, 2, 3, 150, 1800, 900), step: time.Minute}},
		{"look-ahead", study{window: look(steady(t, 100, 1, 3, 150, 1800, 900)), forecast: true, step: time.Minute}},
	} {
		r := c.study.run(t, tr, tr.Regions())
		t.Logf("%s: starts %v, use %v, inside %v, %.2f kg", c.name, r.starts, r.windowUse, r.inside, r.kg)
		for region, windows := range map[string]int{"synth-west": 7, "synth-plains": 7, "synth-south": 3, "synth-flat": 0} {
			if r.starts[region] != windows || windows > 0 && r.windowUse[region] < 0.97 {
				t.Errorf("%s: %s: %d starts for %d windows, %.4f of them used", c.name, region, r.starts[region], windows, r.windowUse[region])
			}
		}
	}
}
