package app

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/round"
	"girassol.dev/signals"
	"girassol.dev/signals/director"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/store"
	"girassol.dev/signals/window"
)

// siteSignal is what is known of a site's electricity.
type siteSignal struct {
	source director.Source // nil without a signal
	second director.Source // nil without spec.grid.check
	trace  *replay.Series  // of the marginal intensity; nil without a Replay
	grid   ledger.Grid
	power  ledger.Power
}

// signals makes every site's sources, and what the ledger needs.
func (d *declaration) signals(p *providers) (map[string]*siteSignal, error) {
	out := map[string]*siteSignal{}
	for _, s := range d.sites {
		sig, err := p.siteSignal(s)
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
		out[s.Name] = sig
	}
	return out, nil
}

func (p *providers) siteSignal(s v1alpha1.Site) (_ *siteSignal, err error) {
	sig := &siteSignal{}
	if sig.power, err = ledger.PowerFromSpec(s.Spec.Power); err != nil {
		return nil, err
	}
	g := s.Spec.Grid
	if g.Provider == "" {
		return sig, nil
	}
	source, err := p.source(s.Name, g.GridSource)
	if err != nil {
		return nil, err
	}
	if g.Check != nil {
		if sig.second, err = p.source(s.Name, *g.Check); err != nil {
			return nil, fmt.Errorf("spec.grid.check: %w", err)
		}
	}
	if g.Provider == v1alpha1.GridReplay {
		// A trace knows the past and the future of its own ledger.
		sig.source = source
		if sig.trace, err = column(g.TracePath, g.Region, signals.Marginal); err != nil {
			return nil, fmt.Errorf("spec.grid.tracePath: %w", err)
		}
		sig.grid.Marginal = sig.trace
		if g.AverageTracePath != "" {
			if sig.grid.Average, err = column(g.AverageTracePath, g.Region, signals.Average); err != nil {
				return nil, fmt.Errorf("spec.grid.averageTracePath: %w", err)
			}
		}
		return sig, nil
	}
	h := &heard{Source: source}
	sig.source = h
	if f, ok := source.(signals.Forecaster); ok {
		sig.source = forecasting{h, f}
	}
	switch kindOf(g.GridSource) {
	case v1alpha1.KindMarginal:
		sig.grid.Marginal = h
	case v1alpha1.KindAverage:
		sig.grid.Average = h
	}
	return sig, nil
}

func column(path, region string, kind signals.Kind) (*replay.Series, error) {
	trace, err := replay.ReadFile(path, kind, signals.GramsPerKWh)
	if err != nil {
		return nil, err
	}
	return trace.Column(region)
}

// director makes the energy decisions of all sites that have a signal; the
// others are admitted by policy.
func (d *declaration) director(sites map[string]*siteSignal, books *accountant, clock signals.Clock, o Options, registry prometheus.Registerer, e *engine.Engine) (*director.Director, error) {
	files, err := store.OpenFiles(filepath.Join(o.DataDir, "windows"))
	if err != nil {
		return nil, err
	}
	energy := d.federation.Spec.Energy
	c := director.Config{
		Federation: d.federation.Name, Membership: members{e}, Store: files, Clock: clock, Log: o.Log, Registerer: registry,
		Facts: books.facts, Round: books.round, Spent: books.spent,
	}
	if b := energy.Budget; b != nil {
		c.BudgetGrams, c.BudgetKWh = float(b.CarbonGrams), float(b.EnergyKWh)
	}
	if energy.TargetSites > 0 || energy.Budget != nil {
		r := d.federation.Spec.Rounds
		c.Planner = &planner.Config{Wanted: int(energy.TargetSites), Step: max(planner.DefaultStep, onSignalsClock(seconds(r.TrainSeconds+r.CollectSeconds), o.ClockSpeed))}
		if b := energy.Budget; b != nil && b.Tokens != nil {
			total := float64(*b.Tokens)
			c.Planner.Tokens, c.Planner.Deadline = total, b.Deadline.Time
			c.Remaining = func() float64 { return max(0, total-books.trained()) }
		}
	}
	for _, s := range d.sites {
		if s.Spec.Grid.Provider == "" {
			e.SetDefault(s.Name, engine.Wish{Site: s.Name, Membership: round.Admit, Energy: true,
				Reason: v1alpha1.ReasonAdmittedByPolicy, Message: "the site has no energy signal and its policy is " + string(policy(d.federation.Spec, s))})
			continue
		}
		site, err := d.directed(s, sites[s.Name], o.ClockSpeed)
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
		c.Sites = append(c.Sites, site)
	}
	return director.New(c)
}

// directed is a site as the director sees it. Rounds and drains take real time;
// on the signals' clock they are longer by its speed.
func (d *declaration) directed(s v1alpha1.Site, sig *siteSignal, speed float64) (director.Site, error) {
	fed := d.federation.Spec
	own := v1alpha1.EnergySpec{}
	if s.Spec.Energy != nil {
		own = *s.Spec.Energy
	}
	p, err := window.FromSpec(fed.Energy, s.Spec.Energy)
	if err != nil {
		return director.Site{}, err
	}
	p.Cooldown = seconds(cmp.Or(own.CooldownSeconds, fed.Energy.CooldownSeconds))
	p.TrustZero = cmp.Or(own.Zero, fed.Energy.Zero) == v1alpha1.ZeroTrust
	tolerance := float64(cmp.Or(own.TolerancePercent, fed.Energy.TolerancePercent)) / 100
	out := director.Site{
		Name: s.Name, Policy: p, Source: sig.source, Second: sig.second, Region: s.Spec.Grid.Region,
		Sanity: &sanity.Policy{TrustZero: p.TrustZero, Tolerance: sanity.Tolerance{Relative: tolerance}},
	}
	if f, ok := sig.source.(signals.Forecaster); ok && cmp.Or(own.Forecast, fed.Energy.Forecast) != v1alpha1.ForecastIgnore {
		out.Forecast = f
		out.Provisioning = seconds(cmp.Or(own.ProvisioningSeconds, fed.Energy.ProvisioningSeconds))
		out.Round, out.Drain = onSignalsClock(seconds(fed.Rounds.TrainSeconds), speed), onSignalsClock(seconds(fed.Drain.GraceSeconds), speed)
	}
	return out, nil
}

func onSignalsClock(real time.Duration, speed float64) time.Duration {
	return time.Duration(float64(real) * speed)
}

func float(v *int64) *float64 {
	if v == nil {
		return nil
	}
	f := float64(*v)
	return &f
}

// members tells the engine what the director decides.
type members struct{ engine *engine.Engine }

// SetMembership implements director.Membership.
func (m members) SetMembership(ctx context.Context, site string, w director.Wish) error {
	wish := engine.Wish{Site: site, Membership: round.Drain, Reason: w.Reason, Message: w.Message, Energy: true, Signal: signalProto(w.Signal)}
	if w.Admit {
		wish.Membership = round.Admit
	}
	_, err := m.engine.SetMembership(ctx, wish)
	return err
}

func signalProto(s director.Signal) *coordinatorv1.Signal {
	return &coordinatorv1.Signal{
		Kind: string(s.Kind), Unit: string(s.Unit), Region: s.Region, Value: s.Value, Window: string(s.Window),
		PointUnixMs: unixMilli(s.PointTime), NextChangeUnixMs: unixMilli(s.NextChange),
	}
}

func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
