// Package app assembles an operator process: caches, leader election, the signals
// engine, coordinators, clusters, controllers and servers, and their order of
// start and end. It is the only place of the operator that reads flags and the
// environment.
//
// It must not hold any logic of federations or sites.
package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	corev1 "k8s.io/api/core/v1"

	"girassol.dev/operator/apply"
	"girassol.dev/operator/capacity"
	"girassol.dev/operator/controller"
	"girassol.dev/operator/coordinators"
	"girassol.dev/operator/energy"
	"girassol.dev/operator/remote"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/scaler"
	"girassol.dev/signals"
)

// Options of an operator process.
type Options struct {
	// Config reaches the cluster.
	Config *rest.Config
	// Namespaces whose Federations and Sites are served; empty: all.
	Namespaces []string
	// LeaderElect lets one of several operators act; without it this one does.
	LeaderElect bool
	// PodName and PodNamespace are this operator's own; empty outside of a cluster.
	PodName, PodNamespace string
	Images                resources.Images
	// Addresses to listen at, host:port; empty: none. Webhook and provisioning are
	// served by the leader only.
	HealthListen, MetricsListen, WebhookListen, ProvisioningListen, ScalerListen string
	// DebugListen is a loopback address for profiles; empty: none.
	DebugListen string
	ScalerTLS   scaler.TLS
	// ProvisioningToken is the file with the bearer token of those who read wishes and
	// explanations; it is read at each request. Empty: nobody does.
	ProvisioningToken string
	// ProvisioningURL is the public base URL of the provisioning API, for callbacks.
	ProvisioningURL string
	// Traces is the folder of replayed signals; empty: none.
	Traces string
	// Clock of signals; nil: real time.
	Clock signals.Clock
	// Resolve maps addresses of Services to others, for operators outside of the
	// cluster.
	Resolve map[string]string
	// Registry of metrics; served is controller-runtime's.
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// stopTimeout bounds the end of all parts together.
const stopTimeout = 20 * time.Second

// electionID names the Lease.
const electionID = "operator.girassol.dev"

// Run runs an operator until ctx ends or it can no longer lead; then it must not
// go on in the same process.
func Run(ctx context.Context, o Options) error {
	m, err := newManager(o)
	if err != nil {
		return err
	}
	if err := assemble(ctx, m, o); err != nil {
		return err
	}
	o.Log.Info("operator starts", "namespaces", o.Namespaces, "leaderElection", o.LeaderElect)
	return m.Start(ctx)
}

func newManager(o Options) (manager.Manager, error) {
	timeout, skip, bind := stopTimeout, true, o.MetricsListen
	if bind == "" {
		bind = "0"
	}
	health := o.HealthListen
	if health == "" {
		health = "0"
	}
	m, err := ctrl.NewManager(o.Config, manager.Options{
		Scheme: scheme(),
		Cache:  cacheOptions(o.Namespaces),
		// Secrets are read by name, and scale targets of any kind are too: both from
		// the API server.
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		Logger:                        logr.FromSlogHandler(o.Log.Handler()),
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              electionID,
		LeaderElectionNamespace:       o.PodNamespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       metricsserver.Options{BindAddress: bind},
		HealthProbeBindAddress:        health,
		GracefulShutdownTimeout:       &timeout,
		// Names are unique here, and tests run several operators in one process.
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	return m, nil
}

// assemble makes all parts and hands them to the manager.
func assemble(ctx context.Context, m manager.Manager, o Options) error {
	metrics := controller.NewMetrics(o.Registry)
	applier := &apply.Applier{Client: m.GetClient(), Reader: m.GetAPIReader(), Sends: metrics.Applies}
	engine, err := energy.New(energy.Options{
		Client: m.GetClient(), Reader: m.GetAPIReader(), Traces: o.Traces, Clock: o.Clock, Log: o.Log.With("component", "energy"), Registerer: o.Registry,
	})
	if err != nil {
		return err
	}
	directory := &coordinators.Directory{Log: o.Log.With("component", "coordinators"), Resolve: o.Resolve, Observe: engine.Observe}
	clusters := remote.New(remote.Options{Local: m.GetClient(), Secrets: m.GetAPIReader(), Log: o.Log.With("component", "remote")})
	keeper := capacity.New(capacity.Options{Local: m.GetClient(), Callback: o.ProvisioningURL, Log: o.Log.With("component", "capacity")})
	peer, err := self(ctx, m.GetAPIReader(), o)
	if err != nil {
		return err
	}

	var selection controller.Selection
	var answers, wishes, clusterChanges, capacityChanges controller.Fan
	federations := &controller.FederationReconciler{
		Client: m.GetClient(), Reader: m.GetAPIReader(), Applier: applier, Coordinators: directory, Energy: engine, Selection: &selection,
		Answers: &answers, Wishes: &wishes, Images: o.Images, Operator: peer, Now: time.Now, Random: rand.Reader,
		Events: m.GetEventRecorder("girassol-operator"), Metrics: metrics, Log: o.Log.With("controller", "federation"),
	}
	sites := &controller.SiteReconciler{
		Client: m.GetClient(), Reader: m.GetAPIReader(), Applier: applier, Energy: engine, Coordinators: directory, Capacity: keeper, Clusters: clusters,
		Selection: &selection, Wishes: &wishes, ClusterChanges: &clusterChanges, CapacityChanges: &capacityChanges, Answers: &answers,
		Images: o.Images, Now: time.Now, Events: m.GetEventRecorder("girassol-operator"), Metrics: metrics, Log: o.Log.With("controller", "site"),
	}
	return errors.Join(
		federations.SetupWithManager(m),
		sites.SetupWithManager(m),
		m.Add(engine), m.Add(directory), m.Add(leaderOnly(clusters.Start)), m.Add(leaderOnly(keeper.Start)),
		m.Add(leaderOnly(func(ctx context.Context) error { return answers.Follow(ctx, directory.Changed()) })),
		m.Add(leaderOnly(func(ctx context.Context) error { return wishes.Follow(ctx, engine.Changed()) })),
		m.Add(leaderOnly(func(ctx context.Context) error { return clusterChanges.Follow(ctx, clusters.Changed()) })),
		m.Add(leaderOnly(func(ctx context.Context) error { return capacityChanges.Follow(ctx, keeper.Changed()) })),
		role(ctx, m, o),
		serve(m, o, engine, keeper),
		m.AddHealthzCheck("process", healthz.Ping),
		m.AddReadyzCheck("cache", synced(m)),
	)
}

// leaderOnly is a part that only the leader runs.
type leaderOnly func(context.Context) error

// Start runs the part.
func (f leaderOnly) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection says so.
func (leaderOnly) NeedLeaderElection() bool { return true }

// synced is an operator's readiness: it has read what it is to look after. One
// that does not lead is ready too, to take over and to answer KEDA.
func synced(m manager.Manager) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !m.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the cache has not been filled yet")
		}
		return nil
	}
}
