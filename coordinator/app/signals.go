package app

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/round"
	"girassol.dev/signals"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/director"
	"girassol.dev/signals/store"
)

// signals makes every site's sources, and what the ledger needs.
func (d *declaration) signals(s *assemble.Sources) (map[string]*assemble.Site, error) {
	out := map[string]*assemble.Site{}
	for _, site := range d.sites {
		made, err := s.Site(site)
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", site.Name, err)
		}
		out[site.Name] = made
	}
	return out, nil
}

// director makes the energy decisions of all sites that have a signal; the
// others are admitted by policy, as far as spec.maxSites lets them.
func (d *declaration) director(sites map[string]*assemble.Site, books *accountant, clock signals.Clock, o Options, registry prometheus.Registerer, e *engine.Engine) (*director.Director, error) {
	files, err := store.OpenFiles(filepath.Join(o.DataDir, "windows"))
	if err != nil {
		return nil, err
	}
	c := director.Config{
		Federation: d.federation.Name, Membership: members{e}, Store: files, Clock: clock, Log: o.Log, Registerer: registry,
		Facts: books.facts, Round: books.round, Spent: books.spent,
	}
	places := d.policySites(e)
	assemble.Plan(&c, d.federation.Spec, max(0, places), o.ClockSpeed, books.trained)
	for _, s := range d.sites {
		if s.Spec.Grid.Provider == "" {
			continue
		}
		if places == 0 {
			e.SetDefault(s.Name, engine.Wish{Site: s.Name, Membership: round.Drain, Energy: true, Reason: d.noPlace(), Message: d.noPlaceMessage()})
			continue
		}
		site, err := sites[s.Name].Directed(d.federation.Spec, s, o.ClockSpeed)
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
		c.Sites = append(c.Sites, site)
	}
	return director.New(c)
}

// policySites seats the sites without a signal, the highest priority first, and
// gives how many places spec.maxSites leaves to the others; below 0: any number.
func (d *declaration) policySites(e *engine.Engine) (places int) {
	places = -1
	if most := d.federation.Spec.MaxSites; most != nil {
		places = int(*most)
	}
	byPriority := slices.Clone(d.sites)
	slices.SortStableFunc(byPriority, func(a, b v1alpha1.Site) int { return cmp.Compare(b.Spec.Priority, a.Spec.Priority) })
	for _, s := range byPriority {
		if s.Spec.Grid.Provider != "" {
			continue
		}
		w := engine.Wish{Site: s.Name, Membership: round.Admit, Energy: true, Reason: v1alpha1.ReasonAdmittedByPolicy,
			Message: "the site has no energy signal and its policy is " + string(assemble.Policy(d.federation.Spec, s))}
		if places == 0 {
			w.Membership, w.Reason, w.Message = round.Drain, d.noPlace(), d.noPlaceMessage()
		} else {
			places--
		}
		e.SetDefault(s.Name, w)
	}
	return places
}

func (d *declaration) noPlace() v1alpha1.Reason {
	if *d.federation.Spec.MaxSites == 0 {
		return v1alpha1.ReasonScaledToZero
	}
	return v1alpha1.ReasonHigherPriority
}

func (d *declaration) noPlaceMessage() string {
	if *d.federation.Spec.MaxSites == 0 {
		return "spec.maxSites is 0: the federation sleeps until it is raised"
	}
	return fmt.Sprintf("spec.maxSites is %d, and so many sites without a signal have their places", *d.federation.Spec.MaxSites)
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
