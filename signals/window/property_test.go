package window

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
)

const period = 5 * time.Minute

func drawPolicy(t *rapid.T) Policy {
	p := Policy{
		Mode:               rapid.SampledFrom([]Mode{Grams, Grams, Percentile, None}).Draw(t, "mode"),
		Ignore:             rapid.IntRange(0, 9).Draw(t, "ignore") == 0,
		Enter:              float64(rapid.IntRange(20, 60).Draw(t, "enter")),
		EnterConfirmations: rapid.IntRange(1, 4).Draw(t, "in"),
		LeaveConfirmations: rapid.IntRange(1, 4).Draw(t, "out"),
		MinimumOn:          time.Duration(rapid.IntRange(0, 40).Draw(t, "on")) * time.Minute,
		MinimumOff:         time.Duration(rapid.IntRange(0, 40).Draw(t, "off")) * time.Minute,
		MaxStale:           time.Duration(rapid.IntRange(1, 60).Draw(t, "maxStale")) * time.Minute,
		OnStale: rapid.SampledFrom([]v1alpha1.StalePolicy{
			v1alpha1.StaleHold, v1alpha1.StaleDrain, v1alpha1.StaleAdmit}).Draw(t, "onStale"),
		Trailing: 2 * time.Hour,
	}
	p.Leave = p.Enter + float64(rapid.IntRange(0, 30).Draw(t, "band"))
	return p
}

// event is one call of Decide.
type event struct {
	now     time.Time
	reading *signals.Reading
}

// drawEvents is a signal with gaps, empty, repeated, late and backward points.
func drawEvents(t *rapid.T) []event {
	var events []event
	now := t0
	for range rapid.IntRange(1, 60).Draw(t, "events") {
		now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "pause")) * time.Second)
		e := event{now: now}
		if rapid.IntRange(0, 5).Draw(t, "kind") > 0 {
			point := now.Truncate(period).Add(-period * time.Duration(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 5}).Draw(t, "late")))
			e.reading = reading(point, drawValue(t))
		}
		events = append(events, e)
	}
	return events
}

func drawValue(t *rapid.T) *float64 {
	if rapid.IntRange(0, 9).Draw(t, "null") == 0 {
		return nil
	}
	v := float64(rapid.SampledFrom([]int{0, 10, 30, 40, 50, 60, 70, 90, 300}).Draw(t, "value"))
	return &v
}

func reading(point time.Time, v *float64) *signals.Reading {
	return &signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "ca",
		Value: v, PointTime: point, Period: period}
}

func encoded(t interface{ Fatal(...any) }, s State) string {
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestARestartAtAnyMomentContinuesIdentically(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		var straight, restarted State
		for _, e := range drawEvents(t) {
			var a, b Decision
			straight, a = Decide(p, straight, e.reading, e.now)
			restarted, b = Decide(p, restart(t, restarted), e.reading, e.now)
			if a != b {
				t.Fatalf("at %s: %+v, after a restart %+v", e.now, a, b)
			}
			if x, y := encoded(t, straight), encoded(t, restarted); x != y {
				t.Fatalf("at %s: state %s, after a restart %s", e.now, x, y)
			}
		}
	})
}

func TestDecideChangesNothingItWasGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		var states []State
		var before []string
		var s State
		for _, e := range drawEvents(t) {
			states, before = append(states, s), append(before, encoded(t, s))
			s, _ = Decide(p, s, e.reading, e.now)
		}
		for i, s := range states {
			if got := encoded(t, s); got != before[i] {
				t.Fatalf("state %d became %s, was %s", i, got, before[i])
			}
		}
	})
}

func TestZonesMakeNoDifference(t *testing.T) {
	kathmandu := time.FixedZone("+0545", 5*3600+45*60)
	chatham := time.FixedZone("-1200", -12*3600)
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		var utc, local State
		for _, e := range drawEvents(t) {
			var a, b Decision
			utc, a = Decide(p, utc, e.reading, e.now)
			if e.reading != nil {
				r := *e.reading
				r.PointTime = r.PointTime.In(chatham)
				e.reading = &r
			}
			local, b = Decide(p, local, e.reading, e.now.In(kathmandu))
			same := a.NextChange.Equal(b.NextChange)
			a.NextChange, b.NextChange = time.Time{}, time.Time{}
			if !same || a != b || encoded(t, utc) != encoded(t, local) {
				t.Fatalf("at %s: %+v %s, in another zone %+v %s", e.now, a, encoded(t, utc), b, encoded(t, local))
			}
		}
	})
}

func TestRulesThatHoldAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		var s State
		var before Decision
		for i, e := range drawEvents(t) {
			was := s
			var d Decision
			s, d = Decide(p, s, e.reading, e.now)
			if !d.NextChange.IsZero() && !d.NextChange.After(e.now) {
				t.Fatalf("next change %s is not after %s", d.NextChange, e.now)
			}
			if d.Message == "" || d.Reason == "" || d.Window == "" {
				t.Fatalf("unexplained: %+v", d)
			}
			if p.Ignore {
				if !d.Admit || d.Reason != v1alpha1.ReasonAdmittedByPolicy {
					t.Fatalf("ignored energy decides: %+v", d)
				}
				continue
			}
			opened := d.Admit && (i == 0 || !before.Admit)
			if opened && p.OnStale != v1alpha1.StaleAdmit {
				if d.Window != v1alpha1.WindowOpen {
					t.Fatalf("opened without knowing: %+v", d)
				}
				if s.EnterCount < p.EnterConfirmations {
					t.Fatalf("opened after %d of %d points", s.EnterCount, p.EnterConfirmations)
				}
				if !was.Changed.IsZero() && e.now.Before(was.Changed.Add(p.MinimumOff)) {
					t.Fatalf("opened within the minimum off: %s after %s", e.now, was.Changed)
				}
			}
			if i > 0 && before.Admit && !d.Admit && d.Window == v1alpha1.WindowClosed && s.Changed.Equal(e.now) &&
				e.now.Before(was.Changed.Add(p.MinimumOn)) {
				t.Fatalf("closed by value within the minimum on: %s after %s", e.now, was.Changed)
			}
			before = d
		}
	})
}

// A signal in time, polled in between as often as one likes.
func TestPollsNeitherCountNorChangeWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		p.MinimumOn, p.MinimumOff = 0, 0
		var once, often State
		var before Decision
		for i := range rapid.IntRange(1, 60).Draw(t, "points") {
			at := t0.Add(time.Duration(i) * period)
			v := float64(rapid.SampledFrom([]int{10, 30, 50, 70, 300}).Draw(t, "value"))
			r := reading(at, &v)
			var a, b Decision
			once, a = Decide(p, once, r, at)
			often, b = Decide(p, often, r, at)
			if a != b {
				t.Fatalf("point %d: %+v, polled %+v", i, a, b)
			}
			if i > 0 && a.Window != before.Window && at.Before(before.NextChange) {
				t.Fatalf("changed at %s, before the announced %s", at, before.NextChange)
			}
			before = a
			for range rapid.IntRange(0, 3).Draw(t, "polls") {
				again := at.Add(time.Duration(rapid.IntRange(0, 299).Draw(t, "later")) * time.Second)
				given := r
				if rapid.Bool().Draw(t, "nothing") {
					given = nil
				}
				often, b = Decide(p, often, given, again)
				if b.Window != a.Window || b.Admit != a.Admit {
					t.Fatalf("a poll at %s changed %+v to %+v", again, a, b)
				}
			}
		}
	})
}

// drawInputs adds to events what DecideWith knows besides: forecasts in any
// order, verdicts, blocks and overrides.
func drawInputs(t *rapid.T, p Policy, e event) Inputs {
	in := Inputs{Reading: e.reading}
	if rapid.IntRange(0, 2).Draw(t, "forecast") == 0 {
		f := &signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "ca",
			GeneratedAt: e.now.Add(-time.Duration(rapid.IntRange(-30, 500).Draw(t, "issued")) * time.Minute)}
		for i := range rapid.IntRange(0, 20).Draw(t, "points") {
			f.Points = append(f.Points, signals.ForecastPoint{Value: drawValue(t),
				Start: e.now.Truncate(period).Add(time.Duration(i-3) * period), Duration: period})
		}
		in.Forecast = f
	}
	if rapid.IntRange(0, 3).Draw(t, "judged") == 0 {
		in.Verdict = &sanity.Verdict{
			Class:  rapid.SampledFrom([]sanity.Class{sanity.Good, sanity.Held, sanity.Suspect, sanity.Missing}).Draw(t, "class"),
			Reason: v1alpha1.ReasonSignalJump, Message: "as drawn"}
	}
	if rapid.IntRange(0, 9).Draw(t, "blocked") == 0 {
		in.Blocks = []Block{{Cause: rapid.SampledFrom([]Cause{Emergency, Curtailment, Budget}).Draw(t, "cause")}}
	}
	if rapid.IntRange(0, 9).Draw(t, "overridden") == 0 {
		in.Override = &Override{Admit: rapid.Bool().Draw(t, "in"),
			Until: e.now.Add(time.Duration(rapid.IntRange(-60, 60).Draw(t, "expires")) * time.Minute)}
	}
	return in
}

func drawLookAhead(t *rapid.T, p *Policy) {
	p.MinWindow = time.Duration(rapid.IntRange(0, 30).Draw(t, "minWindow")) * time.Minute
	p.LeaveLead = time.Duration(rapid.IntRange(0, 10).Draw(t, "lead")) * time.Minute
	p.Cooldown = time.Duration(rapid.IntRange(0, 20).Draw(t, "cooldown")) * time.Minute
}

func TestARestartContinuesIdenticallyWithForecasts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		drawLookAhead(t, &p)
		var straight, restarted State
		for _, e := range drawEvents(t) {
			in := drawInputs(t, p, e)
			given, was := straight, encoded(t, straight)
			var a, b Decision
			straight, a = DecideWith(p, straight, in, e.now)
			restarted, b = DecideWith(p, restart(t, restarted), in, e.now)
			if a != b || encoded(t, straight) != encoded(t, restarted) {
				t.Fatalf("at %s: %+v %s, after a restart %+v %s", e.now, a, encoded(t, straight), b, encoded(t, restarted))
			}
			if now := encoded(t, given); now != was {
				t.Fatalf("the state given became %s, was %s", now, was)
			}
		}
	})
}

func TestRulesThatHoldAlwaysWithForecasts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		p.OnStale = v1alpha1.StaleHold
		drawLookAhead(t, &p)
		var s State
		for _, e := range drawEvents(t) {
			in := drawInputs(t, p, e)
			was := s
			var d Decision
			s, d = DecideWith(p, s, in, e.now)
			if !d.NextChange.IsZero() && !d.NextChange.After(e.now) {
				t.Fatalf("next change %s is not after %s", d.NextChange, e.now)
			}
			overridden := in.Override != nil && e.now.Before(in.Override.Until)
			switch {
			case len(in.Blocks) > 0 && d.Admit:
				t.Fatalf("in against a block: %+v", d)
			case len(in.Blocks) == 0 && overridden && d.Admit != in.Override.Admit:
				t.Fatalf("not as overridden: %+v", d)
			case d.Message == "" || d.Reason == "":
				t.Fatalf("unexplained: %+v", d)
			}
			if !s.Open || was.Open {
				continue
			}
			if s.EnterCount < p.EnterConfirmations || s.Doubt != "" || s.Last.Suspect {
				t.Fatalf("opened by %+v", s)
			}
			if !d.ForecastClose.IsZero() && (d.ForecastClose.Sub(e.now) < p.MinWindow || d.ForecastClose.Sub(e.now) <= p.LeaveLead) {
				t.Fatalf("opened for %s: %+v", d.ForecastClose.Sub(e.now), d)
			}
		}
	})
}

// Without a forecast that can be used, looking ahead changes nothing.
func TestAnUnusableForecastChangesNoDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		looking := p
		drawLookAhead(t, &looking)
		looking.Cooldown, looking.MaxForecastAge = 0, time.Minute
		var bare, s State
		for _, e := range drawEvents(t) {
			in := Inputs{Reading: e.reading, Forecast: drawInputs(t, p, e).Forecast}
			if in.Forecast != nil {
				in.Forecast.GeneratedAt = e.now.Add(-2 * time.Minute)
			}
			var a, b Decision
			bare, a = Decide(p, bare, e.reading, e.now)
			s, b = DecideWith(looking, s, in, e.now)
			if a.Window != b.Window || a.Admit != b.Admit || a.Reason != b.Reason || !a.NextChange.Equal(b.NextChange) {
				t.Fatalf("at %s: %+v, with a stale forecast %+v", e.now, a, b)
			}
		}
	})
}
