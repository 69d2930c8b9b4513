package director

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/webhook"
)

// alike are the facts of sites that differ in their electricity only.
func alike(string) (speed, watts, idle, pue float64, ok bool) { return 1000, 2000, 400, 1.2, true }

func TestTheCleanerOfTwoIsChosenWhenOneIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike,
			Planner: &planner.Config{Wanted: 1, Step: 10 * time.Minute},
			Sites: []Site{
				{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(80, 20)...)}},
				{Name: "b", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(append(repeat(40, 6), repeat(500, 14)...)...)}},
				{Name: "shut", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(500, 20)...)}},
			}})
		until(clock, 7)
		w := members.last(t, "a")
		if w.Admit || w.Reason != v1alpha1.ReasonCleanerSite || w.Signal.Window != v1alpha1.WindowOpen || !strings.Contains(w.Message, "80") {
			t.Errorf("%+v", w)
		}
		if w := members.last(t, "b"); !w.Admit || w.Reason != v1alpha1.ReasonEnergyFavourable || !strings.Contains(w.Message, "chosen") {
			t.Errorf("%+v", w)
		}
		if w := members.last(t, "shut"); w.Admit || w.Reason != v1alpha1.ReasonWaitingForEnergy {
			t.Errorf("%+v", w)
		}
		e, _ := d.Explain("a")
		if p := e.Plan; p == nil || p.Chosen || p.Reason != v1alpha1.ReasonCleanerSite || p.Wanted != 1 || *p.GramsPerToken < 5.3e-5 || *p.GramsPerToken > 5.4e-5 {
			t.Errorf("%+v", p)
		}
		until(clock, 60)
		stop()
		sameMinutes(t, "a", members.changes("a"), []float64{30})
		sameMinutes(t, "b", members.changes("b"), []float64{0, 30})
		sameMinutes(t, "shut", members.changes("shut"), nil)
		for _, w := range members.of("a") {
			if w.Reason == v1alpha1.ReasonWindowNotOpen {
				t.Errorf("told before there was a plan: %+v", w)
			}
		}
	})
}

func TestASiteThatCannotBeHadGivesItsPlaceToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		var gone atomic.Bool
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike,
			Planner:     &planner.Config{Wanted: 1, Step: 10 * time.Minute},
			Unavailable: func(site string) bool { return site == "b" && gone.Load() },
			Sites: []Site{
				{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(80, 30)...)}},
				{Name: "b", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(40, 30)...)}},
			}})
		until(clock, 22)
		gone.Store(true)
		d.Look()
		until(clock, 24)
		if w := members.last(t, "b"); w.Admit || w.Reason != v1alpha1.ReasonCoolingOff || w.Signal.Window != v1alpha1.WindowOpen {
			t.Errorf("%+v", w)
		}
		if w := members.last(t, "a"); !w.Admit {
			t.Errorf("%+v", w)
		}
		gone.Store(false)
		d.Look()
		until(clock, 60)
		stop()
		if w := members.last(t, "b"); !w.Admit {
			t.Errorf("asked again: %+v", w)
		}
	})
}

func TestASiteComesInOnceInARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		var round atomic.Uint64
		_, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike, Round: round.Load,
			Planner: &planner.Config{Step: time.Hour},
			Sites:   []Site{{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(50, 500, 50, 50, 50, 50, 50, 50)}}}})
		until(clock, 22)
		if w := members.last(t, "a"); w.Admit || w.Reason != v1alpha1.ReasonOneChangePerRound {
			t.Errorf("%+v", w)
		}
		round.Add(1)
		until(clock, 24)
		stop()
		got := members.changes("a")
		if len(got) != 3 || got[2] < 22 || got[2] > 23.5 {
			t.Errorf("changed at minutes %v", got)
		}
	})
}

func TestAnOverrideTakesAPlaceUntilItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike,
			Planner: &planner.Config{Wanted: 1, Step: 5 * time.Minute},
			Sites: []Site{
				{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(500, 20)...)}},
				{Name: "b", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(40, 20)...)}},
			}})
		until(clock, 12)
		if err := d.Override("a", true, t0.Add(32*time.Minute), "a test run"); err != nil {
			t.Fatal(err)
		}
		until(clock, 14)
		if w := members.last(t, "a"); !w.Admit || w.Reason != v1alpha1.ReasonOverride || !strings.Contains(w.Message, "a test run") ||
			!w.Signal.NextChange.Equal(t0.Add(15*time.Minute)) {
			t.Errorf("%+v", w)
		}
		if w := members.last(t, "b"); w.Admit || w.Reason != v1alpha1.ReasonOverride || !strings.Contains(w.Message, "taken by overrides: a") {
			t.Errorf("%+v", w)
		}
		until(clock, 60)
		stop()
		sameMinutes(t, "a", members.changes("a"), []float64{12, 32})
		sameMinutes(t, "b", members.changes("b"), []float64{0, 12, 32})
	})
}

func TestWorkWaitsForCleanerHoursOfTheForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		members := &recorder{clock: clock}
		_, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike,
			Remaining: func() float64 { return 3600 * 1000 * 0.9 },
			Planner:   &planner.Config{Deadline: t0.Add(4 * time.Hour), Step: 10 * time.Minute},
			Sites: []Site{{Name: "a", Policy: below100(1, 1), Provisioning: 4 * time.Minute,
				Source: &scripted{clock: clock, values: v(append(repeat(90, 24), repeat(10, 24)...)...)}, Forecast: foresees(clock, 90, 90, 10, 10)}}})
		until(clock, 30)
		if w := members.last(t, "a"); w.Admit || w.Reason != v1alpha1.ReasonCleanerLater {
			t.Errorf("%+v", w)
		}
		until(clock, 150)
		stop()
		if got := members.changes("a"); len(got) != 1 || got[0] < 120 || got[0] > 121 {
			t.Errorf("changed at minutes %v", got)
		}
	})
}

func TestASpentBudgetPutsAllOutOverridesIncluded(t *testing.T) {
	for _, planned := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			clock := atSpeed(t, 60)
			members := &recorder{clock: clock}
			var spent atomic.Int64
			budget := 100.0
			c := Config{Federation: "f", Membership: members, Clock: clock, Facts: alike, BudgetGrams: &budget,
				Spent: func() (float64, float64) { return float64(spent.Load()), 1 },
				Sites: []Site{
					{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(40, 20)...)}},
					{Name: "b", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(500, 20)...)}},
				}}
			if planned {
				c.Planner = &planner.Config{Step: time.Minute}
			}
			d, stop := run(t, c)
			until(clock, 11)
			if err := d.Override("b", true, t0.Add(3*time.Hour), "why not"); err != nil {
				t.Fatal(err)
			}
			until(clock, 13)
			spent.Store(100)
			until(clock, 14)
			for _, site := range []string{"a", "b"} {
				if w := members.last(t, site); w.Admit || w.Reason != v1alpha1.ReasonBudgetExhausted || !strings.Contains(w.Message, "100 of 100 gCO2") {
					t.Errorf("%s: %+v", site, w)
				}
			}
			if e, _ := d.Explain("b"); e.Budget == nil || e.Budget.Exhausted == "" || e.Budget.SpentGrams != 100 || e.Override == nil {
				t.Errorf("%+v", e)
			}
			spent.Store(50)
			until(clock, 16)
			stop()
			if w := members.last(t, "b"); !w.Admit || w.Reason != v1alpha1.ReasonOverride {
				t.Errorf("%+v", w)
			}
		})
	}
}

// demands is what demand response asks of a site.
type demands []webhook.Curtailment

func (d demands) Curtailments() []webhook.Curtailment { return d }

func TestACurtailmentWinsOverAllAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		enough, little := 2500.0, 1000.0
		at := func(minute int) time.Time { return t0.Add(time.Duration(minute) * time.Minute) }
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike,
			Sites: []Site{
				{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(40, 20)...)},
					Curtailments: demands{{Source: "dso", ID: "1", Demands: []webhook.Demand{
						{Start: at(5), Until: at(8), LimitWatts: &enough, Reason: "IMPORT_CAPACITY_LIMIT"},
						{Start: at(12), Until: at(18), LimitWatts: &little, Reason: "IMPORT_CAPACITY_LIMIT"}}}}},
				{Name: "b", Region: "west", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(40, 20)...)}},
				{Name: "c", Region: "east", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(40, 20)...)}},
			}})
		for _, site := range []string{"a", "b"} {
			if err := d.Override(site, true, at(60), "whatever comes"); err != nil {
				t.Fatal(err)
			}
		}
		until(clock, 13)
		w := members.last(t, "a")
		if w.Admit || w.Reason != v1alpha1.ReasonCurtailed || !strings.Contains(w.Message, "at most 1000 W") {
			t.Errorf("%+v", w)
		}
		if e, _ := d.Explain("a"); e.Curtailment == nil || e.Curtailment.Source != "dso" || *e.Curtailment.LimitWatts != 1000 || e.Override == nil {
			t.Errorf("%+v", e)
		}
		demand := webhook.Curtailment{Target: webhook.Target{Region: "west"}, Source: "ven", ID: "9",
			Demands: []webhook.Demand{{Start: at(10), Until: at(120), Reason: "ALERT_GRID_EMERGENCY"}}}
		d.Sink().Curtailment(demand)
		until(clock, 13.1)
		if w := members.last(t, "b"); w.Admit || w.Reason != v1alpha1.ReasonGridEmergency {
			t.Errorf("%+v", w)
		}
		until(clock, 30)
		demand.Demands = nil
		d.Sink().Curtailment(demand)
		until(clock, 31)
		if e, _ := d.Explain("b"); e.Curtailment != nil || !e.Admit {
			t.Errorf("%+v", e)
		}
		stop()
		sameMinutes(t, "a", members.changes("a"), []float64{0, 12, 18})
		sameMinutes(t, "b", members.changes("b"), []float64{0, 13, 30})
		sameMinutes(t, "c", members.changes("c"), []float64{0})
	})
}

func TestAHangingSourceDelaysNoOtherSitesPlanByASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 1)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike, Planner: &planner.Config{Wanted: 1, Step: 5 * time.Minute},
			Sites: []Site{
				{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(append(repeat(80, 2), 500, 80)...)}},
				{Name: "hangs", Policy: below100(1, 1), Source: sourceFunc(hang)},
			}})
		until(clock, 19)
		if e, err := d.Explain("hangs"); err != nil || e.SourceError == "" || e.Admit {
			t.Errorf("%+v, %v", e, err)
		}
		stop()
		got := members.changes("a")
		if len(got) != 3 || got[0] > 1.0/60 || got[1] < 10 || got[1] > 10.001 || got[2] < 15 || got[2] > 15+1.0/60 {
			t.Errorf("changed at minutes %v", got)
		}
	})
}

// All sites left in a round, which therefore does not end.
func TestARoundWithoutSitesDoesNotKeepThemOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		_, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike, Round: func() uint64 { return 7 },
			Planner: &planner.Config{Step: 12 * time.Minute},
			Sites:   []Site{{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(50, 500, 50, 50, 50, 50, 50, 50)}}}})
		until(clock, 60)
		stop()
		if got := members.changes("a"); len(got) != 3 || got[2] < 17 || got[2] > 20.1 {
			t.Errorf("changed at minutes %v", got)
		}
	})
}

func TestFiguresThatCannotBePlannedWithCostNoTraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		_, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock,
			Facts:     func(string) (speed, watts, idle, pue float64, ok bool) { return math.NaN(), -1, 0, 0.3, true },
			Remaining: math.NaN,
			Planner:   &planner.Config{Wanted: 1},
			Sites: []Site{
				{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(50)}},
				{Name: "b", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(500)}},
			}})
		until(clock, 5)
		stop()
		if w := members.last(t, "a"); !w.Admit || !strings.Contains(w.Message, "no plan") {
			t.Errorf("%+v", w)
		}
		sameMinutes(t, "b", members.changes("b"), nil)
	})
}
