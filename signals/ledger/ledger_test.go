package ledger_test

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
)

var t0 = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// none stands for an empty cell.
const none = -1

func series(t interface{ Fatal(...any) }, kind signals.Kind, period time.Duration, values ...float64) *replay.Series {
	var times []time.Time
	column := make([]*float64, len(values))
	for i, v := range values {
		times = append(times, t0.Add(time.Duration(i)*period))
		if v != none {
			column[i] = &v
		}
	}
	tr, err := replay.NewTrace("test", kind, signals.GramsPerKWh, times, []string{"r"}, [][]*float64{column})
	if err != nil {
		t.Fatal(err)
	}
	s, err := tr.Column("r")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func book(s ...*replay.Series) *ledger.Ledger {
	g := ledger.Grid{}
	if len(s) > 0 {
		g.Marginal = s[0]
	}
	if len(s) > 1 {
		g.Average = s[1]
	}
	return ledger.New(map[string]ledger.Grid{"a": g})
}

func add(t *testing.T, l *ledger.Ledger, from, to, watts, pue float64) {
	t.Helper()
	minutes := func(m float64) time.Time { return t0.Add(time.Duration(m * float64(time.Minute))) }
	if err := l.Add("a", minutes(from), minutes(to), watts, pue); err != nil {
		t.Fatal(err)
	}
}

func grams(t *testing.T, what string, got *float64, want float64) {
	t.Helper()
	switch {
	case got == nil:
		t.Errorf("%s: unknown, want %v g", what, want)
	case math.Abs(*got-want) > 1e-9*math.Max(1, want):
		t.Errorf("%s: %v g, want %v", what, *got, want)
	}
}

// Hourly 100, 200, 300, 400 g/kWh and 1 kW: each hour has its own intensity and
// an hour's grams do not depend on how much more was asked for.
func TestEveryHourHasItsOwnIntensity(t *testing.T) {
	hourly := series(t, signals.Marginal, time.Hour, 100, 200, 300, 400)
	four, two := book(hourly), book(hourly)
	add(t, four, 0, 240, 1000, 1)
	add(t, two, 0, 120, 1000, 1)
	grams(t, "four hours", four.Account("a").MarginalGrams, 1000)
	grams(t, "two hours", two.Account("a").MarginalGrams, 300)
	for i, want := range []float64{100, 200, 300, 400} {
		hour := book(hourly)
		add(t, hour, 60*float64(i), 60*float64(i+1), 1000, 1)
		grams(t, "one hour", hour.Account("a").MarginalGrams, want)
	}
}

// 5-minute points and a 60 s step: held, without gaps.
func TestStepsShorterThanAPointHoldItsValue(t *testing.T) {
	s := series(t, signals.Marginal, 5*time.Minute, 120, 60)
	l := book(s)
	for m := range 10 {
		add(t, l, float64(m), float64(m+1), 6000, 1) // 0.1 kWh a minute
	}
	a := l.Account("a")
	grams(t, "ten minutes", a.MarginalGrams, 5*0.1*120+5*0.1*60)
	if math.Abs(a.KWh()-1) > 1e-12 || math.Abs(a.MarginalCoverage()-1) > 1e-12 {
		t.Errorf("%v kWh, coverage %v", a.KWh(), a.MarginalCoverage())
	}
}

func TestEnergyIsSplitAtTheBoundaries(t *testing.T) {
	l := book(series(t, signals.Marginal, 5*time.Minute, 100, 400))
	add(t, l, 4, 6, 30_000, 1) // 0.5 kWh in each of the two minutes
	grams(t, "two minutes", l.Account("a").MarginalGrams, 50+200)
}

func TestPUEMultipliesEnergyAndGrams(t *testing.T) {
	l := book(series(t, signals.Marginal, time.Hour, 200, 0))
	add(t, l, 0, 60, 1000, 1.5)
	a := l.Account("a")
	grams(t, "an hour", a.MarginalGrams, 300)
	if a.KWh() != 1.5 {
		t.Errorf("%v kWh", a.KWh())
	}
}

func TestUnknownIntensityIsEnergyWithoutGrams(t *testing.T) {
	l := book(series(t, signals.Marginal, 5*time.Minute, 100, none, 0, 100))
	add(t, l, 5, 10, 12_000, 1) // 1 kWh at no value
	a := l.Account("a")
	if a.MarginalGrams != nil || a.MarginalCoverage() != 0 || math.Abs(a.KWh()-1) > 1e-12 {
		t.Errorf("no value: %+v", a)
	}
	add(t, l, 10, 15, 12_000, 1) // 1 kWh at 0 g
	a = l.Account("a")
	grams(t, "at zero", a.MarginalGrams, 0)
	if math.Abs(a.MarginalCoverage()-0.5) > 1e-12 {
		t.Errorf("coverage %v", a.MarginalCoverage())
	}
	add(t, l, 15, 30, 12_000, 1) // a third of it inside the trace
	a = l.Account("a")
	grams(t, "at the end", a.MarginalGrams, 100)
	if math.Abs(a.MarginalCoverage()-2.0/5) > 1e-12 {
		t.Errorf("coverage %v", a.MarginalCoverage())
	}
}

func TestTheTwoLedgersStayApart(t *testing.T) {
	l := book(series(t, signals.Marginal, time.Hour, 500, none), series(t, signals.Average, 30*time.Minute, 200, 300, 400))
	add(t, l, 0, 90, 1000, 1)
	a := l.Account("a")
	grams(t, "marginal", a.MarginalGrams, 500)
	grams(t, "average", a.AverageGrams, 100+150+200)
	if math.Abs(a.MarginalCoverage()-2.0/3) > 1e-12 || math.Abs(a.AverageCoverage()-1) > 1e-12 {
		t.Errorf("coverage %v and %v", a.MarginalCoverage(), a.AverageCoverage())
	}
}

func TestASiteWithoutAGridHasEnergyOnly(t *testing.T) {
	l := ledger.New(nil)
	if err := l.Add("b", t0, t0.Add(time.Hour), 1000, 1); err != nil {
		t.Fatal(err)
	}
	if a := l.Account("b"); a.KWh() != 1 || a.MarginalGrams != nil || a.AverageGrams != nil {
		t.Errorf("%+v", a)
	}
	if a := l.Account("nobody"); a != (ledger.Account{}) || a.MarginalCoverage() != 1 {
		t.Errorf("%+v", a)
	}
}

func TestMeasuredEnergyIsSpreadEvenly(t *testing.T) {
	l := book(series(t, signals.Marginal, 5*time.Minute, 100, 300))
	if err := l.AddEnergy("a", t0, t0.Add(10*time.Minute), ledger.JoulesPerKWh, 1); err != nil {
		t.Fatal(err)
	}
	grams(t, "1 kWh", l.Account("a").MarginalGrams, 200)
	if err := l.AddEnergy("a", t0, t0, 0, 1); err != nil {
		t.Errorf("no energy in no time: %v", err)
	}
	if err := l.AddEnergy("a", t0, t0, 1, 1); err == nil {
		t.Error("energy in no time was accepted")
	}
}

func TestSpansAndPowersWithoutMeaningAreRefusedWithoutEffect(t *testing.T) {
	l := book(series(t, signals.Marginal, time.Hour, 100, 0))
	hour := t0.Add(time.Hour)
	for name, err := range map[string]error{
		"backwards": l.Add("a", hour, t0, 1, 1),
		"negative":  l.Add("a", t0, hour, -1, 1),
		"NaN":       l.Add("a", t0, hour, math.NaN(), 1),
		"Inf":       l.Add("a", t0, hour, math.Inf(1), 1),
		"PUE 0.9":   l.Add("a", t0, hour, 1, 0.9),
		"PUE NaN":   l.Add("a", t0, hour, 1, math.NaN()),
		"joules":    l.AddEnergy("a", t0, hour, -5, 1),
	} {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if a := l.Account("a"); a != (ledger.Account{}) {
		t.Errorf("%+v", a)
	}
}

func TestASnapshotRestoresExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		marginal := series(t, signals.Marginal, 5*time.Minute, 100, none, 0, 77.7)
		straight, restored := book(marginal), book(marginal)
		for range rapid.IntRange(1, 20).Draw(t, "spans") {
			from := t0.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "from")) * time.Second)
			to := from.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "length")) * time.Second)
			watts := rapid.Float64Range(0, 1e5).Draw(t, "watts")
			for _, l := range []*ledger.Ledger{straight, restored} {
				if err := l.Add("a", from, to, watts, 1.2); err != nil {
					t.Fatal(err)
				}
			}
			b, err := json.Marshal(restored.Snapshot())
			if err != nil {
				t.Fatal(err)
			}
			var back map[string]ledger.Account
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			restored = book(marginal)
			if err := restored.Restore(back); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(straight.Snapshot(), restored.Snapshot()) {
				t.Fatalf("%+v, restored %+v", straight.Snapshot(), restored.Snapshot())
			}
		}
	})
}

func TestASnapshotSharesNothing(t *testing.T) {
	l := book(series(t, signals.Marginal, time.Hour, 100, 0))
	add(t, l, 0, 60, 1000, 1)
	*l.Snapshot()["a"].MarginalGrams = 7
	*l.Account("a").MarginalGrams = 7
	grams(t, "after a change of a copy", l.Account("a").MarginalGrams, 100)
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1)} {
		if l.Restore(map[string]ledger.Account{"a": {Joules: bad}}) == nil {
			t.Errorf("%v J was restored", bad)
		}
	}
	grams(t, "after a refused snapshot", l.Account("a").MarginalGrams, 100)
}

// However a span is cut, the sum is the same.
func TestCuttingASpanChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := series(t, signals.Marginal, 5*time.Minute, 100, none, 0, 77.7, 450).Repeat()
		whole, cut := book(s), book(s)
		at := t0
		for range rapid.IntRange(1, 30).Draw(t, "cuts") {
			next := at.Add(time.Duration(rapid.IntRange(1, 900).Draw(t, "length")) * time.Second)
			if err := cut.Add("a", at, next, 500, 1.1); err != nil {
				t.Fatal(err)
			}
			at = next
		}
		if err := whole.Add("a", t0, at, 500, 1.1); err != nil {
			t.Fatal(err)
		}
		a, b := whole.Account("a"), cut.Account("a")
		if near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*math.Max(1, math.Abs(x)) }; !near(a.Joules, b.Joules) ||
			!near(a.MarginalJoules, b.MarginalJoules) || (a.MarginalGrams == nil) != (b.MarginalGrams == nil) ||
			a.MarginalGrams != nil && !near(*a.MarginalGrams, *b.MarginalGrams) {
			t.Fatalf("%+v, cut %+v", a, b)
		}
	})
}

func TestABaselineRepeatsAShortTraceAndSaysSo(t *testing.T) {
	s := series(t, signals.Marginal, time.Hour, 100, 300)
	for _, c := range []struct {
		name     string
		start    time.Time
		hours    float64
		grams    float64
		repeated bool
	}{
		{"inside", t0, 2, 400, false},
		{"longer", t0, 5, 100 + 300 + 100 + 300 + 100, true},
		{"from the middle", t0.Add(90 * time.Minute), 1, 150 + 50, true},
	} {
		got, err := ledger.AlwaysOn("r", s, c.start, time.Duration(c.hours*float64(time.Hour)), 1000, 1)
		if err != nil {
			t.Fatal(err)
		}
		grams(t, c.name, got.Grams, c.grams)
		if got.Repeated != c.repeated || got.Joules != c.hours*ledger.JoulesPerKWh || got.CoveredJoules != got.Joules {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestPowerModelOfASpec(t *testing.T) {
	pue := resource.MustParse("1.35")
	p, err := ledger.PowerFromSpec(v1alpha1.PowerSpec{TrainingWatts: 2024, IdleWatts: 468, PUE: &pue})
	if err != nil || p != (ledger.Power{TrainingWatts: 2024, IdleWatts: 468, PUE: 1.35}) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := ledger.PowerFromSpec(v1alpha1.PowerSpec{}); err != nil || p.PUE != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	low := resource.MustParse("0.9")
	for _, s := range []v1alpha1.PowerSpec{{TrainingWatts: -1}, {IdleWatts: -1}, {PUE: &low}} {
		if _, err := ledger.PowerFromSpec(s); err == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}
