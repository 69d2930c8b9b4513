package window

import (
	"errors"
	"fmt"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
)

// Inputs are what a decision is made from. All may be nil.
type Inputs struct {
	// Reading is the newest.
	Reading *signals.Reading
	// Verdict on Reading. A Held point counts but alone opens and closes nothing;
	// a Suspect one counts for nothing, opens nothing and lets the signal go
	// stale. Without a verdict the window knows of lone zeros only.
	Verdict *sanity.Verdict
	// Forecast is the newest issue, nil if there is none newer: the state keeps the
	// last. An older one than known is ignored. It never opens a window, and stale
	// or missing it changes nothing.
	Forecast *signals.Forecast
	// ForecastVerdict keeps a forecast out that is not Good.
	ForecastVerdict *sanity.Verdict
	// Override is what a person wants.
	Override *Override
	// Blocks are what forbids; those that have ended do not.
	Blocks []Block
}

// MaxOverride is the longest that an override may last.
const MaxOverride = 30 * 24 * time.Hour

// Override puts a site in or out, whatever its electricity, until it expires. It
// wins over the window, the cooldown and a policy that ignores energy, and loses
// to every block.
type Override struct {
	Admit bool `json:"admit"`
	// Until is when it expires. It is mandatory.
	Until time.Time `json:"until"`
	// By and Why are for people.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
}

// Validate refuses an override that would never end.
func (o Override) Validate(now time.Time) error {
	switch {
	case o.Until.IsZero():
		return errors.New("window: an override needs the time at which it expires")
	case o.Until.Sub(now) > MaxOverride:
		return fmt.Errorf("window: an override until %s lasts longer than %s", stamp(o.Until), span(MaxOverride))
	}
	return nil
}

// Cause of a block.
type Cause string

// The causes, in the order in which they are told.
const (
	// Emergency: demand response asks for less load now.
	Emergency Cause = "Emergency"
	// Curtailment: the site's load is limited by contract or operator.
	Curtailment Cause = "Curtailment"
	// Budget: emissions, energy or money are spent.
	Budget Cause = "Budget"
)

var causes = []struct {
	cause  Cause
	reason v1alpha1.Reason
	words  string
}{
	{Emergency, v1alpha1.ReasonGridEmergency, "grid emergency"},
	{Curtailment, v1alpha1.ReasonCurtailed, "load curtailed"},
	{Budget, v1alpha1.ReasonBudgetExhausted, "budget exhausted"},
}

// Block forbids a site to be in.
type Block struct {
	Cause Cause `json:"cause"`
	// Until is when it ends; zero if that is not known.
	Until   time.Time `json:"until,omitzero"`
	Message string    `json:"message,omitempty"`
}

// blocked is the first block by cause that lasts, the latest to end of several
// of one cause.
func blocked(blocks []Block, now time.Time) (b Block, reason v1alpha1.Reason, words string, ok bool) {
	for _, c := range causes {
		for _, x := range blocks {
			if x.Cause != c.cause || !x.Until.IsZero() && !now.Before(x.Until) {
				continue
			}
			if !ok || !b.Until.IsZero() && (x.Until.IsZero() || x.Until.After(b.Until)) {
				b, reason, words, ok = x, c.reason, c.words, true
			}
		}
		if ok {
			return b, reason, words, true
		}
	}
	return Block{}, "", "", false
}

// admit says who is in, in the order that DecideWith promises.
func (s *State) admit(p Policy, in Inputs, now time.Time, d *Decision) {
	d.Admit = s.Open
	block, reason, words, isBlocked := blocked(in.Blocks, now)
	override := in.Override
	if override != nil && !now.Before(override.Until) {
		if override.Until.IsZero() {
			d.Message += "; an override without an expiry is ignored"
		}
		override = nil
	}
	if override != nil && override.Validate(now) != nil {
		d.Message += "; an override for longer than " + span(MaxOverride) + " is ignored"
		override = nil
	}
	switch {
	case isBlocked:
		d.Admit, d.Reason = false, reason
		if block.Message != "" {
			words += ": " + block.Message
		}
		d.Message = words + until(block.Until) + "; " + d.Message
		if override != nil && override.Admit {
			d.Message += "; the override does not count against it"
		}
		d.NextChange = earliest(d.NextChange, block.Until)
	case override != nil:
		d.Admit, d.Reason = override.Admit, v1alpha1.ReasonOverride
		word := "out"
		if override.Admit {
			word = "in"
		}
		text := "put " + word + " by " + orUnknown(override.By) + until(override.Until)
		if override.Why != "" {
			text += " (" + override.Why + ")"
		}
		d.Message = text + "; " + d.Message
		d.NextChange = earliest(d.NextChange, override.Until)
	case p.Ignore:
		d.Admit, d.Reason = true, v1alpha1.ReasonAdmittedByPolicy
		d.Message = "the energy policy is " + string(v1alpha1.EnergyIgnore) + "; " + d.Message
	case d.Admit && p.Cooldown > 0 && !s.Admitted && now.Before(s.Left.Add(p.Cooldown)):
		d.Admit, d.Reason = false, v1alpha1.ReasonCooldown
		d.Message = "cools down" + until(s.Left.Add(p.Cooldown)) + "; " + d.Message
		d.NextChange = earliest(d.NextChange, s.Left.Add(p.Cooldown))
	}
	if p.Cooldown > 0 {
		if s.Admitted && !d.Admit {
			s.Left = now.Round(0).UTC()
		}
		s.Admitted = d.Admit
	}
}

func until(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " until " + stamp(t)
}

func orUnknown(name string) string {
	if name == "" {
		return "someone unnamed"
	}
	return name
}

// earliest of two times, of which zero is unknown.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
