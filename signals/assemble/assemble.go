// Package assemble turns the specs of federations and sites into the sources,
// policies and grids that package director and package ledger work with.
//
// It owns which provider a spec means, what a provider needs and which specs mean
// nothing. It must not know where secrets and traces lie (its caller says by
// Credentials and Traces), nor who runs the director: a standalone coordinator
// and the operator do, by the same rules.
package assemble

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/director"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/watttime"
	"girassol.dev/signals/webhook"
	"girassol.dev/signals/window"
)

// Credential is one secret of a provider.
type Credential string

// The credentials that providers ask for; a Secret has them under these keys.
const (
	User     Credential = "user"
	Password Credential = "password"
	Token    Credential = "token"
)

// Credentials finds the secrets that a spec names.
type Credentials interface {
	// Find gives one of them. An error says what is missing and where.
	Find(spec v1alpha1.CredentialsSpec, which Credential) (*fetch.Secret, error)
}

// Pushed serves what a webhook's sender pushes for a site or region.
type Pushed func(sender string, t webhook.Target, kind signals.Kind) director.Source

// Sources makes the sources of a federation's sites; those of one provider share
// its account, limits and cache.
type Sources struct {
	Client      *fetch.Client
	Clock       signals.Clock
	Credentials Credentials
	// Traces gives the path of a trace that a spec names; nil takes what the spec
	// says for one.
	Traces func(name string) (path string, err error)
	// Pushed may be nil without spec.energy.webhook.
	Pushed Pushed

	accounts map[account]*watttime.Account
}

// Site is what is known of a site's electricity.
type Site struct {
	// Source is nil without a signal, Second without spec.grid.check.
	Source, Second director.Source
	// Trace is the marginal intensity of a Replay; nil without one.
	Trace *replay.Series
	Grid  ledger.Grid
	Power ledger.Power
}

// Site makes a site's sources. Errors name the field.
func (s *Sources) Site(site v1alpha1.Site) (_ *Site, err error) {
	out := &Site{}
	if out.Power, err = ledger.PowerFromSpec(site.Spec.Power); err != nil {
		return nil, err
	}
	g := site.Spec.Grid
	if g.Provider == "" {
		return out, nil
	}
	source, err := s.source("spec.grid", site.Name, g.GridSource)
	if err != nil {
		return nil, err
	}
	if g.Check != nil {
		if out.Second, err = s.source("spec.grid.check", site.Name, *g.Check); err != nil {
			return nil, err
		}
	}
	if g.Provider == v1alpha1.GridReplay {
		out.Source = source
		return out, s.replayed(out, g.GridSource)
	}
	h := &heard{Source: source}
	out.Source = h
	if f, ok := source.(signals.Forecaster); ok {
		out.Source = forecasting{h, f}
	}
	switch KindOf(g.GridSource) {
	case v1alpha1.KindMarginal:
		out.Grid.Marginal = h
	case v1alpha1.KindAverage:
		out.Grid.Average = h
	}
	return out, nil
}

// replayed gives a site its traces: one knows the past and the future of its own
// ledger.
func (s *Sources) replayed(out *Site, g v1alpha1.GridSource) (err error) {
	if out.Trace, err = s.column(g.TracePath, g.Region, signals.Marginal); err != nil {
		return fmt.Errorf("spec.grid.tracePath: %w", err)
	}
	out.Grid.Marginal = out.Trace
	if g.AverageTracePath == "" {
		return nil
	}
	if out.Grid.Average, err = s.column(g.AverageTracePath, g.Region, signals.Average); err != nil {
		return fmt.Errorf("spec.grid.averageTracePath: %w", err)
	}
	return nil
}

func (s *Sources) column(name, region string, kind signals.Kind) (*replay.Series, error) {
	path := name
	if s.Traces != nil {
		var err error
		if path, err = s.Traces(name); err != nil {
			return nil, err
		}
	}
	trace, err := replay.ReadFile(path, kind, signals.GramsPerKWh)
	if err != nil {
		return nil, err
	}
	return trace.Column(region)
}

// replaySource reads a trace as if a provider gave it.
func (s *Sources) replaySource(path string, g v1alpha1.GridSource) (director.Source, error) {
	series, err := s.column(g.TracePath, g.Region, signals.Marginal)
	if err != nil {
		return nil, fmt.Errorf("%s.tracePath: %w", path, err)
	}
	return replay.NewSource(series, s.Clock, filepath.Base(g.TracePath)), nil
}

// Directed is a site as the director sees it; f has its defaults. Rounds and
// drains take real time; on the signals' clock they are longer by its speed.
func (s *Site) Directed(f v1alpha1.FederationSpec, site v1alpha1.Site, speed float64) (director.Site, error) {
	own := v1alpha1.EnergySpec{}
	if site.Spec.Energy != nil {
		own = *site.Spec.Energy
	}
	p, err := window.FromSpec(f.Energy, site.Spec.Energy)
	if err != nil {
		return director.Site{}, err
	}
	p.Cooldown = seconds(cmp.Or(own.CooldownSeconds, f.Energy.CooldownSeconds))
	p.TrustZero = cmp.Or(own.Zero, f.Energy.Zero) == v1alpha1.ZeroTrust
	tolerance := float64(cmp.Or(own.TolerancePercent, f.Energy.TolerancePercent)) / 100
	out := director.Site{
		Name: site.Name, Policy: p, Source: s.Source, Second: s.Second, Region: site.Spec.Grid.Region,
		Sanity: &sanity.Policy{TrustZero: p.TrustZero, Tolerance: sanity.Tolerance{Relative: tolerance}},
	}
	if look, ok := s.Source.(signals.Forecaster); ok && cmp.Or(own.Forecast, f.Energy.Forecast) != v1alpha1.ForecastIgnore {
		out.Forecast = look
		out.Provisioning = seconds(cmp.Or(own.ProvisioningSeconds, f.Energy.ProvisioningSeconds))
		out.Round, out.Drain = Stretch(seconds(f.Rounds.TrainSeconds), speed), Stretch(seconds(f.Drain.GraceSeconds), speed)
	}
	return out, nil
}

// Stretch is how long a real duration takes on a clock of this speed.
func Stretch(real time.Duration, speed float64) time.Duration {
	return time.Duration(float64(real) * speed)
}

func seconds(v int32) time.Duration { return time.Duration(v) * time.Second }
