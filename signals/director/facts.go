package director

import (
	"fmt"
	"strings"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/window"
)

// Fact is a line of an explanation for people.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Facts are the explanation in words, in the order in which a person asks.
func (e Explanation) Facts() []Fact {
	var out []Fact
	add := func(name, format string, args ...any) { out = append(out, Fact{name, fmt.Sprintf(format, args...)}) }
	add("site", "%s", e.Site)
	if e.Decided.IsZero() {
		add("decision", "none yet")
	} else {
		word := "out"
		if e.Admit {
			word = "in"
		}
		add("decision", "%s: %s, at %s", word, e.Reason, stamp(e.Decided))
		add("because", "%s", e.Message)
		if !e.NextChange.IsZero() {
			add("can change", "at %s", stamp(e.NextChange))
		}
	}
	for _, r := range []struct {
		name string
		view *ReadingView
	}{{"reading", e.Signal}, {"second source", e.Second}, {"price", e.Price}, {"renewable share", e.Share}} {
		if r.view != nil {
			add(r.name, "%s", r.view)
		}
	}
	if v := e.Verdict; v != nil {
		add("verdict", "%s, %s: %s", v.Class, v.Reason, v.Message)
	}
	if e.Window.State != "" {
		text := fmt.Sprintf("%s since %s", e.Window.State, stamp(e.Window.Since))
		if e.Window.State == v1alpha1.WindowUnknown && e.Window.Open {
			text += ", held open"
		}
		if !e.Window.ForecastClose.IsZero() {
			text += ", closes by forecast at " + stamp(e.Window.ForecastClose)
		}
		add("window", "%s", text)
	}
	add("thresholds", "%s", e.Thresholds)
	if e.Forecast != nil {
		add("forecast", "%s", e.Forecast)
	}
	if o := e.Override; o != nil {
		word := "out"
		if o.Admit {
			word = "in"
		}
		add("override", "%s until %s by %s: %s", word, stamp(o.Until), o.By, o.Why)
	}
	if c := e.Curtailment; c != nil {
		add("curtailment", "%s until %s: %s", c.Cause, stamp(c.Until), c)
	}
	if b := e.Budget; b != nil {
		add("budget", "%s", b)
	}
	if p := e.Plan; p != nil {
		add("plan", "%s", p)
	}
	for _, f := range []Fact{{"source fails", e.SourceError}, {"store fails", e.StoreError}, {"membership fails", e.MembershipError}} {
		if f.Value != "" {
			out = append(out, f)
		}
	}
	return out
}

// String is value, unit, kind, source, age and quality.
func (v *ReadingView) String() string {
	if v.PointTime.IsZero() {
		return strings.TrimSuffix("none yet; "+v.Error, "; ")
	}
	value := "no value"
	if v.Value != nil {
		value = figure(*v.Value)
	}
	text := fmt.Sprintf("%s %s, %s of %s from %s, %s old, quality %s", value, v.Unit, v.Kind, v.Region, v.Source,
		seconds(v.AgeSeconds), v.Quality)
	if v.Stale {
		text += ", stale"
	}
	if v.Error != "" {
		text += "; the source fails: " + v.Error
	}
	return text
}

// String says what opens and closes and how far it is.
func (t ThresholdsView) String() string {
	text := "none"
	if t.Mode != window.None {
		unit := "gCO2/kWh"
		if t.Mode == window.Percentile {
			unit = "percentile"
		}
		text = fmt.Sprintf("opens below %s %s (%d of %d points seen), closes above %s (%d of %d)", figure(t.EnterBelow), unit,
			t.EnterCount, t.EnterConfirmations, figure(t.LeaveAbove), t.LeaveCount, t.LeaveConfirmations)
	}
	for _, s := range []struct {
		name    string
		seconds float64
	}{{"minimum on", t.MinimumOnSeconds}, {"minimum off", t.MinimumOffSeconds}, {"cooldown", t.CooldownSeconds},
		{"shortest window", t.MinWindowSeconds}, {"leaves early by", t.LeaveLeadSeconds}} {
		if s.seconds > 0 {
			text += fmt.Sprintf(", %s %s", s.name, seconds(s.seconds))
		}
	}
	if t.Ignore {
		text += "; the policy admits always"
	}
	return text
}

// String says what the forecast opens and closes.
func (v *ForecastView) String() string {
	text := "none in use"
	if v.Points > 0 {
		text = fmt.Sprintf("of %s from %s, until %s", stamp(v.GeneratedAt), v.Source, stamp(v.Until))
		for _, n := range []struct {
			name string
			at   time.Time
		}{{"opens", v.NextOpen}, {"closes", v.NextClose}} {
			if !n.at.IsZero() {
				text += fmt.Sprintf(", %s at %s", n.name, stamp(n.at))
			}
		}
	}
	if v.Verdict != nil {
		text += fmt.Sprintf("; the newest is %s: %s", v.Verdict.Class, v.Verdict.Message)
	}
	if v.Error != "" {
		text += "; the source fails: " + v.Error
	}
	return text
}

// String is what was spent of what.
func (b *BudgetView) String() string {
	var parts []string
	if b.Grams != nil {
		parts = append(parts, fmt.Sprintf("%s of %s gCO2", figure(b.SpentGrams), figure(*b.Grams)))
	}
	if b.KWh != nil {
		parts = append(parts, fmt.Sprintf("%s of %s kWh", figure(b.SpentKWh), figure(*b.KWh)))
	}
	if len(parts) == 0 {
		return fmt.Sprintf("%s gCO2 and %s kWh spent, unlimited", figure(b.SpentGrams), figure(b.SpentKWh))
	}
	return strings.Join(parts, ", ") + " spent"
}

// String is the choice with what it cost.
func (p *PlanView) String() string {
	text := "not chosen"
	if p.Chosen {
		text = "chosen"
	}
	text += fmt.Sprintf(" in round %d: %s", p.Round, p.Reason)
	if p.Message != "" {
		text += ", " + p.Message
	}
	return text
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
