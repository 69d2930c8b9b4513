package simulate

import (
	"fmt"
	"math"
	"time"

	"girassol.dev/coordinator/round"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// Site is one place of the run.
type Site struct {
	Name, Region string
	Policy       window.Policy
	// Sanity judges each reading and forecast before it counts, as in a director.
	Sanity sanity.Policy
	// Signal is what the window decides by.
	Signal *replay.Series
	// Grid is what the ledgers know.
	Grid  ledger.Grid
	Power ledger.Power
	// Provisioning is how long a start takes.
	Provisioning time.Duration
	// Step is the time of one local step.
	Step time.Duration
	// TokensPerSecond while it trains; 0 if not said.
	TokensPerSecond float64
	// Forecasts as they were issued, by GeneratedAt.
	Forecasts []signals.Forecast
}

// Unit is what work is measured in.
type Unit string

// The units of work. Energy is the training energy of the machines, without
// PUE.
const (
	SiteHours Unit = "site-hours"
	KWh       Unit = "kWh"
	Tokens    Unit = "tokens"
)

// Work is what is to be done; an Amount of 0 is no end.
type Work struct {
	Amount float64
	Unit   Unit
}

// Region is a grid that a baseline is computed for.
type Region struct {
	Name  string
	Trace *replay.Series
}

// Plan limits which of the open sites take part; the zero Plan takes all.
type Plan struct {
	// Wanted is the most sites at a time; 0: all.
	Wanted int
	// Deadline by which the work should be done, from the start; with forecasts
	// the run waits for cleaner hours as long as that is possible. 0: none.
	Deadline time.Duration
	// BudgetGrams and BudgetKWh of the whole run; nil is unlimited.
	BudgetGrams, BudgetKWh *float64
}

func (p Plan) zero() bool {
	return p.Wanted == 0 && p.Deadline == 0 && p.BudgetGrams == nil && p.BudgetKWh == nil
}

// Config of a run.
type Config struct {
	Federation string
	Round      round.Config
	Sites      []Site
	// Regions of the baselines.
	Regions []Region
	// Start and End bound the run.
	Start, End time.Time
	Work       Work
	// Sync is the time to synchronise, as a share of the time trained.
	Sync float64
	Plan Plan
	// Seed of what was generated, for the report.
	Seed uint64
}

// mostWork keeps sums exact enough.
const mostWork = 1e18

// check refuses a configuration without meaning.
func (c Config) check() error {
	switch {
	case len(c.Sites) == 0:
		return fmt.Errorf("simulate: federation %s has no sites", c.Federation)
	case !c.End.After(c.Start):
		return fmt.Errorf("simulate: federation %s: the run ends at %s and begins at %s", c.Federation, stamp(c.End), stamp(c.Start))
	case !(c.Work.Amount >= 0 && c.Work.Amount <= mostWork):
		return fmt.Errorf("simulate: federation %s: work of %v %s", c.Federation, c.Work.Amount, c.Work.Unit)
	case !(c.Sync >= 0 && c.Sync <= 10):
		return fmt.Errorf("simulate: federation %s: synchronisation takes %v of the time trained, want 0 to 10", c.Federation, c.Sync)
	case c.Plan.Wanted < 0 || c.Plan.Deadline < 0:
		return fmt.Errorf("simulate: federation %s: at most %d sites and a deadline after %s", c.Federation, c.Plan.Wanted, c.Plan.Deadline)
	}
	switch c.Work.Unit {
	case SiteHours, KWh, Tokens:
	default:
		return fmt.Errorf("simulate: federation %s: work in %q, want %s, %s or %s", c.Federation, c.Work.Unit, SiteHours, KWh, Tokens)
	}
	for _, s := range c.Sites {
		if err := s.check(c.Work); err != nil {
			return fmt.Errorf("simulate: site %s: %w", s.Name, err)
		}
	}
	return nil
}

func (s Site) check(w Work) error {
	switch {
	case s.Provisioning < 0:
		return fmt.Errorf("provisioning takes %s", s.Provisioning)
	case s.Step <= 0:
		return fmt.Errorf("a local step takes %s", s.Step)
	case !(s.TokensPerSecond >= 0) || math.IsInf(s.TokensPerSecond, 0):
		return fmt.Errorf("%v tokens a second", s.TokensPerSecond)
	case w.Unit == Tokens && s.TokensPerSecond == 0:
		return fmt.Errorf("work in tokens needs its tokens a second (--tokens-per-second %s=N)", s.Name)
	case w.Unit == KWh && s.Power.TrainingWatts == 0:
		return fmt.Errorf("work in kWh needs its power (spec.power.trainingWatts)")
	case !s.Policy.Ignore && s.Signal == nil:
		return fmt.Errorf("its energy policy needs a signal and no trace has region %q", s.Region)
	}
	return nil
}

// rate is the work that the site does in a second of training.
func (s Site) rate(u Unit) float64 {
	switch u {
	case KWh:
		return s.Power.TrainingWatts / ledger.JoulesPerKWh
	case Tokens:
		return s.TokensPerSecond
	}
	return 1.0 / 3600
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
