package planner

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"girassol.dev/api/federation/v1alpha1"
)

var t0 = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

func pointer(v float64) *float64 { return &v }

// site of 2 kW and 1000 tokens/s at an intensity, with 240 s to provision at
// 468 W.
func site(name string, grams float64, change ...func(*Site)) Site {
	s := Site{Name: name, Open: true, TokensPerSecond: 1000, TrainingWatts: 2000, IdleWatts: 468,
		Provisioning: 240 * time.Second, Grams: &grams}
	for _, c := range change {
		c(&s)
	}
	return s
}

func running(s *Site) { s.Running = true }
func closed(s *Site)  { s.Open = false }

// then appends forecast hours from now on.
func then(hours ...float64) func(*Site) {
	return func(s *Site) {
		for i, v := range hours {
			slot := Slot{From: t0.Add(time.Duration(i) * time.Hour), Until: t0.Add(time.Duration(i+1) * time.Hour), Grams: &v}
			if v < 0 {
				slot.Grams = nil
			}
			s.Forecast = append(s.Forecast, slot)
		}
	}
}

func TestChoices(t *testing.T) {
	hour := func(tokens float64) float64 { return tokens * 3600 * 1000 } // site-hours in tokens
	for _, c := range []struct {
		name   string
		config Config
		state  State
		sites  []Site
		want   string // chosen
		reason map[string]v1alpha1.Reason
	}{
		{name: "all open sites without a number", sites: []Site{site("a", 50), site("b", 90), site("c", 10, closed)}, want: "a b",
			reason: map[string]v1alpha1.Reason{"a": v1alpha1.ReasonChosen, "c": v1alpha1.ReasonWindowNotOpen}},
		{name: "the cleanest", config: Config{Wanted: 1}, sites: []Site{site("a", 50), site("b", 20), site("c", 90)}, want: "b",
			reason: map[string]v1alpha1.Reason{"a": v1alpha1.ReasonCleanerSite, "b": v1alpha1.ReasonChosen}},
		{name: "grams for a token, not grams", config: Config{Wanted: 1}, want: "fast",
			sites: []Site{site("clean", 20), site("fast", 50, func(s *Site) { s.TokensPerSecond = 4000 })}},
		{name: "watts and PUE count", config: Config{Wanted: 1}, want: "b",
			sites: []Site{site("a", 20, func(s *Site) { s.PUE = 2 }), site("b", 30), site("c", 20, func(s *Site) { s.TrainingWatts = 4000 })}},
		{name: "a start costs", config: Config{Wanted: 1}, want: "warm",
			sites: []Site{site("cold", 50, func(s *Site) { s.Provisioning = 20 * time.Minute; s.IdleWatts = 2000 }), site("warm", 55)}},
		{name: "a window too short for its start costs all", config: Config{Wanted: 1}, want: "warm",
			sites: []Site{site("cold", 10, func(s *Site) { s.Provisioning = 15 * time.Minute; s.OpenBelow = pointer(100) },
				func(s *Site) {
					s.Forecast = []Slot{{t0, t0.Add(10 * time.Minute), pointer(10)}, {t0.Add(10 * time.Minute), t0.Add(time.Hour), pointer(500)}}
				}), site("warm", 90, running)}},
		{name: "no change for a small gain", config: Config{Wanted: 1}, want: "a",
			sites:  []Site{site("a", 50, running), site("b", 46)},
			reason: map[string]v1alpha1.Reason{"b": v1alpha1.ReasonSmallGain}},
		{name: "a change for a large one", config: Config{Wanted: 1}, want: "b",
			sites: []Site{site("a", 50, running), site("b", 30)}},
		{name: "without hysteresis any gain", config: Config{Wanted: 1, Hysteresis: -1}, want: "b",
			sites: []Site{site("a", 50, running), site("b", 46, func(s *Site) { s.Provisioning = 0 })}},
		{name: "a running site whose window closed", config: Config{Wanted: 1}, want: "b", sites: []Site{site("a", 1, running, closed), site("b", 90)}},
		{name: "zeros are best and divide nothing", config: Config{Wanted: 2}, want: "a b", sites: []Site{site("a", 0), site("b", 0), site("c", 1)}},
		{name: "among zeros the one with less energy", config: Config{Wanted: 1}, want: "b",
			sites: []Site{site("a", 0), site("b", 0, func(s *Site) { s.TrainingWatts = 500 })}},
		{name: "unknown speed comes last", config: Config{Wanted: 1}, want: "b",
			sites: []Site{site("a", 5, func(s *Site) { s.TokensPerSecond = 0 }), site("b", 90)}},
		{name: "all speeds unknown: by intensity", config: Config{Wanted: 1}, want: "b",
			sites: []Site{site("a", 50, func(s *Site) { s.TokensPerSecond = 0 }), site("b", 20, func(s *Site) { s.TokensPerSecond = 0 })}},
		{name: "unknown intensity comes last", config: Config{Wanted: 1}, want: "b",
			sites: []Site{site("a", 0, func(s *Site) { s.Grams = nil }), site("b", 90)}},

		{name: "changed in this round, stays in", config: Config{Wanted: 1, Round: 7}, state: State{Sites: map[string]Memory{"a": {true, round(7)}}},
			sites: []Site{site("a", 90, running), site("b", 10)}, want: "a", reason: map[string]v1alpha1.Reason{"b": v1alpha1.ReasonSmallGain}},
		{name: "changed in this round, stays out", config: Config{Wanted: 1, Round: 7}, state: State{Sites: map[string]Memory{"b": {false, round(7)}}},
			sites: []Site{site("a", 90), site("b", 10)}, want: "a", reason: map[string]v1alpha1.Reason{"b": v1alpha1.ReasonOneChangePerRound}},
		{name: "changed in the round before", config: Config{Wanted: 1, Round: 8}, state: State{Sites: map[string]Memory{"a": {true, round(7)}}},
			sites: []Site{site("a", 90, running), site("b", 10)}, want: "b"},
		{name: "changed in this round but closed", config: Config{Round: 7}, state: State{Sites: map[string]Memory{"a": {true, round(7)}}},
			sites: []Site{site("a", 10, running, closed)}, want: ""},

		{name: "a budget of energy", config: Config{BudgetKWh: pointer(0.5), Step: 10 * time.Minute}, want: "a",
			sites: []Site{site("a", 10), site("b", 20)}, reason: map[string]v1alpha1.Reason{"b": v1alpha1.ReasonBudgetExhausted}},
		{name: "a budget of grams", config: Config{BudgetGrams: pointer(20), Step: 10 * time.Minute}, want: "b",
			sites: []Site{site("a", 90, running), site("b", 50, running)}, reason: map[string]v1alpha1.Reason{"a": v1alpha1.ReasonBudgetExhausted}},
		{name: "a spent budget", config: Config{BudgetGrams: pointer(-3)}, sites: []Site{site("a", 10)}, want: ""},
		{name: "grams are limited but not known", config: Config{BudgetGrams: pointer(1e6)}, want: "",
			sites: []Site{site("a", 10, func(s *Site) { s.Grams = nil })}},
		{name: "a budget of grams at 0 g", config: Config{BudgetGrams: pointer(0)}, sites: []Site{site("a", 0)}, want: "a"},

		{name: "cleaner hours come and suffice", config: Config{Tokens: hour(2), Deadline: t0.Add(6 * time.Hour)}, want: "",
			sites: []Site{site("a", 90, then(90, 90, 20, 20, 20, 20))}, reason: map[string]v1alpha1.Reason{"a": v1alpha1.ReasonCleanerLater}},
		{name: "cleaner hours come and do not suffice", config: Config{Tokens: hour(5), Deadline: t0.Add(6 * time.Hour)}, want: "a",
			sites: []Site{site("a", 80, then(80, 90, 20, 20, 20, 20))}, reason: map[string]v1alpha1.Reason{"a": v1alpha1.ReasonChosen}},
		{name: "every hour is needed", config: Config{Tokens: hour(50), Deadline: t0.Add(6 * time.Hour)}, want: "a b",
			sites:  []Site{site("a", 90, then(90, 90, 20, 20, 20, 20)), site("b", 10)},
			reason: map[string]v1alpha1.Reason{"a": v1alpha1.ReasonDeadlineAtRisk}},
		{name: "later hours that are closed do not count", config: Config{Tokens: hour(2), Deadline: t0.Add(6 * time.Hour)}, want: "a",
			sites: []Site{site("a", 90, then(90, 90, 300, 300, -1, -1), func(s *Site) { s.OpenBelow = pointer(100) })}},
		{name: "another site does the work later", config: Config{Tokens: hour(3), Deadline: t0.Add(6 * time.Hour)}, want: "",
			sites: []Site{site("a", 90, then(90, 90, 90)), site("b", 500, closed, then(500, 500, 0, 0, 0, 0), func(s *Site) { s.OpenBelow = pointer(100) })}},
		{name: "one seat: two sites cannot share an hour", config: Config{Wanted: 1, Tokens: hour(3.5), Deadline: t0.Add(4 * time.Hour)}, want: "a",
			sites: []Site{site("a", 90, then(90, 90, 20, 20)), site("b", 500, closed, then(500, 500, 10, 10), func(s *Site) { s.OpenBelow = pointer(100) })}},
		{name: "all hours alike: at once", config: Config{Tokens: hour(2), Deadline: t0.Add(6 * time.Hour)}, want: "a",
			sites: []Site{site("a", 50, then(50, 50, 50, 50, 50, 50))}},
		{name: "without a forecast: at once", config: Config{Tokens: hour(1), Deadline: t0.Add(60 * time.Hour)}, want: "a", sites: []Site{site("a", 90)}},
		{name: "a deadline that is over", config: Config{Tokens: hour(1), Deadline: t0.Add(-time.Hour)}, want: "a", sites: []Site{site("a", 90, then(90, 10))}},
		{name: "a running site stays over a short rise", config: Config{Tokens: hour(4), Deadline: t0.Add(6 * time.Hour), Step: 5 * time.Minute, Hysteresis: -1}, want: "a",
			sites: []Site{site("a", 21, running, func(s *Site) {
				s.Provisioning, s.IdleWatts = 20*time.Minute, 2000
				s.Forecast = []Slot{{t0, t0.Add(5 * time.Minute), pointer(21)}, {t0.Add(5 * time.Minute), t0.Add(6 * time.Hour), pointer(20)}}
			})}},
		{name: "and leaves for a long one", config: Config{Tokens: hour(2), Deadline: t0.Add(6 * time.Hour)}, want: "",
			sites: []Site{site("a", 90, running, then(90, 90, 20, 20, 20, 20))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, plan, err := Choose(c.config, c.state, c.sites, t0)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(plan.Chosen(), " "); got != c.want {
				t.Errorf("chose %q, want %q: %+v", got, c.want, plan)
			}
			for _, x := range plan.Choices {
				if r, ok := c.reason[x.Site]; ok && x.Reason != r {
					t.Errorf("%s: %s (%s), want %s", x.Site, x.Reason, x.Message, r)
				}
			}
		})
	}
}

func round(n uint64) *uint64 { return &n }

func TestACostInFigures(t *testing.T) {
	_, plan, err := Choose(Config{}, State{}, []Site{site("a", 90)}, t0)
	if err != nil {
		t.Fatal(err)
	}
	a := plan.Choices[0]
	// 2 kW for a million tokens at 1000/s are 0.5556 kWh, at 90 g 50 g.
	if math.Abs(*a.GramsPerToken*1e6-50) > 1e-9 || math.Abs(*a.KWhPerToken*1e6-2000.0/3600) > 1e-9 {
		t.Errorf("%v g, %v kWh", *a.GramsPerToken, *a.KWhPerToken)
	}
	if want := "50 g per million tokens (2000 W at PUE 1, 90 gCO2/kWh, 1000 tokens/s) and 2.808 g for the start"; a.Message != want {
		t.Errorf("%s", a.Message)
	}
}

func TestFiguresWithoutMeaningAreRefused(t *testing.T) {
	for name, sites := range map[string][]Site{
		"twice":    {site("a", 1), site("a", 2)},
		"nameless": {site("", 1)},
		"NaN":      {site("a", math.NaN())},
		"negative": {site("a", -1)},
		"speed":    {site("a", 1, func(s *Site) { s.TokensPerSecond = math.Inf(1) })},
		"PUE":      {site("a", 1, func(s *Site) { s.PUE = 0.5 })},
		"start":    {site("a", 1, func(s *Site) { s.Provisioning = -1 })},
		"forecast": {site("a", 1, then(math.NaN()))},
	} {
		if _, _, err := Choose(Config{}, State{}, sites, t0); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	for _, c := range []Config{{Tokens: math.NaN()}, {BudgetGrams: pointer(math.Inf(1))}, {Hysteresis: 1}, {Hysteresis: math.NaN()}} {
		if _, _, err := Choose(c, State{}, nil, t0); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func drawConfig(t *rapid.T) Config {
	c := Config{
		Round: uint64(rapid.IntRange(0, 2).Draw(t, "round")), Wanted: rapid.IntRange(0, 4).Draw(t, "wanted"),
		Step:       time.Duration(rapid.IntRange(5, 30).Draw(t, "step")) * time.Minute,
		Hysteresis: rapid.SampledFrom([]float64{-1, 0, 0.1, 0.5}).Draw(t, "hysteresis"),
	}
	if rapid.Bool().Draw(t, "limited") {
		c.Tokens = float64(rapid.IntRange(0, 40).Draw(t, "hours")) * 3600 * 1000
		c.Deadline = t0.Add(time.Duration(rapid.IntRange(-1, 12).Draw(t, "deadline")) * time.Hour)
	}
	if rapid.IntRange(0, 2).Draw(t, "grams") == 0 {
		c.BudgetGrams = pointer(float64(rapid.IntRange(-5, 200).Draw(t, "budget")))
	}
	if rapid.IntRange(0, 2).Draw(t, "energy") == 0 {
		c.BudgetKWh = pointer(float64(rapid.IntRange(0, 40).Draw(t, "tenths")) / 10)
	}
	return c
}

func drawSites(t *rapid.T) (sites []Site, s State) {
	s.Sites = map[string]Memory{}
	for i := range rapid.IntRange(0, 6).Draw(t, "sites") {
		x := site(string(rune('a'+i)), float64(rapid.SampledFrom([]int{0, 0, 20, 21, 50, 90}).Draw(t, "now")))
		x.Open = rapid.IntRange(0, 3).Draw(t, "open") > 0
		x.Running = rapid.Bool().Draw(t, "running")
		x.TokensPerSecond = float64(rapid.SampledFrom([]int{0, 500, 1000, 1000, 3000}).Draw(t, "speed"))
		x.TrainingWatts = float64(rapid.SampledFrom([]int{0, 1000, 2000, 2000}).Draw(t, "watts"))
		if rapid.IntRange(0, 5).Draw(t, "unknown") == 0 {
			x.Grams = nil
		}
		if rapid.Bool().Draw(t, "threshold") {
			x.OpenBelow = pointer(100)
		}
		var hours []float64
		for range rapid.IntRange(0, 12).Draw(t, "forecast") {
			hours = append(hours, float64(rapid.SampledFrom([]int{-1, 0, 20, 50, 90, 300}).Draw(t, "grams")))
		}
		then(hours...)(&x)
		sites = append(sites, x)
		if rapid.Bool().Draw(t, "remembered") {
			s.Sites[x.Name] = Memory{Chosen: x.Running, Changed: round(uint64(rapid.IntRange(0, 2).Draw(t, "changed")))}
		}
	}
	return sites, s
}

func TestRulesThatHoldAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		sites, s := drawSites(t)
		was, err := json.Marshal([]any{s, sites})
		if err != nil {
			t.Fatal(err)
		}
		next, plan, err := Choose(c, s, sites, t0)
		if err != nil {
			t.Fatal(err)
		}
		if now, _ := json.Marshal([]any{s, sites}); string(now) != string(was) {
			t.Fatalf("what was given became %s, was %s", now, was)
		}
		chosen := 0
		var grams, kWh float64
		for i, x := range plan.Choices {
			given := sites[i] // both by name
			if x.Site != given.Name || x.Reason == "" || x.Message == "" || strings.Contains(x.Message, "NaN") || strings.Contains(x.Message, "Inf") {
				t.Fatalf("unexplained: %+v", x)
			}
			m := s.Sites[x.Site]
			if m.Changed != nil && *m.Changed == c.Round && x.Chosen != given.Running &&
				(x.Chosen || x.Reason != v1alpha1.ReasonWindowNotOpen && x.Reason != v1alpha1.ReasonBudgetExhausted &&
					(c.Wanted == 0 || x.Reason != v1alpha1.ReasonCleanerSite && x.Reason != v1alpha1.ReasonSmallGain)) {
				t.Fatalf("changed twice in round %d: %+v", c.Round, x)
			}
			if !x.Chosen {
				continue
			}
			chosen++
			if !given.Open {
				t.Fatalf("chose a closed site: %+v", x)
			}
			e := given.TrainingWatts * c.Step.Hours() / 1000
			if !given.Running {
				e += given.IdleWatts * given.Provisioning.Hours() / 1000
			}
			kWh += e
			grams += e * value(given.Grams)
		}
		if c.Wanted > 0 && chosen > c.Wanted {
			t.Fatalf("chose %d of %d: %+v", chosen, c.Wanted, plan)
		}
		if c.BudgetGrams != nil && grams > math.Max(0, *c.BudgetGrams)+1e-9 || c.BudgetKWh != nil && kWh > math.Max(0, *c.BudgetKWh)+1e-9 {
			t.Fatalf("%v g, %v kWh beyond the budget: %+v", grams, kWh, plan)
		}
		// The order of the sites, a restart and another zone make no difference.
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back State
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		shuffled := append([]Site(nil), sites...)
		rand.New(rand.NewPCG(1, uint64(len(sites)))).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again, same, err := Choose(c, back, shuffled, t0.In(time.FixedZone("+0545", 5*3600+45*60)))
		if err != nil {
			t.Fatal(err)
		}
		same.NextChange, plan.NextChange = time.Time{}, time.Time{}
		if !reflect.DeepEqual(plan, same) || !reflect.DeepEqual(next, again) {
			t.Fatalf("%+v, shuffled %+v", plan, same)
		}
	})
}

// With nothing new, a plan that is followed is kept: no site comes and goes.
func TestAPlanThatIsFollowedIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.Tokens, c.BudgetGrams, c.BudgetKWh = 0, nil, nil
		sites, s := drawSites(t)
		var before []string
		for i := range 4 {
			c.Round = uint64(10 + i)
			var plan Plan
			var err error
			s, plan, err = Choose(c, s, sites, t0)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 && !reflect.DeepEqual(plan.Chosen(), before) {
				t.Fatalf("round %d chose %v, before %v: %+v", i, plan.Chosen(), before, plan)
			}
			before = plan.Chosen()
			for j := range sites {
				sites[j].Running = plan.Choices[j].Chosen
			}
		}
	})
}

// A budget is used up by steps and never overrun by more than the last of them,
// even if the intensity then rises.
func TestABudgetIsNotOverrunByMoreThanAStep(t *testing.T) {
	left := 300.0
	sites := []Site{site("a", 50), site("b", 80)}
	var s State
	for n := range 100 {
		budget := left
		var plan Plan
		var err error
		s, plan, err = Choose(Config{Round: uint64(n), BudgetGrams: &budget, Step: 10 * time.Minute}, s, sites, t0.Add(time.Duration(n)*10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range plan.Choices {
			sites[i].Running = x.Chosen
			if x.Chosen {
				left -= 2 / 6.0 * *sites[i].Grams * 1.2 // a fifth more than was known
			}
		}
	}
	if step := 2 / 6.0 * (50 + 80) * 1.2; left < -step || left > step {
		t.Errorf("%v g left, a step is %v", left, step)
	}
}
