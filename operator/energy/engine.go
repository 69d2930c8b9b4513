// Package energy hosts the signals engine on Kubernetes: one signals/director
// per Federation, its credentials from Secrets, its memory in ConfigMaps.
//
// It owns which director runs and with what, what survives a change of the
// leader, and how the energy decision of a site is said to the other packages.
// It must not know how a site is provisioned, labelled or seated: rules of energy
// are those of package signals, those of membership of operator/membership.
package energy

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

// Options of an Engine.
type Options struct {
	// Client writes the ConfigMaps of the state. Reader reads them, and Secrets,
	// from the API server itself: neither is kept in a cache.
	Client client.Client
	Reader client.Reader
	// Traces is the folder of the CSV files of Replay; empty: there are none.
	Traces string
	// Clock in which signals are read; nil is real time.
	Clock signals.Clock
	Log   *slog.Logger
	// Registerer of the metrics; may be nil.
	Registerer prometheus.Registerer
	// SaveEvery is the least time between two writes of a federation's memory that
	// nobody waits for. Default 5 s.
	SaveEvery time.Duration
	// RefreshEvery is how often Secrets are read again. Default 3 min.
	RefreshEvery time.Duration
}

// Engine runs the directors of all federations. Its methods may be called
// concurrently, and before Start.
type Engine struct {
	options Options
	clock   signals.Clock
	speed   float64 // of the clock
	log     *slog.Logger
	fetch   *fetch.Client
	changes *changes
	losses  *prometheus.CounterVec // of claims, by namespace and federation
	writer  string                 // names this engine in what it writes
	kick    chan struct{}

	mu          sync.Mutex
	federations map[types.NamespacedName]*federation
	base        context.Context // of the directors; nil before Start
	ended       bool
}

// Fault is an error of a spec: repeating the same does not help.
type Fault struct{ membership.Fault }

// Error implements error.
func (f *Fault) Error() string { return string(f.Reason) + ": " + f.Message }

// New makes an Engine without federations.
func New(o Options) (*Engine, error) {
	if o.Client == nil || o.Reader == nil {
		return nil, errors.New("energy: the engine needs a client and a reader")
	}
	if o.Clock == nil {
		o.Clock = signals.Real{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.SaveEvery, o.RefreshEvery = cmp.Or(o.SaveEvery, 5*time.Second), cmp.Or(o.RefreshEvery, 3*time.Minute)
	e := &Engine{
		options: o, clock: o.Clock, speed: 1, log: o.Log, changes: newChanges(), losses: newLosses(), writer: rand.Text(), kick: make(chan struct{}, 1),
		federations: map[types.NamespacedName]*federation{},
	}
	if v, ok := o.Clock.(interface{ Speed() float64 }); ok {
		e.speed = v.Speed()
	}
	var err error
	if e.fetch, err = fetch.New(fetch.Config{Clock: o.Clock, Log: o.Log, Registerer: o.Registerer}); err != nil {
		return nil, fmt.Errorf("energy: %w", err)
	}
	if o.Registerer != nil {
		if err := o.Registerer.Register(e.losses); err != nil {
			e.fetch.Close()
			return nil, fmt.Errorf("energy: %w", err)
		}
	}
	return e, nil
}

var errEnded = errors.New("energy: the engine has ended: another operator decides")

// Ensure lets a federation's director run as its spec and those of its sites say;
// sites are those that it has. A *Fault says that something of the federation's
// spec or its senders' Secrets cannot be acted on, any other error that it could
// not be tried. A fault of one site is in SiteFault and stops no other. In an
// unchanged world it asks nothing of the API server.
func (e *Engine) Ensure(ctx context.Context, f *v1alpha1.Federation, sites []v1alpha1.Site) error {
	object := f.DeepCopy()
	copied := make([]v1alpha1.Site, len(sites))
	for i := range sites {
		copied[i] = *sites[i].DeepCopy()
	}
	key := client.ObjectKeyFromObject(f)
	fed, old, err := e.take(key, f.UID)
	if err != nil {
		return err
	}
	if old != nil {
		old.end(false)
	}
	return fed.ensure(ctx, object, copied)
}

// take finds a federation or makes it; old is one of the same name that is gone.
func (e *Engine) take(key types.NamespacedName, uid types.UID) (fed, old *federation, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, nil, errEnded
	}
	fed = e.federations[key]
	if fed != nil && fed.uid != uid {
		fed, old = nil, fed
	}
	if fed == nil {
		fed = newFederation(e, key, uid)
		e.federations[key] = fed
	}
	return fed, old, nil
}

// Forget ends a federation's director; its memory goes with its ConfigMaps.
func (e *Engine) Forget(key types.NamespacedName) {
	e.mu.Lock()
	fed := e.federations[key]
	delete(e.federations, key)
	e.mu.Unlock()
	if fed != nil {
		fed.end(false)
	}
	e.losses.DeleteLabelValues(key.Namespace, key.Name)
}

func (e *Engine) federation(key types.NamespacedName) *federation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.federations[key]
}

func (e *Engine) all() []*federation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.federations))
}

// SiteFault is why a site's signal cannot be used; nil if it can.
func (e *Engine) SiteFault(key types.NamespacedName, site string) *membership.Fault {
	if fed := e.federation(key); fed != nil {
		return fed.fault(site)
	}
	return nil
}

// Wish is what energy says of a site, and the signal to be told with it. The
// signal is never nil, is not to be changed, and stays the same until Changed says
// otherwise.
func (e *Engine) Wish(key types.NamespacedName, site string) (membership.Energy, *coordinatorv1.Signal) {
	if fed := e.federation(key); fed != nil {
		if w, ok := fed.wish(site); ok {
			return w.energy, w.signal
		}
	}
	w := unknown("nothing was decided yet")
	return w.energy, w.signal
}

// SetUnavailable names the sites that cannot be had for now, because their
// capacity failed: the planner passes over them.
func (e *Engine) SetUnavailable(key types.NamespacedName, sites map[string]bool) {
	if fed := e.federation(key); fed != nil {
		fed.setUnavailable(sites)
	}
}

// Observe takes what the coordinator says: speeds, rounds and ledgers.
func (e *Engine) Observe(key types.NamespacedName, s *coordinatorv1.FederationStatus) {
	if fed := e.federation(key); fed != nil && s != nil {
		fed.observe(s)
	}
}

// Changed gives the Sites (namespace and name only) whose wish, signal or fault
// changed; one that changes often while nobody listens comes once.
func (e *Engine) Changed() <-chan event.GenericEvent { return e.changes.out }

// running is the context of the directors; nil before Start.
func (e *Engine) running() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.base
}

// hurry lets Start look at once at what is due.
func (e *Engine) hurry() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// tick is how often it is looked whether a federation is due.
const tick = 5 * time.Second

// Start runs the directors until ctx ends, as a manager's does that loses its
// lease; it is a manager.Runnable. It ends when what they remember is written.
func (e *Engine) Start(ctx context.Context) error {
	e.mu.Lock()
	e.base = ctx
	e.mu.Unlock()
	var side sync.WaitGroup
	side.Go(func() { e.changes.run(ctx) })
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for ctx.Err() == nil {
		e.refresh(ctx)
		select {
		case <-ticker.C:
		case <-e.kick:
		case <-ctx.Done():
		}
	}
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	var ending sync.WaitGroup
	for _, fed := range e.all() {
		ending.Go(func() { fed.end(true) })
	}
	ending.Wait()
	side.Wait()
	e.fetch.Close()
	if e.options.Registerer != nil {
		e.options.Registerer.Unregister(e.losses)
	}
	return nil
}

// refreshTimeout bounds a look at one federation.
const refreshTimeout = 30 * time.Second

// refresh looks at federations that are due, all at a time: a slow one holds up
// no other for long.
func (e *Engine) refresh(ctx context.Context) {
	var looks sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, fed := range e.all() {
		if !fed.due() {
			continue
		}
		slots <- struct{}{}
		looks.Go(func() {
			defer func() { <-slots }()
			look, cancel := context.WithTimeout(ctx, refreshTimeout)
			defer cancel()
			err := fed.refresh(look)
			var fault *Fault
			if err != nil && !errors.As(err, &fault) && ctx.Err() == nil {
				fed.log.Warn("signals could not be looked at, the next attempt follows", "error", err)
			}
		})
	}
	looks.Wait()
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: two engines would
// decide twice.
func (e *Engine) NeedLeaderElection() bool { return true }
