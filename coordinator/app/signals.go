package app

import (
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
	"girassol.dev/signals/replay"
	"girassol.dev/signals/store"
	"girassol.dev/signals/window"
)

// grids reads what the ledger needs of every site.
func (d *declaration) grids() (map[string]ledger.Grid, map[string]ledger.Power, error) {
	grids, powers := map[string]ledger.Grid{}, map[string]ledger.Power{}
	for _, s := range d.sites {
		power, err := ledger.PowerFromSpec(s.Spec.Power)
		if err != nil {
			return nil, nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
		powers[s.Name] = power
		var g ledger.Grid
		if s.Spec.Grid.Provider == v1alpha1.GridReplay {
			marginal, err := column(s.Spec.Grid.TracePath, s.Spec.Grid.Region, signals.Marginal)
			if err != nil {
				return nil, nil, fmt.Errorf("site %s: spec.grid.tracePath: %w", s.Name, err)
			}
			g.Marginal = marginal
			if path := s.Spec.Grid.AverageTracePath; path != "" {
				average, err := column(path, s.Spec.Grid.Region, signals.Average)
				if err != nil {
					return nil, nil, fmt.Errorf("site %s: spec.grid.averageTracePath: %w", s.Name, err)
				}
				g.Average = average
			}
		}
		grids[s.Name] = g
	}
	return grids, powers, nil
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
func (d *declaration) director(clock signals.Clock, o Options, registry prometheus.Registerer, e *engine.Engine) (*director.Director, error) {
	files, err := store.OpenFiles(filepath.Join(o.DataDir, "windows"))
	if err != nil {
		return nil, err
	}
	c := director.Config{
		Federation: d.federation.Name, Membership: members{e}, Store: files, Clock: clock, Log: o.Log, Registerer: registry,
	}
	for _, s := range d.sites {
		if s.Spec.Grid.Provider == "" {
			e.SetDefault(s.Name, engine.Wish{Site: s.Name, Membership: round.Admit, Energy: true,
				Reason: v1alpha1.ReasonAdmittedByPolicy, Message: "the site has no energy signal and its policy is " + string(policy(d.federation.Spec, s))})
			continue
		}
		p, err := window.FromSpec(d.federation.Spec.Energy, s.Spec.Energy)
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
		series, err := column(s.Spec.Grid.TracePath, s.Spec.Grid.Region, signals.Marginal)
		if err != nil {
			return nil, fmt.Errorf("site %s: spec.grid.tracePath: %w", s.Name, err)
		}
		c.Sites = append(c.Sites, director.Site{Name: s.Name, Policy: p, Source: replay.NewSource(series, clock, filepath.Base(s.Spec.Grid.TracePath))})
	}
	return director.New(c)
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
