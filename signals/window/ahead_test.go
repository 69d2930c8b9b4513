package window

import (
	"strings"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
)

// ranked is a percentile policy over two hours that has seen 0 to 230 g, and the
// time and number of its last point.
func ranked(t *testing.T) (Policy, State, int) {
	t.Helper()
	p := Policy{Mode: Percentile, Enter: 30, Leave: 50, EnterConfirmations: 1, LeaveConfirmations: 1, MaxStale: time.Hour,
		OnStale: v1alpha1.StaleHold, Trailing: 2 * time.Hour, MinWindow: 15 * time.Minute, LeaveLead: time.Minute, TrustZero: true}
	var s State
	n := 0
	for ; n < 24; n++ {
		v := float64((n * 7 % 24) * 10)
		s, _ = Decide(p, s, reading(t0.Add(time.Duration(n)*period), &v), t0.Add(time.Duration(n)*period))
	}
	return p, s, n
}

// A forecast of intensities is ranked like the readings: half of what was seen
// is below 115 g.
func TestAForecastIsRankedInPercentileMode(t *testing.T) {
	for _, c := range []struct {
		later  float64
		reason v1alpha1.Reason
	}{{100, v1alpha1.ReasonEnergyFavourable}, {130, v1alpha1.ReasonWindowTooShort}} {
		p, s, n := ranked(t)
		s.Open, s.EnterCount = false, 0
		now := t0.Add(time.Duration(n) * period)
		clean := 20.0
		f := &signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, GeneratedAt: now}
		for i := range 6 {
			v := clean
			if i >= 2 {
				v = c.later
			}
			f.Points = append(f.Points, signals.ForecastPoint{Start: now.Add(time.Duration(i) * period), Duration: period, Value: &v})
		}
		_, d := DecideWith(p, s, Inputs{Reading: reading(now, &clean), Forecast: f}, now)
		if d.Reason != c.reason {
			t.Errorf("%v g later: %+v", c.later, d)
		}
	}
}

// Values of two models are not comparable: the trailing window begins anew.
func TestAnotherModelBeginsAnew(t *testing.T) {
	p, s, n := ranked(t)
	now := t0.Add(time.Duration(n) * period)
	v := 20.0
	r := reading(now, &v)
	r.Model = "2026-02-01"
	s, d := Decide(p, s, r, now)
	if len(s.Trailing) != 1 || d.Window != v1alpha1.WindowUnknown || d.Reason != v1alpha1.ReasonSignalMissing {
		t.Errorf("%d points, %+v", len(s.Trailing), d)
	}
}

func TestForecastsThatAreRefused(t *testing.T) {
	p := Policy{Mode: Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1, MinWindow: time.Hour}
	v := 60.0
	good := func() *signals.Forecast {
		return &signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, GeneratedAt: t0,
			Points: []signals.ForecastPoint{{Start: t0, Duration: time.Hour, Value: &v}}}
	}
	for name, change := range map[string]func(*Inputs){
		"no issue":   func(in *Inputs) { in.Forecast.GeneratedAt = time.Time{} },
		"percentile": func(in *Inputs) { in.Forecast.Kind, in.Forecast.Unit = signals.Percentile, signals.PercentileOf },
		"wrong unit": func(in *Inputs) { in.Forecast.Unit = signals.Percent },
		"ended":      func(in *Inputs) { in.Forecast.Points[0].Start = t0.Add(-2 * time.Hour) },
		"no values":  func(in *Inputs) { in.Forecast.Points[0].Value = nil },
		"suspect": func(in *Inputs) {
			in.ForecastVerdict = &sanity.Verdict{Class: sanity.Suspect, Reason: v1alpha1.ReasonSignalFlatZero, Message: "flat"}
		},
	} {
		in := Inputs{Reading: reading(t0, &v), Forecast: good()}
		change(&in)
		s, d := DecideWith(p, State{}, in, t0)
		if s.Forecast != nil || !d.Admit || !strings.Contains(d.Message, "newest forecast refused: ") {
			t.Errorf("%s: %+v %+v", name, s.Forecast, d)
		}
	}
	in := Inputs{Reading: reading(t0, &v), Forecast: good()}
	if s, d := DecideWith(p, State{}, in, t0); s.Forecast == nil || strings.Contains(d.Message, "refused") {
		t.Errorf("%+v", d)
	}
}

func TestAForecastIsBounded(t *testing.T) {
	p := Policy{Mode: Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1}
	v := 60.0
	f := &signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, GeneratedAt: t0}
	for i := range 5000 {
		f.Points = append(f.Points, signals.ForecastPoint{Start: t0.Add(time.Duration(i) * time.Minute), Duration: time.Minute, Value: &v})
	}
	if s, _ := DecideWith(p, State{}, Inputs{Forecast: f}, t0); len(s.Forecast.Points) != maxOutlook {
		t.Errorf("%d points are kept", len(s.Forecast.Points))
	}
}

func TestAnOverrideNeedsAnExpiry(t *testing.T) {
	for _, c := range []struct {
		until time.Time
		ok    bool
	}{{time.Time{}, false}, {t0.Add(MaxOverride + 1), false}, {t0.Add(time.Hour), true}} {
		if err := (Override{Admit: true, Until: c.until}).Validate(t0); (err == nil) != c.ok {
			t.Errorf("until %s: %v", c.until, err)
		}
	}
	v := 300.0
	_, d := DecideWith(Policy{Mode: Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1}, State{},
		Inputs{Reading: reading(t0, &v), Override: &Override{Admit: true, Until: t0.Add(2 * MaxOverride)}}, t0)
	if d.Admit {
		t.Errorf("%+v", d)
	}
}

// A held point opens and closes nothing alone, a suspect one lets the signal go
// stale and opens nothing that was counted before.
func TestVerdictsInDecisions(t *testing.T) {
	p := Policy{Mode: Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1, MinimumOff: 20 * time.Minute,
		MaxStale: 30 * time.Minute, OnStale: v1alpha1.StaleHold}
	verdict := func(c sanity.Class, r v1alpha1.Reason) *sanity.Verdict {
		return &sanity.Verdict{Class: c, Reason: r, Message: "for the test"}
	}
	jump := verdict(sanity.Held, v1alpha1.ReasonSignalJump)
	apart := verdict(sanity.Suspect, v1alpha1.ReasonSignalDisagrees)
	var s State
	for i, c := range []struct {
		value   float64
		verdict *sanity.Verdict
		window  v1alpha1.WindowState
		reason  v1alpha1.Reason
	}{
		{50, jump, v1alpha1.WindowClosed, v1alpha1.ReasonSignalJump},
		{50, verdict(sanity.Good, v1alpha1.ReasonSignalGood), v1alpha1.WindowOpen, v1alpha1.ReasonEnergyFavourable},
		{5000, jump, v1alpha1.WindowOpen, v1alpha1.ReasonSignalJump},
		{60, verdict(sanity.Good, v1alpha1.ReasonSignalGood), v1alpha1.WindowOpen, v1alpha1.ReasonEnergyFavourable},
		{300, verdict(sanity.Good, v1alpha1.ReasonSignalGood), v1alpha1.WindowClosed, v1alpha1.ReasonWaitingForEnergy}, // 20
		{60, verdict(sanity.Good, v1alpha1.ReasonSignalGood), v1alpha1.WindowClosed, v1alpha1.ReasonMinimumOff},
		{60, verdict(sanity.Good, v1alpha1.ReasonSignalGood), v1alpha1.WindowClosed, v1alpha1.ReasonMinimumOff}, // 30
		{60, apart, v1alpha1.WindowClosed, v1alpha1.ReasonSignalDisagrees},                                      // 35
		{60, apart, v1alpha1.WindowClosed, v1alpha1.ReasonSignalDisagrees},                                      // the minimum is over
		{60, apart, v1alpha1.WindowUnknown, v1alpha1.ReasonSignalDisagrees},                                     // stale
		{0, verdict(sanity.Good, v1alpha1.ReasonSignalGood), v1alpha1.WindowOpen, v1alpha1.ReasonEnergyFavourable},
		{0, verdict(sanity.Missing, v1alpha1.ReasonSignalMissing), v1alpha1.WindowOpen, v1alpha1.ReasonEnergyFavourable},
	} {
		now := t0.Add(time.Duration(i) * period)
		var d Decision
		s, d = DecideWith(p, restart(t, s), Inputs{Reading: reading(now, &c.value), Verdict: c.verdict}, now)
		if d.Window != c.window || d.Reason != c.reason {
			t.Fatalf("point %d: %+v, want %s %s", i, d, c.window, c.reason)
		}
	}
}
