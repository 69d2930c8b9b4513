package sanity

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

var t0 = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

const period = 5 * time.Minute

func at(n int) time.Time { return t0.Add(time.Duration(n) * period) }

func reading(n int, v float64) *signals.Reading {
	return &signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "ca", Source: "one",
		Value: &v, PointTime: at(n), Period: period}
}

func other(kind signals.Kind, unit signals.Unit, n int, v float64) *signals.Reading {
	r := reading(n, v)
	r.Kind, r.Unit, r.Source = kind, unit, "two"
	return r
}

func flat(v float64) *signals.Forecast {
	f := &signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "ca", GeneratedAt: t0}
	for i := range 288 {
		f.Points = append(f.Points, signals.ForecastPoint{Start: at(i), Duration: period, Value: &v})
	}
	return f
}

// seen is the state after values at the points from 0; a nil is a missing one.
func seen(t *testing.T, p Policy, values ...float64) State {
	t.Helper()
	var s State
	for i, v := range values {
		s, _ = Check(p, s, Input{Reading: reading(i, v)}, at(i))
	}
	return s
}

func TestVerdicts(t *testing.T) {
	peers := func(values ...float64) (out []signals.Reading) {
		for _, v := range values {
			r := reading(1, v)
			r.Region = "elsewhere"
			out = append(out, *r)
		}
		return out
	}
	null := reading(1, 0)
	null.Value = nil
	marked := reading(1, 50)
	marked.Quality = signals.Suspect
	wrong := reading(1, 50)
	wrong.Unit = signals.Percent
	late := reading(-10, 50)
	pounds := other(signals.Marginal, signals.PoundsPerMWh, 1, 100)
	price, share := signals.EurosPerMWh, signals.Percent
	for _, c := range []struct {
		name   string
		policy Policy
		before []float64
		in     Input
		class  Class
		reason v1alpha1.Reason
	}{
		{"nothing", Policy{}, nil, Input{}, Missing, v1alpha1.ReasonSignalMissing},
		{"null is not zero", Policy{TrustZero: true}, nil, Input{Reading: null}, Missing, v1alpha1.ReasonSignalMissing},
		{"an ordinary value", Policy{}, nil, Input{Reading: reading(1, 50)}, Good, v1alpha1.ReasonSignalGood},
		{"marked by its source", Policy{}, nil, Input{Reading: marked}, Suspect, v1alpha1.ReasonSignalSuspect},
		{"a unit of another kind", Policy{}, nil, Input{Reading: wrong}, Suspect, v1alpha1.ReasonSignalSuspect},
		{"from the future", Policy{}, nil, Input{Reading: reading(9, 50)}, Suspect, v1alpha1.ReasonSignalSuspect},
		{"stale", Policy{}, nil, Input{Reading: late}, Stale, v1alpha1.ReasonSignalStale},
		{"older than known", Policy{}, []float64{50, 50}, Input{Reading: reading(0, 60)}, Superseded, v1alpha1.ReasonSuperseded},

		{"a first zero", Policy{}, []float64{300}, Input{Reading: reading(1, 0)}, Held, v1alpha1.ReasonSignalSuspectZero},
		{"a zero before anything else", Policy{}, nil, Input{Reading: reading(1, 0)}, Held, v1alpha1.ReasonSignalSuspectZero},
		{"a trusted zero", Policy{TrustZero: true}, []float64{300}, Input{Reading: reading(1, 0)}, Good, v1alpha1.ReasonSignalGood},
		{"zeros that came from 300", Policy{}, []float64{300, 0}, Input{Reading: reading(2, 0)}, Suspect, v1alpha1.ReasonSignalSuspectZero},
		{"zeros that came from 50", Policy{}, []float64{300, 50, 0}, Input{Reading: reading(3, 0)}, Good, v1alpha1.ReasonSignalGood},
		{"zeros that came from 300 beside a region that lives", Policy{}, []float64{300, 0}, Input{Reading: reading(2, 0), Peers: peers(0, 400)}, Good, v1alpha1.ReasonSignalGood},
		{"zeros that came from 300 beside a stale region", Policy{}, []float64{300, 0}, Input{Reading: reading(2, 0), Peers: []signals.Reading{*reading(-20, 400)}}, Suspect, v1alpha1.ReasonSignalSuspectZero},
		{"a zero after another", Policy{}, []float64{300, 0, 300}, Input{Reading: reading(3, 0)}, Good, v1alpha1.ReasonSignalGood},
		{"a zero that a second source has", Policy{}, []float64{300}, Input{Reading: reading(1, 0), Second: other(signals.Marginal, signals.GramsPerKWh, 1, 3)},
			Good, v1alpha1.ReasonSignalGood},
		{"a zero that a second source has not", Policy{TrustZero: true}, []float64{300}, Input{Reading: reading(1, 0), Second: other(signals.Marginal, signals.GramsPerKWh, 1, 300)},
			Suspect, v1alpha1.ReasonSignalDisagrees},
		{"a zero at a negative price", Policy{}, []float64{300}, Input{Reading: reading(1, 0), Price: other(signals.Price, price, 1, -2)}, Good, v1alpha1.ReasonSignalGood},
		{"a zero at a price of 0", Policy{}, []float64{300}, Input{Reading: reading(1, 0), Price: other(signals.Price, price, 1, 0)}, Good, v1alpha1.ReasonSignalGood},
		{"a zero at a price", Policy{}, []float64{300}, Input{Reading: reading(1, 0), Price: other(signals.Price, price, 1, 20)}, Held, v1alpha1.ReasonSignalSuspectZero},
		{"a zero at a stale price", Policy{}, []float64{300}, Input{Reading: reading(1, 0), Price: other(signals.Price, price, -9, -2)}, Held, v1alpha1.ReasonSignalSuspectZero},
		{"a zero with all renewable", Policy{}, []float64{300}, Input{Reading: reading(1, 0), Share: other(signals.RenewableShare, share, 1, 104)}, Good, v1alpha1.ReasonSignalGood},
		{"all regions at zero", Policy{TrustZero: true}, []float64{50, 0}, Input{Reading: reading(2, 0), Peers: peers(0, 0)}, Suspect, v1alpha1.ReasonSignalOutage},
		{"two of three regions at zero", Policy{}, []float64{50, 0}, Input{Reading: reading(2, 0), Peers: peers(0, 200)}, Good, v1alpha1.ReasonSignalGood},
		{"all at zero at a price below", Policy{}, []float64{50, 0}, Input{Reading: reading(2, 0), Peers: peers(0), Price: other(signals.Price, price, 2, -1)}, Good, v1alpha1.ReasonSignalGood},
		{"a zero with a flat forecast", Policy{}, []float64{50}, Input{Reading: reading(1, 0), Forecast: flat(0)}, Suspect, v1alpha1.ReasonSignalFlatZero},
		{"zeros with a flat forecast", Policy{}, []float64{50, 0}, Input{Reading: reading(2, 0), Forecast: flat(0)}, Good, v1alpha1.ReasonSignalGood},
		{"a percentile of 0", Policy{}, nil, Input{Reading: other(signals.Percentile, signals.PercentileOf, 1, 0)}, Good, v1alpha1.ReasonSignalGood},
		{"a price of 0", Policy{}, nil, Input{Reading: other(signals.Price, price, 1, 0)}, Good, v1alpha1.ReasonSignalGood},

		{"sources within the default tolerance", Policy{}, nil, Input{Reading: reading(1, 400), Second: other(signals.Marginal, signals.GramsPerKWh, 1, 310)}, Good, v1alpha1.ReasonSignalGood},
		{"sources apart", Policy{}, nil, Input{Reading: reading(1, 60), Second: other(signals.Marginal, signals.GramsPerKWh, 1, 310)}, Suspect, v1alpha1.ReasonSignalDisagrees},
		{"sources apart by a stated tolerance", Policy{Tolerance: Tolerance{Absolute: 10}}, nil, Input{Reading: reading(1, 60), Second: other(signals.Marginal, signals.GramsPerKWh, 1, 71)},
			Suspect, v1alpha1.ReasonSignalDisagrees},
		{"sources at a stated tolerance", Policy{Tolerance: Tolerance{Absolute: 11}}, nil, Input{Reading: reading(1, 60), Second: other(signals.Marginal, signals.GramsPerKWh, 1, 71)},
			Good, v1alpha1.ReasonSignalGood},
		{"pounds beside grams", Policy{}, nil, Input{Reading: reading(1, 45.36), Second: pounds}, Good, v1alpha1.ReasonSignalGood},
		{"an average is no second marginal", Policy{}, nil, Input{Reading: reading(1, 60), Second: other(signals.Average, signals.GramsPerKWh, 1, 310)}, Good, v1alpha1.ReasonSignalGood},
		{"a stale second source is none", Policy{}, nil, Input{Reading: reading(1, 60), Second: other(signals.Marginal, signals.GramsPerKWh, -9, 310)}, Good, v1alpha1.ReasonSignalGood},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := at(1)
			if len(c.before) > 1 {
				now = at(len(c.before))
			}
			_, v := Check(c.policy, seen(t, c.policy, c.before...), c.in, now)
			if v.Class != c.class || v.Reason != c.reason || v.Message == "" {
				t.Errorf("%s %s (%s), want %s %s", v.Class, v.Reason, v.Message, c.class, c.reason)
			}
			if v.Class == Missing && v.Reading != nil && v.Reading.Value != nil {
				t.Error("a missing value became one")
			}
		})
	}
}

// Prices have their own floor; a share and a percentile do not jump by it.
func TestJumpsOfOtherKinds(t *testing.T) {
	for _, c := range []struct {
		kind         signals.Kind
		unit         signals.Unit
		level, value float64
		class        Class
	}{
		{signals.Price, signals.EurosPerMWh, 80, -400, Held}, {signals.Price, signals.EurosPerMWh, 80, 125, Good},
		{signals.RenewableShare, signals.Percent, 30, 90, Held}, {signals.RenewableShare, signals.Percent, 30, 45, Good},
		{signals.Percentile, signals.PercentileOf, 90, 1, Good},
	} {
		var s State
		for n := range 30 * 12 {
			s, _ = Check(Policy{}, s, Input{Reading: other(c.kind, c.unit, n, c.level+float64(n%5))}, at(n))
		}
		r := other(c.kind, c.unit, 360, c.value)
		r.Source = ""
		_, v := Check(Policy{}, s, Input{Reading: r}, at(360))
		if v.Class != c.class || v.Usable() != (c.class == Good) {
			t.Errorf("%s from %v to %v: %+v", c.kind, c.level, c.value, v)
		}
	}
}

// The trailing distribution of a dirty grid: 24 samples of an hour each.
func dirtyDay(t *testing.T, p Policy) (State, int) {
	t.Helper()
	var s State
	n := 0
	for ; n < 26*12; n++ {
		s, _ = Check(p, s, Input{Reading: reading(n, 500+float64(n*37%80))}, at(n))
	}
	return s, n
}

func TestAJumpWaitsForOneMorePoint(t *testing.T) {
	s, n := dirtyDay(t, Policy{})
	s1, v := Check(Policy{}, s, Input{Reading: reading(n, 5.1)}, at(n))
	if v.Class != Held || v.Reason != v1alpha1.ReasonSignalJump {
		t.Fatalf("a false point: %+v", v)
	}
	for _, c := range []struct {
		name  string
		value float64
		class Class
	}{{"back", 530, Good}, {"confirmed", 20, Good}, {"elsewhere", 2000, Held}} {
		if _, v := Check(Policy{}, s1, Input{Reading: reading(n+1, c.value)}, at(n+1)); v.Class != c.class {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	// A revision of the point is judged in its place.
	s2, v := Check(Policy{}, s1, Input{Reading: reading(n, 540)}, at(n))
	if v.Class != Good {
		t.Errorf("revised: %+v", v)
	}
	if _, v := Check(Policy{}, s2, Input{Reading: reading(n, 5.1)}, at(n)); v.Class != Held {
		t.Errorf("revised back: %+v", v)
	}
	for name, in := range map[string]Input{
		"second source": {Reading: reading(n, 5.1), Second: other(signals.Marginal, signals.GramsPerKWh, n, 12)},
		"forecast":      {Reading: reading(n, 5.1), Forecast: shifted(flat(20), n)},
	} {
		if _, v := Check(Policy{}, s, in, at(n)); v.Class != Good {
			t.Errorf("%s does not support it: %+v", name, v)
		}
	}
	if _, v := Check(Policy{JumpMADs: -1}, s, Input{Reading: reading(n, 5.1)}, at(n)); v.Class != Good {
		t.Errorf("switched off: %+v", v)
	}
	// A value that was seen within the trailing span is no jump.
	s3, _ := Check(Policy{}, s1, Input{Reading: reading(n+1, 20)}, at(n+1))
	for i := range 24 {
		s3, _ = Check(Policy{}, s3, Input{Reading: reading(n+2+i, 530)}, at(n+2+i))
	}
	if _, v := Check(Policy{}, s3, Input{Reading: reading(n+30, 15)}, at(n+30)); v.Class != Good {
		t.Errorf("seen before: %+v", v)
	}
}

func shifted(f *signals.Forecast, n int) *signals.Forecast {
	for i := range f.Points {
		f.Points[i].Start = f.Points[i].Start.Add(time.Duration(n) * period)
	}
	return f
}

// However long an outage of zeros is, and whatever gaps it has, it never becomes
// credible by lasting.
func TestAnOutageDoesNotConfirmItself(t *testing.T) {
	var s State
	s, _ = Check(Policy{}, s, Input{Reading: reading(0, 300)}, at(0))
	for n := 1; n < 3000; n++ {
		if n%50 > 40 {
			continue // a gap of nine points
		}
		var v Verdict
		s, v = Check(Policy{}, s, Input{Reading: reading(n, 0)}, at(n))
		if v.Class == Good || n > 1 && v.Class != Suspect {
			t.Fatalf("point %d: %+v", n, v)
		}
	}
}

func TestForecastVerdicts(t *testing.T) {
	empty := flat(1)
	for i := range empty.Points {
		empty.Points[i].Value = nil
	}
	for _, c := range []struct {
		name   string
		policy Policy
		before []float64
		f      *signals.Forecast
		price  *signals.Reading
		now    time.Time
		class  Class
	}{
		{"none", Policy{}, nil, nil, nil, t0, Missing},
		{"without values", Policy{}, nil, empty, nil, t0, Missing},
		{"ordinary", Policy{}, nil, flat(80), nil, t0, Good},
		{"ended", Policy{}, nil, flat(80), nil, t0.Add(24 * time.Hour), Stale},
		{"flat zero", Policy{}, []float64{50}, flat(0), nil, t0, Suspect},
		{"flat zero, trusted", Policy{TrustZero: true}, nil, flat(0), nil, t0, Good},
		{"flat zero where zeros were seen", Policy{}, []float64{50, 0, 0}, flat(0), nil, at(3), Good},
		{"flat zero at a negative price", Policy{}, nil, flat(0), other(signals.Price, signals.EurosPerMWh, 0, -3), t0, Good},
	} {
		v := CheckForecast(c.policy, seen(t, c.policy, c.before...), c.f, c.price, c.now)
		if v.Class != c.class || v.Reason == "" || v.Message == "" {
			t.Errorf("%s: %+v, want %s", c.name, v, c.class)
		}
	}
}

// drawInput is a signal with gaps, zeros, jumps, revisions and evidence.
func drawInput(t *rapid.T, n int) Input {
	in := Input{}
	if rapid.IntRange(0, 9).Draw(t, "none") > 0 {
		in.Reading = reading(n-rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "late"),
			float64(rapid.SampledFrom([]int{0, 0, 20, 60, 400, 420, 440, 5000}).Draw(t, "value")))
	}
	if rapid.IntRange(0, 3).Draw(t, "second") == 0 {
		in.Second = other(signals.Marginal, signals.GramsPerKWh, n, float64(rapid.SampledFrom([]int{0, 50, 400}).Draw(t, "other")))
	}
	if rapid.IntRange(0, 3).Draw(t, "forecast") == 0 {
		in.Forecast = flat(float64(rapid.SampledFrom([]int{0, 50}).Draw(t, "expected")))
	}
	return in
}

func restart(t interface{ Fatal(...any) }, s State) State {
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back State
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	return back
}

func TestARestartContinuesIdenticallyAndNothingGivenChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{MinHistory: rapid.IntRange(1, 10).Draw(t, "history"), Trailing: 24 * time.Hour, TrustZero: rapid.IntRange(0, 5).Draw(t, "trust") == 0}
		var straight, restarted State
		n := 0
		for range rapid.IntRange(1, 60).Draw(t, "points") {
			n += rapid.SampledFrom([]int{0, 1, 1, 1, 2, 12}).Draw(t, "step")
			in := drawInput(t, n)
			before, err := json.Marshal(straight)
			if err != nil {
				t.Fatal(err)
			}
			was := straight
			var a, b Verdict
			straight, a = Check(p, straight, in, at(n))
			restarted, b = Check(p, restart(t, restarted), in, at(n))
			if !reflect.DeepEqual(a, b) || !reflect.DeepEqual(restart(t, straight), restart(t, restarted)) {
				t.Fatalf("point %d: %+v %+v, after a restart %+v %+v", n, a, straight, b, restarted)
			}
			if after, _ := json.Marshal(was); string(after) != string(before) {
				t.Fatalf("the state given became %s, was %s", after, before)
			}
			// Judged again, it is the same.
			again, c := Check(p, straight, in, at(n))
			if a.Class != Superseded && (!reflect.DeepEqual(a, c) || !reflect.DeepEqual(again, straight)) {
				t.Fatalf("point %d again: %+v, was %+v", n, c, a)
			}
			if a.Class != Missing && a.Reason == "" || a.Message == "" {
				t.Fatalf("unexplained: %+v", a)
			}
		}
	})
}

func TestAStateIsBounded(t *testing.T) {
	var s State
	for n := range 20_000 {
		s, _ = Check(Policy{}, s, Input{Reading: reading(n, float64(n%3)*200)}, at(n))
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Samples) > MaxSamples || len(s.Zeros) > 2 || len(b) > 8<<10 {
		t.Errorf("%d samples, %d zeros, %d bytes", len(s.Samples), len(s.Zeros), len(b))
	}
}

func TestAnotherSignalStartsAnew(t *testing.T) {
	s := seen(t, Policy{}, 50, 0, 0)
	r := reading(4, 0)
	r.Model = "2026-02-01"
	if _, v := Check(Policy{}, s, Input{Reading: r}, at(4)); v.Class != Held {
		t.Errorf("another model's zero: %+v", v)
	}
}

func TestPoliciesWithoutMeaningAreRefused(t *testing.T) {
	if err := (Policy{}).Validate(); err != nil {
		t.Error(err)
	}
	for _, p := range []Policy{{JumpFloor: -1}, {MinHistory: -1}, {Trailing: -1}, {Tolerance: Tolerance{Relative: -0.1}}} {
		if p.Validate() == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
}

// A state comes from a file: whatever it says, judging goes on.
func FuzzStateJSON(f *testing.F) {
	var s State
	for i := range 40 {
		s, _ = Check(Policy{}, s, Input{Reading: reading(12*i, float64(i%4)*100)}, at(12*i))
	}
	b, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, 50.0)
	f.Add([]byte(`{"series":{"kind":"marginal","unit":"gCO2/kWh","region":"ca"},"last":{"periodNanoseconds":-5},"samples":[[9,1],[1,2]]}`), 0.0)
	f.Fuzz(func(t *testing.T, b []byte, v float64) {
		var s State
		if json.Unmarshal(b, &s) != nil {
			return
		}
		for i := range 5 {
			var verdict Verdict
			s, verdict = Check(Policy{MinHistory: 1}, s, Input{Reading: reading(i, v)}, at(i))
			if verdict.Class == "" || verdict.Reason == "" || len(s.Zeros) > 3 {
				t.Fatalf("%+v %+v", verdict, s)
			}
		}
	})
}
