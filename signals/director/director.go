// Package director turns signals into membership: it polls each site's source,
// lets packages sanity, window and planner decide, keeps what they remember and
// tells whoever admits sites until that has succeeded.
//
// It owns the loop and nothing else: the rules are theirs, the files are store's.
// It must not know how a site is admitted, what it trains or which provider its
// readings come from. Sites are independent: nothing that one site's source,
// store or membership call does delays another. A panic is not caught: it is a
// bug and ends the process.
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
	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/webhook"
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

// Memory is what a Store may keep besides; one that does not forgets verdicts,
// overrides and plans with the process. Load functions may return what they
// could read together with an error that names what they could not.
type Memory interface {
	LoadSanity() (map[string]sanity.State, error)
	SaveSanity(site string, s sanity.State) error
	LoadOverrides() (map[string]window.Override, error)
	// SaveOverride forgets the site's override if o is nil.
	SaveOverride(site string, o *window.Override) error
	// Moved is when sites last came in or went out by the plan.
	LoadPlan() (s planner.State, moved map[string]time.Time, err error)
	SavePlan(s planner.State, moved map[string]time.Time) error
}

// Curtailments are what was demanded of one site by demand response. Those that
// have ended, or that are to come, may be among them. It is asked at each
// decision and must answer at once.
type Curtailments interface {
	Curtailments() []webhook.Curtailment
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

// Site is one site's policy and sources. Name, Policy and Source are needed; a
// field that is unset leaves out what it is for.
type Site struct {
	Name   string
	Policy window.Policy
	Source Source

	// Sanity judges each reading and forecast before it counts. Nil: the window
	// knows of lone zeros only.
	Sanity *sanity.Policy
	// Second is the same quantity from elsewhere, for Sanity's cross-check.
	Second Source
	// Price and Share (of renewables) of the region may explain a zero.
	Price, Share Source
	// Forecast lets the window look ahead and the planner wait for cleaner hours.
	Forecast signals.Forecaster

	// Provisioning is how long a start takes, Round how long a round, Drain how
	// long leaving takes. They fill in the policy's MinWindow (Provisioning and
	// Round) and LeaveLead (Drain) where those are 0.
	Provisioning, Round, Drain time.Duration

	// Region of the grid, for demands on a region that come through Sink.
	Region string
	// Curtailments beside those that come through Sink; may be nil.
	Curtailments Curtailments
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

	// Planner chooses among the sites whose windows are open. Nil: all are
	// admitted. Its Round and its budgets are filled in from below; Tokens by
	// Remaining.
	Planner *planner.Config
	// Facts are a site's speed and power as measured or declared; not ok if they
	// are not known yet. A limit that the site is known to keep (watts
	// times pue) does not hold it out. Facts, Round, Remaining and Spent are
	// called concurrently and must answer at once; each may be nil.
	Facts func(site string) (tokensPerSecond, watts, idleWatts, pue float64, ok bool)
	// Round in which a site changes at most once; again if it takes longer than a
	// step of the planner, so that none waits for itself. Nil: one for every step.
	Round func() uint64
	// Unavailable says that a site cannot be had for now, whatever its electricity:
	// the planner passes over it. It is called concurrently and must answer at once;
	// nil: all can. After a change of its answer call Look.
	Unavailable func(site string) bool
	// Remaining are the tokens left to train. Nil: Planner.Tokens.
	Remaining func() float64
	// BudgetGrams and BudgetKWh are the most that may be emitted and drawn; nil is
	// unlimited. Spent is what was; at the budget every site is put out.
	BudgetGrams, BudgetKWh *float64
	Spent                  func() (grams, kWh float64)
}

// Director runs the windows of one federation.
type Director struct {
	config  Config
	sites   map[string]*site
	order   []*site
	metrics *metrics
	memory  Memory // nil if the Store has none
	book    *book
	plans   *plans // nil without a Planner
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
	if (c.BudgetGrams != nil || c.BudgetKWh != nil) && c.Spent == nil {
		return nil, fmt.Errorf("director: federation %s: a budget needs Spent, which says what is gone", c.Federation)
	}
	d := &Director{config: c, sites: map[string]*site{}, book: newBook()}
	d.memory, _ = c.Store.(Memory)
	if c.Planner != nil {
		if err := planner.Validate(*c.Planner, nil); err != nil {
			return nil, fmt.Errorf("director: federation %s: %w", c.Federation, err)
		}
		d.plans = newPlans(d)
	}
	for _, s := range c.Sites {
		switch {
		case s.Name == "":
			return nil, fmt.Errorf("director: federation %s: a site without a name", c.Federation)
		case s.Source == nil:
			return nil, fmt.Errorf("director: federation %s: site %s has no source of signals", c.Federation, s.Name)
		case d.sites[s.Name] != nil:
			return nil, fmt.Errorf("director: federation %s: site %s is there twice", c.Federation, s.Name)
		}
		if s.Sanity != nil {
			if err := s.Sanity.Validate(); err != nil {
				return nil, fmt.Errorf("director: federation %s: site %s: %w", c.Federation, s.Name, err)
			}
		}
		run := newSite(d, s)
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
	d.load()
	var wg sync.WaitGroup
	for _, s := range d.order {
		wg.Go(func() { s.poll(ctx) })
		wg.Go(func() { s.decide(ctx) })
		wg.Go(func() { s.send(ctx) })
		for _, e := range s.asked {
			wg.Go(func() { e.run(ctx) })
		}
	}
	if d.plans != nil {
		wg.Go(func() { d.plans.run(ctx) })
	}
	if d.plans != nil || d.config.Spent != nil {
		wg.Go(func() { d.watch(ctx) })
	}
	wg.Wait()
	return nil
}

// load reads what was kept. Training must not wait for a file: what cannot be
// read starts anew.
func (d *Director) load() {
	failed := func(what string, err error) {
		if err != nil {
			d.config.Log.Error(what+" could not all be read and start anew", "federation", d.config.Federation, "error", err)
		}
	}
	if d.config.Store != nil {
		states, err := d.config.Store.Load()
		failed("window states", err)
		for name, state := range states {
			if s := d.sites[name]; s != nil {
				s.state, s.in = state, state.Admitted
			}
		}
	}
	if d.memory != nil {
		states, err := d.memory.LoadSanity()
		failed("verdicts", err)
		overrides, err2 := d.memory.LoadOverrides()
		failed("overrides", err2)
		for _, s := range d.order {
			s.sanity = states[s.Name]
			s.savedSanity = s.sanity
			o, kept := overrides[s.Name]
			s.mu.Lock()
			if kept && s.override == nil {
				s.override = &o
			}
			s.mu.Unlock()
		}
	}
	if d.plans != nil {
		var state planner.State
		var moved map[string]time.Time
		if d.memory != nil {
			var err error
			state, moved, err = d.memory.LoadPlan()
			failed("the plan", err)
		}
		d.plans.restore(state, moved)
	}
	for _, s := range d.order {
		if s.pressing(d.config.Clock.Now()) {
			s.look()
		}
	}
}

// site finds one by name.
func (d *Director) site(name string) (*site, error) {
	s := d.sites[name]
	if s == nil {
		return nil, fmt.Errorf("director: federation %s has no site %s", d.config.Federation, name)
	}
	return s, nil
}
