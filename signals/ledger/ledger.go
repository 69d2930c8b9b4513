// Package ledger turns power over time into energy and emissions, in two books
// that are never summed: the marginal one (what our consumption caused) and the
// average one (our share of what was caused).
//
// It owns the arithmetic. It must not know where power or intensity come from,
// what a round is or what time it is.
//
// kgCO2e = sum of P[kW] * PUE * I[g/kWh] * dt[h] / 1000, with I held over its
// validity, not interpolated, and the energy split where I changes.
package ledger

import (
	"fmt"
	"maps"
	"math"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

// JoulesPerKWh is exact.
const JoulesPerKWh = 3.6e6

// Intensity is a signal in gCO2/kWh over time.
type Intensity interface {
	// At is the step that t lies in: t is in [From, Until), and a zero Until
	// means that nothing changes any more.
	At(t time.Time) signals.Step
}

// Grid is what is known of a site's electricity; either may be nil.
type Grid struct {
	Marginal, Average Intensity
}

// Account is one site's cumulative figures. Energy is the facility's: IT energy
// times PUE.
type Account struct {
	Joules float64 `json:"joules"`
	// MarginalGrams and AverageGrams of CO2 are nil until some energy had a
	// known intensity; a pointer to 0 means that all of it was at 0 g/kWh.
	MarginalGrams *float64 `json:"marginalGrams"`
	AverageGrams  *float64 `json:"averageGrams"`
	// MarginalJoules and AverageJoules are the energy whose intensity was known.
	// What lies between them and Joules is counted as energy, not as emissions.
	MarginalJoules float64 `json:"marginalCoveredJoules"`
	AverageJoules  float64 `json:"averageCoveredJoules"`
	// MeasuredJoules are those of a counter; the others are a power model's.
	MeasuredJoules float64 `json:"measuredJoules,omitempty"`
	// UncertaintyJoules: the true energy is within Joules ± this. Errors of spans are
	// added, because one meter or model is wrong in the same way all along.
	UncertaintyJoules float64 `json:"uncertaintyJoules,omitempty"`
}

// KWh is the energy in kWh.
func (a Account) KWh() float64 { return a.Joules / JoulesPerKWh }

// MarginalCoverage is the share of the energy with a known marginal intensity,
// 1 if there was no energy.
func (a Account) MarginalCoverage() float64 { return share(a.MarginalJoules, a.Joules) }

// AverageCoverage is MarginalCoverage of the average ledger.
func (a Account) AverageCoverage() float64 { return share(a.AverageJoules, a.Joules) }

// MeasuredShare is the share of the energy that a counter measured, 1 if there
// was no energy.
func (a Account) MeasuredShare() float64 { return share(a.MeasuredJoules, a.Joules) }

func share(part, whole float64) float64 {
	if whole == 0 {
		return 1
	}
	return part / whole
}

// Plus adds two accounts, each ledger for itself.
func (a Account) Plus(b Account) Account {
	return Account{
		Joules:         a.Joules + b.Joules,
		MarginalGrams:  plus(a.MarginalGrams, b.MarginalGrams),
		AverageGrams:   plus(a.AverageGrams, b.AverageGrams),
		MarginalJoules: a.MarginalJoules + b.MarginalJoules,
		AverageJoules:  a.AverageJoules + b.AverageJoules,
		MeasuredJoules: a.MeasuredJoules + b.MeasuredJoules,

		UncertaintyJoules: a.UncertaintyJoules + b.UncertaintyJoules,
	}
}

func plus(a, b *float64) *float64 {
	if a == nil && b == nil {
		return nil
	}
	var sum float64
	for _, v := range []*float64{a, b} {
		if v != nil {
			sum += *v
		}
	}
	return &sum
}

// Ledger accumulates accounts per site. It is not safe for concurrent use.
type Ledger struct {
	grids    map[string]Grid
	accounts map[string]Account
	rounds   rounds
}

// New returns a ledger of the sites with their grids. A site without a grid may
// be added to as well; its energy has no emissions.
func New(grids map[string]Grid) *Ledger {
	return &Ledger{grids: maps.Clone(grids), accounts: map[string]Account{}}
}

// Add counts watts of IT power, drawn between from and to at a site of this PUE.
func (l *Ledger) Add(site string, from, to time.Time, watts, pue float64) error {
	return l.Book(Span{Site: site, From: from, To: to, Watts: watts, PUE: pue})
}

// AddEnergy counts measured joules of IT energy, taken as drawn evenly between
// from and to.
func (l *Ledger) AddEnergy(site string, from, to time.Time, joules, pue float64) error {
	if joules == 0 && !to.Before(from) {
		return nil
	}
	if !to.After(from) {
		return fmt.Errorf("ledger: site %s: %v J between %s and %s", site, joules, stamp(from), stamp(to))
	}
	return l.Book(Span{Site: site, From: from, To: to, Watts: joules / to.Sub(from).Seconds(), PUE: pue, Measured: true})
}

// Span is constant IT power at one site.
type Span struct {
	Site string
	// Round that it was drawn for; nil if for none.
	Round    *uint64
	From, To time.Time
	Watts    float64
	PUE      float64
	// Measured by a counter, not by a power model.
	Measured bool
	// Uncertainty: the true power is within Watts ± this.
	Uncertainty float64
}

// Book counts a span to its site and, if it has one, to its round.
func (l *Ledger) Book(s Span) error {
	a, err := account(l.grids[s.Site], s.From, s.To, s.Watts, s.PUE)
	if err != nil {
		return fmt.Errorf("ledger: site %s: %w", s.Site, err)
	}
	if !(s.Uncertainty >= 0) || math.IsInf(s.Uncertainty, 0) {
		return fmt.Errorf("ledger: site %s: %v W are no uncertainty", s.Site, s.Uncertainty)
	}
	a.UncertaintyJoules = s.Uncertainty * s.PUE * s.To.Sub(s.From).Seconds()
	if s.Measured {
		a.MeasuredJoules = a.Joules
	}
	l.accounts[s.Site] = l.accounts[s.Site].Plus(a)
	if s.Round != nil {
		l.rounds.add(*s.Round, s, a)
	}
	return nil
}

// Account is one site's figures so far.
func (l *Ledger) Account(site string) Account { return l.accounts[site].Plus(Account{}) }

// Snapshot is all accounts by site, in a form that is kept as JSON.
func (l *Ledger) Snapshot() map[string]Account {
	out := make(map[string]Account, len(l.accounts))
	for site := range l.accounts {
		out[site] = l.Account(site)
	}
	return out
}

// Restore replaces all accounts by those of a snapshot.
func (l *Ledger) Restore(accounts map[string]Account) error {
	restored := make(map[string]Account, len(accounts))
	for site, a := range accounts {
		for _, v := range []float64{a.Joules, a.MarginalJoules, a.AverageJoules, value(a.MarginalGrams), value(a.AverageGrams), a.MeasuredJoules, a.UncertaintyJoules} {
			if !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("ledger: site %s: snapshot holds %v", site, v)
			}
		}
		restored[site] = a.Plus(Account{})
	}
	l.accounts = restored
	return nil
}

func value(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// account is what one span of constant power comes to.
func account(g Grid, from, to time.Time, watts, pue float64) (Account, error) {
	switch {
	case to.Before(from):
		return Account{}, fmt.Errorf("the span ends at %s before it begins at %s", stamp(to), stamp(from))
	case !(watts >= 0) || math.IsInf(watts, 0):
		return Account{}, fmt.Errorf("%v W is no power", watts)
	case !(pue >= 1) || math.IsInf(pue, 0):
		return Account{}, fmt.Errorf("a PUE of %v, at least 1", pue)
	}
	w := watts * pue
	a := Account{Joules: w * to.Sub(from).Seconds()}
	a.MarginalGrams, a.MarginalJoules = emissions(g.Marginal, from, to, w)
	a.AverageGrams, a.AverageJoules = emissions(g.Average, from, to, w)
	return a, nil
}

// emissions splits the span at the signal's steps.
func emissions(s Intensity, from, to time.Time, watts float64) (grams *float64, covered float64) {
	if s == nil {
		return nil, 0
	}
	for from.Before(to) {
		step := s.At(from)
		until := to
		if step.Until.After(from) && step.Until.Before(to) {
			until = step.Until
		}
		if step.Value != nil {
			joules := watts * until.Sub(from).Seconds()
			covered += joules
			g := joules / JoulesPerKWh * *step.Value
			grams = plus(grams, &g)
		}
		from = until
	}
	return grams, covered
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Power is the stated power model of one member.
type Power struct {
	TrainingWatts, IdleWatts float64
	// PUE is facility over IT power.
	PUE float64
}

// PowerFromSpec checks a spec and fills in the default PUE of 1. Errors name the
// field.
func PowerFromSpec(s v1alpha1.PowerSpec) (Power, error) {
	p := Power{TrainingWatts: float64(s.TrainingWatts), IdleWatts: float64(s.IdleWatts), PUE: 1}
	if s.TrainingWatts < 0 {
		return Power{}, fmt.Errorf("spec.power.trainingWatts: %d is negative", s.TrainingWatts)
	}
	if s.IdleWatts < 0 {
		return Power{}, fmt.Errorf("spec.power.idleWatts: %d is negative", s.IdleWatts)
	}
	if s.PUE != nil {
		p.PUE = s.PUE.AsApproximateFloat64()
	}
	if !(p.PUE >= 1 && p.PUE <= 10) {
		return Power{}, fmt.Errorf("spec.power.pue: %v is outside 1 to 10", p.PUE)
	}
	return p, nil
}
