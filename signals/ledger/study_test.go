package ledger_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/synthetic"
	"girassol.dev/signals/window"
)

// study is a replay of the whole chain, sanity, window and planner, on traces.
type study struct {
	window window.Policy
	// forecast: every point, what is to come is published as it will be.
	forecast bool
	// plan is called with the useful hours left, nil: all open sites run.
	plan func(left float64, now time.Time) planner.Config
	// sync is the share of time that synchronisation takes while two or more run.
	sync float64
	// hours of useful work; the trace's length if 0.
	hours float64
}

type result struct {
	hours, useful, kWh, kg, cleanShare float64
	starts                             map[string]int
	// windowUse is the share of the open time (below 100 g) in which a site was
	// in, inside that of the time it was in that was open.
	windowUse, inside map[string]float64
}

const tokensPerSecond = 1000

// run replays at steps of 10 s; signals are judged once for each point.
func (st study) run(t *testing.T, marginal *replay.Trace, regions []string) result {
	t.Helper()
	type site struct {
		name    string
		series  *replay.Series
		judged  sanity.State
		verdict sanity.Verdict
		reading signals.Reading
		state   window.State
		open    bool
		on      bool
		readyAt time.Time
		below   float64
		both    float64
		in      float64
	}
	var sites []*site
	grids := map[string]ledger.Grid{}
	for _, r := range regions {
		s, err := marginal.Column(r)
		if err != nil {
			t.Fatal(err)
		}
		sites = append(sites, &site{name: r, series: s})
		grids[r] = ledger.Grid{Marginal: s}
	}
	book := ledger.New(grids)
	out := result{starts: map[string]int{}, windowUse: map[string]float64{}, inside: map[string]float64{}}
	var memory planner.State
	var useful, clean float64
	first := sites[0].series
	now := first.Start()
	for ; (st.hours == 0 || useful < st.hours*3600) && now.Before(first.End()); now = now.Add(step) {
		point := now.Sub(first.Start())%first.Period() == 0
		if point {
			for _, s := range sites {
				held := s.series.At(now)
				s.reading = signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: s.name,
					Value: held.Value, PointTime: held.From, Period: s.series.Period()}
			}
		}
		for _, s := range sites {
			in := window.Inputs{Reading: &s.reading}
			if point {
				peers := make([]signals.Reading, 0, len(sites))
				for _, o := range sites {
					if o != s {
						peers = append(peers, o.reading)
					}
				}
				s.judged, s.verdict = sanity.Check(sanity.Policy{}, s.judged, sanity.Input{Reading: &s.reading, Peers: peers}, now)
				if st.forecast {
					in.Forecast = outlook(s.series, now, 288)
				}
			}
			in.Verdict = &s.verdict
			var d window.Decision
			s.state, d = window.DecideWith(st.window, s.state, in, now)
			s.open = d.Admit
		}
		wanted := map[string]bool{}
		switch {
		case st.plan == nil:
			for _, s := range sites {
				wanted[s.name] = s.open
			}
		default:
			replan := point
			for _, s := range sites {
				wanted[s.name] = s.on
				replan = replan || s.on && !s.open
			}
			if replan {
				c := st.plan(st.hours-useful/3600, now)
				c.Round = uint64(now.Unix())
				var known []planner.Site
				for _, s := range sites {
					below := st.window.Enter
					known = append(known, planner.Site{Name: s.name, Open: s.open, Running: s.on,
						TokensPerSecond: tokensPerSecond, TrainingWatts: trainingWatts, IdleWatts: idleWatts, Provisioning: provisioning,
						Grams: s.reading.Value, Forecast: slots(s.series, now), OpenBelow: &below})
				}
				var p planner.Plan
				var err error
				if memory, p, err = planner.Choose(c, memory, known, now); err != nil {
					t.Fatal(err)
				}
				for _, c := range p.Choices {
					wanted[c.Site] = c.Chosen
				}
			}
		}
		training := 0
		for _, s := range sites {
			if wanted[s.name] && !s.on {
				s.readyAt = now.Add(provisioning)
				out.starts[s.name]++
			}
			s.on = wanted[s.name]
			if s.on && !now.Before(s.readyAt) {
				training++
			}
		}
		busy := 1.0
		if training >= 2 {
			busy -= st.sync
		}
		for _, s := range sites {
			v := s.series.At(now).Value
			below := v != nil && *v < 100
			if below {
				s.below += step.Seconds()
			}
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
			s.in += step.Seconds()
			if below {
				s.both += step.Seconds()
				clean += watts * step.Seconds()
			}
			if err := book.Add(s.name, now, now.Add(step), watts, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	var total ledger.Account
	for _, s := range sites {
		total = total.Plus(book.Account(s.name))
		if s.below > 0 {
			out.windowUse[s.name] = s.both / s.below
		}
		if s.in > 0 {
			out.inside[s.name] = s.both / s.in
		}
	}
	out.hours, out.useful = now.Sub(first.Start()).Hours(), useful/3600
	out.kWh = total.KWh()
	if total.MarginalGrams != nil {
		out.kg = *total.MarginalGrams / 1000
	}
	out.cleanShare = clean / total.Joules
	return out
}

// outlook is a forecast that is right.
func outlook(s *replay.Series, now time.Time, points int) *signals.Forecast {
	f := &signals.Forecast{Kind: s.Kind, Unit: s.Unit, Region: s.Region, GeneratedAt: now}
	for at := now; points > 0 && at.Before(s.End()); points-- {
		held := s.At(at)
		f.Points = append(f.Points, signals.ForecastPoint{Start: held.From, Duration: held.Until.Sub(held.From), Value: held.Value})
		at = held.Until
	}
	return f
}

func slots(s *replay.Series, now time.Time) []planner.Slot {
	var out []planner.Slot
	for at := now; at.Before(s.End()); {
		held := s.At(at)
		out = append(out, planner.Slot{From: held.From, Until: held.Until, Grams: held.Value})
		at = held.Until
	}
	return out
}

func steady(t *testing.T, enter int32, in, out int32, leave int32, on, off int32) window.Policy {
	t.Helper()
	p, err := window.FromSpec(v1alpha1.EnergySpec{EnterBelowGrams: &enter, LeaveAboveGrams: &leave, EnterConfirmations: in,
		LeaveConfirmations: out, MinimumOnSeconds: on, MinimumOffSeconds: off}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func names(regions []synthetic.Region) (out []string) {
	for _, r := range regions {
		out = append(out, r.Name)
	}
	return out
}

func bound(t *testing.T, marginal *replay.Trace, regions []string, hours, work float64) ledger.Bound {
	t.Helper()
	var places []ledger.Place
	for _, r := range regions {
		s, err := marginal.Column(r)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, ledger.Place{Site: r, Trace: s, Watts: trainingWatts, PUE: 1})
	}
	start := marginal.Start()
	b, err := ledger.Clairvoyant(places, start, start.Add(time.Duration(hours*float64(time.Hour))), time.Duration(work*float64(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What the pieces reach together on the field study's twin. The study had
// 1.379 kg in 14.6 h. Sync is the share of time that synchronisation takes while
// two or more sites train.
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
		{name: "reactive, enters below 78, 1 % overhead", hours: 13.569, kg: 0.9985, starts: 5, mostHours: 13.6, mostKg: 1,
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

// With a forecast and a deadline the study's time is enough for half its
// emissions, whatever the seed.
func TestAPlanHalvesEmissionsForOtherSeeds(t *testing.T) {
	for seed := range uint64(3) {
		twin := synthetic.Twin(seed)
		r := study{window: look(steady(t, 100, 1, 1, 100, 0, 0)), forecast: true, sync: 0.02, hours: usefulHours,
			plan: deadline(twin.Marginal.Start().Add(876 * time.Minute))}.run(t, twin.Marginal, names(twin.Sites))
		if r.kg > 0.75 || r.hours > 14.65 {
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
		r := study{window: p, forecast: forecast}.run(t, tr, tr.Regions())
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
		{"reactive", study{window: steady(t, 100, 2, 3, 150, 1800, 900)}},
		{"look-ahead", study{window: look(steady(t, 100, 1, 3, 150, 1800, 900)), forecast: true}},
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

func look(p window.Policy) window.Policy {
	p.MinWindow, p.LeaveLead = 15*time.Minute, time.Minute
	return p
}

func deadline(at time.Time) func(float64, time.Time) planner.Config {
	return func(left float64, _ time.Time) planner.Config {
		return planner.Config{Step: 5 * time.Minute, Tokens: left * 3600 * tokensPerSecond, Deadline: at, Margin: 0.03}
	}
}
