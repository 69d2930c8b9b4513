// Package energy hosts the signals engine on Kubernetes: one signals/director
// per Federation, its credentials from Secrets, its memory in ConfigMaps.
//
// It owns which director runs and with what, what survives a change of the
// leader, and how the energy decision of a site is said to the other packages.
// It must not know how a site is provisioned, labelled or seated: rules of energy
// are those of package signals, those of membership of operator/membership.
package energy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/signals"
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
}

// Engine runs the directors of all federations. Its methods may be called
// concurrently, and before Start.
type Engine struct {
	options Options
	changed chan event.GenericEvent
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
	return &Engine{options: o, changed: make(chan event.GenericEvent)}, nil
}

// Ensure lets a federation's director run as its spec and those of its sites say;
// sites are those that it has. A *Fault says that the federation's spec cannot be
// acted on, any other error that it could not be tried. A fault of one site is in
// SiteFault and stops no other.
func (e *Engine) Ensure(ctx context.Context, f *v1alpha1.Federation, sites []v1alpha1.Site) error {
	return nil
}

// Forget ends a federation's director; its memory goes with its ConfigMaps.
func (e *Engine) Forget(key types.NamespacedName) {}

// SiteFault is why a site's signal cannot be used; nil if it can.
func (e *Engine) SiteFault(key types.NamespacedName, site string) *membership.Fault { return nil }

// Wish is what energy says of a site, and the signal to be told with it. The
// signal is never nil and the same until Changed says otherwise.
func (e *Engine) Wish(key types.NamespacedName, site string) (membership.Energy, *coordinatorv1.Signal) {
	return membership.Energy{}, &coordinatorv1.Signal{}
}

// SetUnavailable names the sites that cannot be had for now, because their
// capacity failed: the planner passes over them.
func (e *Engine) SetUnavailable(key types.NamespacedName, sites map[string]bool) {}

// Observe takes what the coordinator says: speeds, rounds and ledgers.
func (e *Engine) Observe(key types.NamespacedName, s *coordinatorv1.FederationStatus) {}

// Changed gives the Sites (namespace and name only) whose wish or signal changed.
func (e *Engine) Changed() <-chan event.GenericEvent { return e.changed }

// Handler serves POST /v1/signals/{namespace}/{federation} and
// GET /v1/explain/{namespace}/{federation}/{site}.
func (e *Engine) Handler() http.Handler { return http.NewServeMux() }

// Start runs the directors until ctx ends; it is a manager.Runnable.
func (e *Engine) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: two engines would
// decide twice.
func (e *Engine) NeedLeaderElection() bool { return true }
