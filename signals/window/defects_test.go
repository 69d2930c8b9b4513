package window_test

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// grid is one region's signal under judgement and decision.
type grid struct {
	t        *testing.T
	policy   window.Policy
	judged   sanity.State
	state    window.State
	decision window.Decision
	verdict  sanity.Verdict
	starts   int
	admitted bool
}

func (g *grid) see(in sanity.Input, now time.Time) {
	g.t.Helper()
	g.judged, g.verdict = sanity.Check(sanity.Policy{}, g.judged, in, now)
	inputs := window.Inputs{Reading: in.Reading, Verdict: &g.verdict, Forecast: in.Forecast}
	if in.Forecast != nil {
		v := sanity.CheckForecast(sanity.Policy{}, g.judged, in.Forecast, in.Price, now)
		inputs.ForecastVerdict = &v
	}
	g.state, g.decision = window.DecideWith(g.policy, g.state, inputs, now)
	if g.decision.Admit && !g.admitted {
		g.starts++
	}
	g.admitted = g.decision.Admit
}

// hourly is a day-and-night intensity around 500 g with a number of hours.
func hourly(hours int) []*float64 {
	values := make([]*float64, hours)
	for i := range values {
		v := 500 + 60*float64((i*7)%24)/24 - 30*float64(i%5)
		values[i] = &v
	}
	return values
}

func (g *grid) hours(values []*float64, start time.Time) {
	for i, v := range values {
		at := start.Add(time.Duration(i) * time.Hour)
		g.see(sanity.Input{Reading: &signals.Reading{Kind: signals.Average, Unit: signals.GramsPerKWh, Region: "r",
			Value: v, PointTime: at, Period: time.Hour}}, at)
	}
}

var day = time.Date(2026, 6, 10, 0, 0, 0, 0, time.UTC)

// A wind farm that reports three terawatts makes one hour look clean. With a
// single confirmation it would start a site.
func TestAFalseCleanHourStartsNoSiteEvenUnconfirmed(t *testing.T) {
	values := hourly(240)
	false5 := 5.1
	values[74] = &false5
	one := policy(t, v1alpha1.EnergySpec{EnterConfirmations: 1, LeaveConfirmations: 1}, 100, 100)
	g := &grid{t: t, policy: one}
	g.hours(values[:75], day)
	if g.verdict.Class != sanity.Held || g.decision.Reason != v1alpha1.ReasonSignalJump {
		t.Errorf("the false hour: %+v, %+v", g.verdict, g.decision)
	}
	g.hours(values[75:], day.Add(75*time.Hour))
	if g.starts != 0 {
		t.Errorf("%d starts", g.starts)
	}
	// A second clean hour is a window.
	values[75] = &false5
	g = &grid{t: t, policy: one}
	g.hours(values[:76], day)
	if g.starts != 1 || !g.admitted {
		t.Errorf("two clean hours: %d starts, %+v", g.starts, g.decision)
	}
}

func TestAFalseCleanHourOfARealGridStartsNoSite(t *testing.T) {
	tr := shared(t, "eia930_2023-06-10_2023-06-20_avg_intensity_gpkwh.csv", signals.Average)
	for _, region := range tr.Regions() {
		s, err := tr.Column(region)
		if err != nil {
			t.Fatal(err)
		}
		g := &grid{t: t, policy: policy(t, v1alpha1.EnergySpec{EnterConfirmations: 1, LeaveConfirmations: 1}, 100, 100)}
		values := make([]*float64, s.Len())
		for i := range values {
			_, values[i] = s.Point(i)
		}
		g.hours(values, s.Start())
		bare, _ := starts(t, tr, region, g.policy)
		want := bare
		if region == "SWPP" {
			want = 0
		}
		if g.starts != want {
			t.Errorf("%s: %d starts, %d by the bare thresholds, want %d", region, g.starts, bare, want)
		}
	}
}

// Half a day without values: unknown after the grace, drained after the hold,
// never judged by a number.
func TestAGapOfTwelveHoursIsUnknown(t *testing.T) {
	values := hourly(60)
	for i := 24; i < 36; i++ {
		values[i] = nil
	}
	g := &grid{t: t, policy: policy(t, v1alpha1.EnergySpec{MaxStaleSeconds: 3600}, 5000, 5000)}
	unknown, drained := 0, 0
	for i := range values {
		g.hours(values[i:i+1], day.Add(time.Duration(i)*time.Hour))
		if i >= 24 && i < 36 && g.verdict.Class != sanity.Missing {
			t.Errorf("hour %d: %+v", i, g.verdict)
		}
		if g.decision.Window == v1alpha1.WindowUnknown {
			unknown++
			if !g.admitted {
				drained++
			}
		}
	}
	if unknown != 10 || drained != 9 {
		t.Errorf("%d hours unknown, %d of them drained", unknown, drained)
	}
}

// The last half-hours of an answer have no actual yet; it comes later, under
// the same time, when newer points are known already.
func TestLateActualsAreNeitherZeroNorNewer(t *testing.T) {
	g := &grid{t: t, policy: policy(t, v1alpha1.EnergySpec{EnterConfirmations: 2}, 100, 100)}
	half := func(i int, v *float64, now int) {
		start := day.Add(time.Duration(i) * 30 * time.Minute)
		g.see(sanity.Input{Reading: &signals.Reading{Kind: signals.Average, Unit: signals.GramsPerKWh, Region: "gb",
			Value: v, PointTime: start, Period: 30 * time.Minute}}, day.Add(time.Duration(now)*30*time.Minute))
	}
	v := func(x float64) *float64 { return &x }
	half(0, v(80), 0)
	half(1, nil, 1)
	half(2, nil, 2)
	if g.admitted || g.decision.Window != v1alpha1.WindowClosed {
		t.Errorf("within grace: %+v", g.decision)
	}
	half(3, nil, 3)
	if g.decision.Window != v1alpha1.WindowUnknown {
		t.Errorf("after the grace: %+v", g.decision)
	}
	half(4, v(90), 4)
	if g.admitted {
		t.Errorf("one point after a gap opened it: %+v", g.decision)
	}
	half(1, v(70), 4) // a late actual
	if g.admitted || g.verdict.Class != sanity.Superseded {
		t.Errorf("a late actual opened it: %+v %+v", g.verdict, g.decision)
	}
	half(5, v(85), 5)
	if !g.admitted {
		t.Errorf("two points did not open it: %+v", g.decision)
	}
	half(5, v(140), 5) // the actual overwrites the estimate
	if !g.admitted || g.state.LeaveCount != 1 || g.state.EnterCount != 0 {
		t.Errorf("revised: %+v, %+v", g.decision, g.state)
	}
}

// All regions fall to 0 at once: an outage. It opens nothing, and what is open
// is left when the signal has been unknown for too long.
func TestAnOutageOfZerosOpensNothingAndDrains(t *testing.T) {
	spec := v1alpha1.EnergySpec{EnterConfirmations: 1, LeaveConfirmations: 1, MaxStaleSeconds: 1800}
	for name, before := range map[string]float64{"from dirty": 400, "from clean": 60} {
		a := &grid{t: t, policy: policy(t, spec, 100, 100)}
		for i := range 200 {
			now := day.Add(time.Duration(i) * 5 * time.Minute)
			v, peer := before, 500.0
			if i >= 20 {
				v, peer = 0, 0
			}
			r := signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "a", Value: &v, PointTime: now, Period: 5 * time.Minute}
			p := r
			p.Region, p.Value = "b", &peer
			a.see(sanity.Input{Reading: &r, Peers: []signals.Reading{p}}, now)
			switch {
			case i >= 20 && a.verdict.Reason != v1alpha1.ReasonSignalOutage:
				t.Fatalf("%s: point %d: %+v", name, i, a.verdict)
			case before > 100 && a.admitted:
				t.Fatalf("%s: point %d opened: %+v", name, i, a.decision)
			case before < 100 && i >= 20+3+6 && a.admitted:
				t.Fatalf("%s: point %d still open: %+v", name, i, a.decision)
			}
		}
		if a.decision.Reason != v1alpha1.ReasonSignalOutage {
			t.Errorf("%s: %+v", name, a.decision)
		}
	}
}

// A single region that falls from 400 to 0 and stays there opens nothing either;
// one that came down before does.
func TestZerosFromOnePointToTheNextOpenNothing(t *testing.T) {
	run := func(values ...float64) *grid {
		g := &grid{t: t, policy: policy(t, v1alpha1.EnergySpec{EnterConfirmations: 2}, 100, 100)}
		for i, v := range values {
			now := day.Add(time.Duration(i) * 5 * time.Minute)
			g.see(sanity.Input{Reading: &signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "a",
				Value: &v, PointTime: now, Period: 5 * time.Minute}}, now)
		}
		return g
	}
	if g := run(400, 0, 0, 0, 0, 0, 0, 0); g.admitted || g.decision.Reason != v1alpha1.ReasonSignalSuspectZero {
		t.Errorf("fell: %+v", g.decision)
	}
	if g := run(400, 50, 0, 0); !g.admitted {
		t.Errorf("came down: %+v", g.decision)
	}
}

// revisions is a sequence of issues and the truth.
type revisions struct {
	from   []time.Time
	issued []time.Time
	issues [][]*float64
	actual []*float64
}

func (r revisions) forecast(i int) *signals.Forecast {
	f := &signals.Forecast{Kind: signals.Average, Unit: signals.GramsPerKWh, Region: "gb", GeneratedAt: r.issued[i]}
	for row, v := range r.issues[i] {
		if v != nil {
			f.Points = append(f.Points, signals.ForecastPoint{Start: r.from[row], Duration: 30 * time.Minute, Value: v})
		}
	}
	return f
}

// replay decides at every half-hour with the forecasts as they had been issued,
// the older ones again and again, and returns the first time it was in.
func (r revisions) replay(t *testing.T, p window.Policy, from time.Time) time.Time {
	g := &grid{t: t, policy: p}
	for row, at := range r.from {
		if at.Before(from) {
			continue
		}
		for i := len(r.issued) - 1; i >= 0; i-- { // the newest first, then backwards
			in := sanity.Input{Forecast: r.forecast(i)}
			if r.issued[i].After(at) {
				in.Forecast = nil
			}
			in.Reading = &signals.Reading{Kind: signals.Average, Unit: signals.GramsPerKWh, Region: "gb",
				Value: r.actual[row], PointTime: at, Period: 30 * time.Minute}
			g.see(in, at)
			if g.admitted {
				return at
			}
		}
	}
	return time.Time{}
}

// A forecast says 20:30, the truth is 22:30: nothing starts two hours early.
func TestAForecastTwoHoursEarlyStartsNothingEarly(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	evening := time.Date(2026, 3, 15, 16, 0, 0, 0, time.UTC)
	twin := revisions{issued: []time.Time{evening.Add(-30 * time.Hour), evening.Add(-24 * time.Hour), evening.Add(-10 * time.Hour)}}
	twin.issues = make([][]*float64, 3)
	for i := range 24 { // until 4 in the morning
		at := evening.Add(time.Duration(i) * 30 * time.Minute)
		twin.from = append(twin.from, at)
		for issue, clean := range []int{13, 9, 12} {
			value := 170.0
			if i >= clean {
				value = 80
			}
			twin.issues[issue] = append(twin.issues[issue], v(value))
		}
		truth := 175.0
		if i >= 13 {
			truth = 85
		}
		twin.actual = append(twin.actual, v(truth))
	}
	p := policy(t, v1alpha1.EnergySpec{EnterConfirmations: 1}, 100, 100)
	p.MinWindow, p.LeaveLead, p.MaxForecastAge = 15*time.Minute, time.Minute, 48*time.Hour
	if got, want := twin.replay(t, p, evening), evening.Add(6*time.Hour+30*time.Minute); !got.Equal(want) {
		t.Errorf("in at %s, the window began at %s", got, want)
	}
}

func TestARealForecastTwoHoursEarlyStartsNothingEarly(t *testing.T) {
	path := filepath.Join("..", "..", "..", "shared", "traces", "gb_neso_revisions_2023-03-14.csv")
	f, err := os.Open(path)
	if err != nil {
		t.Skipf("no traces beside the checkout: %v", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	r := revisions{issues: make([][]*float64, 3)}
	for _, name := range rows[0][1:4] {
		issued, err := time.Parse("fc_2006-01-02T1504Z", name)
		if err != nil {
			t.Fatal(err)
		}
		r.issued = append(r.issued, issued)
	}
	number := func(cell string) *float64 {
		if cell == "" {
			return nil
		}
		v, err := strconv.ParseFloat(cell, 64)
		if err != nil {
			t.Fatal(err)
		}
		return &v
	}
	for _, row := range rows[1:] {
		at, err := time.Parse("2006-01-02T15:04Z", row[0])
		if err != nil {
			t.Fatal(err)
		}
		r.from = append(r.from, at)
		for i := range r.issues {
			r.issues[i] = append(r.issues[i], number(row[1+i]))
		}
		r.actual = append(r.actual, number(row[4]))
	}
	p := policy(t, v1alpha1.EnergySpec{EnterConfirmations: 1}, 100, 100)
	p.MinWindow, p.LeaveLead, p.MaxForecastAge = 15*time.Minute, time.Minute, 48*time.Hour
	from := time.Date(2023, 3, 15, 16, 0, 0, 0, time.UTC)
	if got, want := r.replay(t, p, from), time.Date(2023, 3, 15, 22, 30, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("in at %s, the window began at %s", got, want)
	}
}
