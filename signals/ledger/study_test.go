package ledger_test

import (
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
	// step of the replay; 10 s if 0.
	step time.Duration
}

type result struct {
	hours, useful, kWh, kg, cleanShare float64
	starts                             map[string]int
	// windowUse is the share of the open time (below 100 g) in which a site was
	// in, inside that of the time it was in that was open.
	windowUse, inside map[string]float64
}

const tokensPerSecond = 1000

// run replays in steps; signals are judged once for each point.
func (st study) run(t *testing.T, marginal *replay.Trace, regions []string) result {
	t.Helper()
	step := step
	if st.step > 0 {
		step = st.step
	}
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
					in.Forecast = outlook(s.series, now, 48)
				}
			}
			in.Verdict = &s.verdict
			var d window.Decision
			s.state, d = window.DecideWith(st.window, s.state, in, now)
			s.open = d.Admit
		}
		wanted := map[string]bool{}
		if st.plan == nil {
			for _, s := range sites {
				wanted[s.name] = s.open
			}
		} else {
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

func look(p window.Policy) window.Policy {
	p.MinWindow, p.LeaveLead = 15*time.Minute, time.Minute
	return p
}

func deadline(at time.Time) func(float64, time.Time) planner.Config {
	return func(left float64, _ time.Time) planner.Config {
		return planner.Config{Step: 5 * time.Minute, Tokens: left * 3600 * tokensPerSecond, Deadline: at, Margin: 0.03}
	}
}
