// Package director turns signals into membership: it polls each site's source,
// lets package window decide, keeps the windows' states and tells whoever admits
// sites until that has succeeded.
//
// It owns the loop and nothing else: the rules are window's, the files are
// store's. It must not know how a site is admitted, what it trains or which
// provider its readings come from. Sites are independent: nothing that one
// site's source, store or membership call does delays another. A panic is not
// caught: it is a bug and ends the process.
package director

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/window"
)

// Source gives the newest reading of one site's electricity. It must return when
// ctx ends.
type Source interface {
	Latest(ctx context.Context) (signals.Reading, error)
}

// Membership admits sites and lets them leave. Saying the same again must change
// nothing but what is shown. It must return when ctx ends.
type Membership interface {
	SetMembership(ctx context.Context, site string, w Wish) error
}

// Store keeps the windows' states over restarts. Load may return what it could
// read together with an error that names what it could not.
type Store interface {
	Load() (map[string]window.State, error)
	Save(site string, s window.State) error
}

// Wish is what a site is to do and why.
type Wish struct {
	Admit   bool
	Reason  v1alpha1.Reason
	Message string
	// Signal behind the decision, for display.
	Signal Signal
}

// Signal is the electricity as last seen.
type Signal struct {
	Kind   signals.Kind
	Unit   signals.Unit
	Region string
	// Value is nil while it is unknown; it is never 0 for that.
	Value  *float64
	Window v1alpha1.WindowState
	// PointTime is zero before the first point.
	PointTime time.Time
	// NextChange is the earliest time at which the window can change; zero when
	// not known.
	NextChange time.Time
}

// Site is one site's policy and source.
type Site struct {
	Name   string
	Policy window.Policy
	Source Source
}

// Config of a Director.
type Config struct {
	// Federation is a metric label and log field.
	Federation string
	Sites      []Site
	Membership Membership
	// Store may be nil: timers then start anew with the process.
	Store Store
	// Clock in which signals are read and windows decided. Default Real. Calls
	// to Membership are retried in real time.
	Clock signals.Clock
	// CallTimeout bounds each call to a Source or Membership, in real time.
	// Default 10 s.
	CallTimeout time.Duration
	Log         *slog.Logger
	// Registerer of the metrics; may be nil.
	Registerer prometheus.Registerer
	// Random gives numbers in [0,1) for jitter; it is called concurrently.
	// Default math/rand.
	Random func() float64
}

// Director runs the windows of one federation.
type Director struct {
	config  Config
	sites   map[string]*site
	order   []*site
	metrics *metrics
}

// New checks the configuration and registers the metrics.
func New(c Config) (*Director, error) {
	if c.Membership == nil {
		return nil, errors.New("director: no membership to tell")
	}
	if c.Clock == nil {
		c.Clock = signals.Real{}
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	d := &Director{config: c, sites: map[string]*site{}}
	for _, s := range c.Sites {
		switch {
		case s.Name == "":
			return nil, fmt.Errorf("director: federation %s: a site without a name", c.Federation)
		case s.Source == nil:
			return nil, fmt.Errorf("director: federation %s: site %s has no source of signals", c.Federation, s.Name)
		case d.sites[s.Name] != nil:
			return nil, fmt.Errorf("director: federation %s: site %s is there twice", c.Federation, s.Name)
		}
		run := &site{
			Site: s, director: d,
			log:     c.Log.With("federation", c.Federation, "site", s.Name),
			polled:  make(chan poll),
			mailbox: make(chan Wish, 1),
		}
		d.sites[s.Name] = run
		d.order = append(d.order, run)
	}
	d.metrics = newMetrics(d)
	if c.Registerer != nil {
		if err := c.Registerer.Register(d.metrics); err != nil {
			return nil, fmt.Errorf("director: federation %s: register metrics: %w", c.Federation, err)
		}
	}
	return d, nil
}

// Run directs all sites until ctx ends; it is called once. It returns when all
// its goroutines have.
func (d *Director) Run(ctx context.Context) error {
	if d.config.Registerer != nil {
		defer d.config.Registerer.Unregister(d.metrics)
	}
	if d.config.Store != nil {
		states, err := d.config.Store.Load()
		if err != nil {
			// Training must not wait for a file: the sites concerned begin
			// without their timers.
			d.config.Log.Error("window states could not all be read, their timers start anew",
				"federation", d.config.Federation, "error", err)
		}
		for name, state := range states {
			if s := d.sites[name]; s != nil {
				s.state = state
			}
		}
	}
	var wg sync.WaitGroup
	for _, s := range d.order {
		wg.Go(func() { s.poll(ctx) })
		wg.Go(func() { s.decide(ctx) })
		wg.Go(func() { s.send(ctx) })
	}
	wg.Wait()
	return nil
}

// Explanation is a site's last decision and what it was made from.
type Explanation struct {
	Site     string
	Policy   window.Policy
	Decision window.Decision
	// Decided is when, in the signals' clock; zero before the first decision.
	Decided time.Time
	State   window.State
	// Reading is the last that the source gave, nil before.
	Reading *signals.Reading
	// SourceError, StoreError and MembershipError are the present failures, ""
	// for none.
	SourceError, StoreError, MembershipError string
	// Delivered says that the last wish has arrived.
	Delivered bool
}

// Explain says why a site is in or out; an error if there is no such site.
func (d *Director) Explain(name string) (Explanation, error) {
	s := d.sites[name]
	if s == nil {
		return Explanation{}, fmt.Errorf("director: federation %s has no site %s", d.config.Federation, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.shown
	e.Site, e.Policy = s.Name, s.Policy
	return e, nil
}
