// Package app assembles a coordinator process: configuration, commit log,
// engine, gRPC server, signals, events and metrics, and their order of start
// and end. It is the only place that reads flags and files of configuration.
//
// It must not hold any logic of rounds, merging or energy decisions.
package app

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/broadcast"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/server"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/profiling"
	"girassol.dev/internal/redislink"
	"girassol.dev/internal/wire"
	"girassol.dev/signals"
	"girassol.dev/signals/director"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
)

// Options of a coordinator process.
type Options struct {
	ConfigFiles   []string
	DataDir       string
	Listen        string
	MetricsListen string
	// DebugListen is a loopback address for profiles; empty: none.
	DebugListen string
	// SignalsListen is where pushed signals are taken, with spec.energy.webhook.
	SignalsListen string
	Redis         redislink.Options
	Link          wire.Options
	Identity      IdentityOptions
	Tunnel        TunnelOptions
	Heartbeat     time.Duration
	SnapshotEvery uint64
	KeepUpdates   bool
	// ExternalSignals leaves the energy decisions to who calls Admin.SetMembership
	// with a signal.
	ExternalSignals bool
	ClockStart      time.Time
	ClockSpeed      float64
	// ClockAnchor is the real time at which the signals' clock showed ClockStart;
	// zero: the first start.
	ClockAnchor time.Time
	Log         *slog.Logger
	// Ready is called with the gRPC address once it takes connections.
	Ready func(addr string)
}

const (
	// graceTime is for the streams at work to end, once the engine has.
	graceTime = 3 * time.Second
	// stopTimeout bounds the end of each part after that.
	stopTimeout = 2 * time.Second
)

// Run serves until ctx ends or the coordinator cannot go on.
func Run(ctx context.Context, o Options) (err error) {
	d, err := readFiles(o.ConfigFiles, o.ExternalSignals)
	if err != nil {
		return err
	}
	// A mesh that is declared encrypts below.
	o.Link.AllowInsecure = o.Link.AllowInsecure || d.federation.Spec.Link.Mode == v1alpha1.LinkMesh
	if unused := d.elsewhere(); len(unused) > 0 && !o.ExternalSignals {
		o.Log.Info("these fields are for Kubernetes and count for nothing here", "fields", unused)
	}
	store, err := checkpoint.Open(o.DataDir, o.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	p, err := newProcess(d, store, o)
	if err != nil {
		return err
	}
	return p.serve(ctx)
}

// process is an assembled coordinator.
type process struct {
	o        Options
	d        *declaration
	log      *slog.Logger
	registry *prometheus.Registry
	engine   *engine.Engine
	books    *accountant
	director *director.Director   // nil with external signals
	events   *broadcast.Publisher // nil without Redis
	redis    io.Closer
	fetch    *fetch.Client
	pushed   *pushed // nil without spec.energy.webhook
	grpc     *grpc.Server
	listener net.Listener
	ids      *identities       // nil without mutual TLS
	tunnel   *tunnel           // nil without
	metrics  net.Listener      // nil without
	debug    *profiling.Server // nil without
}

func newProcess(d *declaration, store *checkpoint.Store, o Options) (_ *process, err error) {
	p := &process{o: o, d: d, log: o.Log, registry: prometheus.NewRegistry()}
	defer func() {
		if err == nil {
			return
		}
		if p.listener != nil {
			_ = p.listener.Close()
		}
		p.ids.close()
		p.tunnel.close()
		if p.metrics != nil {
			_ = p.metrics.Close()
		}
		p.stopSignals()
		_ = p.stopEvents() // nothing of importance waits there
	}()
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	name := d.federation.Name
	old, err := readBooks(o.DataDir)
	if err != nil {
		return nil, err
	}
	clock, err := newClock(o, old)
	if err != nil {
		return nil, err
	}
	if p.fetch, err = fetch.New(fetch.Config{Clock: clock, Log: o.Log, Registerer: p.registry}); err != nil {
		return nil, err
	}
	if d.federation.Spec.Energy.Webhook != nil && !d.external {
		p.pushed = &pushed{}
	}
	sites, err := p.sites(clock)
	if err != nil {
		return nil, err
	}
	grids, power, traces := map[string]ledger.Grid{}, map[string]ledger.Power{}, map[string]*replay.Series{}
	for name, s := range sites {
		grids[name], power[name] = s.Grid, s.Power
		if s.Trace != nil {
			traces[name] = s.Trace
		}
	}
	if p.books, err = newAccountant(o.DataDir, clock, o.ClockSpeed, grids, power, old, o.Log); err != nil {
		return nil, err
	}
	hooks := engine.Hooks{Ledger: p.books.entries, SignalsNow: clock.Now, Bytes: func(member string) (uint64, uint64) { return o.Link.Counter.Label(member) }}
	hooks.Observe = newObserver(name, d.sites, p.registry)
	to, err := redisOptions(d, o)
	if err != nil {
		return nil, err
	}
	if to != nil {
		key, err := broadcast.Key(o.DataDir, rand.Reader)
		if err != nil {
			return nil, err
		}
		client, err := redislink.Connect(*to, o.Log)
		if err != nil {
			return nil, fmt.Errorf("spec.events.redis: %w", err)
		}
		p.redis = client
		p.events = broadcast.New(client, name, store.Term(), key, o.Log, p.registry)
		hooks.Announce, hooks.Events, hooks.EventsKey = p.events, p.eventsStatus, key.Public().(ed25519.PublicKey)
	}
	cfg, err := d.engineConfig(o)
	if err != nil {
		return nil, err
	}
	if p.engine, err = engine.New(cfg, store, hooks, o.Log); err != nil {
		return nil, err
	}
	p.registry.MustRegister(newCollector(name, p.engine.Status, o.Link.Counter.Total, p.books.baselines, p.books.accounts))
	if cfg.Data != nil {
		p.registry.MustRegister(newDataCollector(name, p.engine.Status))
	}
	desk, tell, err := p.decide(sites, traces, clock)
	if err != nil {
		return nil, err
	}
	o.Link.Limits.Refused = refusedConnections(name, p.registry, o.Log)
	if p.ids, err = newIdentities(name, &o.Link, &p.o, p.registry); err != nil {
		return nil, err
	}
	if p.tunnel, err = newTunnel(d, o); err != nil {
		return nil, err
	}
	if p.tunnel != nil {
		p.registry.MustRegister(newTunnelCollector(name, p.tunnel.hub.Peers))
		if p.ids != nil {
			p.ids.issuer.Peers = p.tunnel
			if err := p.ids.issuer.EndRevokedKeys(); err != nil {
				return nil, err
			}
		}
	}
	fleet := &server.Fleet{Mesh: d.federation.Spec.Link.Mode == v1alpha1.LinkMesh, Engine: p.engine, Store: store, Counter: o.Link.Counter, Log: o.Log}
	admin := &server.Admin{Engine: p.engine, Energy: desk, Told: tell, Log: o.Log}
	opts := wire.ServerOptions(o.Link)
	if p.ids != nil {
		fleet.Identities, admin.Identities, admin.Revocations = p.ids.issuer, p.ids.issuer, p.ids.revocations
		opts = append(opts, p.ids.revocations.ServerOptions()...)
	}
	p.grpc = grpc.NewServer(opts...)
	coordinatorv1.RegisterFleetServer(p.grpc, fleet)
	coordinatorv1.RegisterAdminServer(p.grpc, admin)
	if p.listener, err = wire.Listen(o.Listen, o.Link); err != nil {
		return nil, err
	}
	if o.MetricsListen != "" {
		if p.metrics, err = net.Listen("tcp", o.MetricsListen); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		p.metrics = wire.Bound(p.metrics, scrapers)
	}
	if o.DebugListen != "" {
		if p.debug, err = profiling.Listen(o.DebugListen, o.Log); err != nil {
			return nil, fmt.Errorf("--debug-listen: %w", err)
		}
	}
	return p, nil
}

func newClock(o Options, old books) (signals.Clock, error) {
	if o.ClockStart.IsZero() && o.ClockSpeed == 1 {
		return signals.Real{}, nil
	}
	start, anchor := o.ClockStart, o.ClockAnchor
	if !anchor.IsZero() {
		return signals.NewVirtual(start, o.ClockSpeed, anchor)
	}
	if !old.Now.IsZero() {
		start = old.Now // a resumed replay goes on where it stopped
	}
	if start.IsZero() {
		start = time.Now()
	}
	return signals.NewVirtual(start, o.ClockSpeed, time.Now())
}

func (d *declaration) engineConfig(o Options) (engine.Config, error) {
	spec := d.federation.Spec
	plan, err := algorithm.FromSpec(spec.Algorithm)
	if err != nil {
		return engine.Config{}, err
	}
	bounds, err := admissionConfig(spec.Admission)
	if err != nil {
		return engine.Config{}, fmt.Errorf("spec.admission.%w", err)
	}
	return engine.Config{
		Federation: d.federation.Name, Round: d.roundConfig(), Algorithm: plan, TrainerConfig: spec.Trainer,
		DataDir: o.DataDir, SnapshotEvery: o.SnapshotEvery, ArchiveUpdates: o.KeepUpdates, MaxModelBytes: maxModelBytes,
		Heartbeat: o.Heartbeat, LossAfter: 3 * o.Heartbeat, InitialModel: spec.Model.Path,
		Suspended: spec.State == v1alpha1.StateSuspended, Data: d.dataConfig(), Gate: d.gateConfig(), Admission: bounds,
	}, nil
}

// maxModelBytes bounds a model that a site offers: 8 GiB.
const maxModelBytes = 8 << 30

// serve runs all parts and ends them in order: signals and members first, the
// engine with its last snapshot, then events and the servers.
func (p *process) serve(ctx context.Context) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	var background sync.WaitGroup
	engineCtx, stopEngine := context.WithCancel(serving)
	defer stopEngine()
	if p.events != nil {
		p.resyncEvents(ctx)
	}
	engineDone := make(chan error, 1)
	go func() { engineDone <- p.engine.Run(engineCtx) }()
	failed := make(chan error, 8)
	background.Go(func() {
		if err := p.grpc.Serve(p.listener); err != nil {
			failed <- fmt.Errorf("gRPC server: %w", err)
		}
	})
	metrics := p.serveMetrics(&background, failed)
	push := p.servePushed(&background, failed)
	sideCtx, stopSide := context.WithCancel(serving)
	defer stopSide()
	enrol := p.ids.serve(sideCtx, &background, &p.o, failed)
	p.tunnel.serve(sideCtx, &background, p.grpc, failed)
	if p.debug != nil {
		background.Go(func() {
			if err := p.debug.Run(sideCtx); err != nil {
				failed <- err
			}
		})
	}
	background.Go(func() { p.books.run(sideCtx, p.engine.Activities) })
	if p.director != nil {
		background.Go(func() { p.direct(sideCtx, failed) })
	}
	p.log.Info("coordinator serves", "federation", p.d.federation.Name, "address", p.listener.Addr().String(), "tls", p.o.Link.Secure())
	if p.o.Ready != nil {
		p.o.Ready(p.listener.Addr().String())
	}
	var err error
	select {
	case <-ctx.Done():
		p.log.Info("coordinator stops", "cause", context.Cause(ctx))
	case err = <-failed:
	case err = <-engineDone:
		engineDone <- nil
	}
	stopSide()
	stopEngine()
	err = errors.Join(err, <-engineDone)
	p.stopServers(metrics, push, enrol)
	p.tunnel.close()
	ended := make(chan struct{})
	go func() { background.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(stopTimeout):
		p.log.Warn("connections that never finished their handshake are left behind")
	}
	p.stopSignals()
	return errors.Join(err, p.stopEvents())
}

func (p *process) serveMetrics(wg *sync.WaitGroup, failed chan<- error) *http.Server {
	if p.metrics == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelError), ErrorHandling: promhttp.ContinueOnError,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", p.ready)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	wg.Go(func() {
		if err := s.Serve(p.metrics); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("metrics server: %w", err)
		}
	})
	return s
}

// ready says whether the engine takes sessions and calls.
func (p *process) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), stopTimeout)
	defer cancel()
	st, err := p.engine.Status(ctx)
	if err != nil {
		http.Error(w, "the engine does not answer: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintf(w, "%s: %s: %s\n", st.GetPhase(), st.GetReason(), st.GetMessage())
}

func (p *process) stopServers(others ...*http.Server) {
	done := make(chan struct{})
	go func() { p.grpc.GracefulStop(); close(done) }()
	select {
	case <-done:
	case <-time.After(graceTime):
		p.log.Warn("streams did not end in time")
		go p.grpc.Stop() // may itself wait for a handshake
	}
	for _, s := range others {
		if s == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		if err := s.Shutdown(ctx); err != nil {
			p.log.Warn("an HTTP server did not end in time", "error", errors.Join(err, s.Close()))
		}
		cancel()
	}
}

// resyncTimeout bounds how long a start waits for Redis to tell what it has.
const resyncTimeout = 2 * time.Second

// resyncEvents publishes again the commits that the stream has not got, after a
// time in which coordinator and Redis were not there together.
func (p *process) resyncEvents(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resyncTimeout)
	defer cancel()
	err := p.events.Resync(ctx, func(after *uint64) []events.Event {
		var from uint64
		if after != nil {
			from = *after
		}
		manifests, err := p.engine.Commits(from)
		if err != nil {
			p.log.Error("missed events cannot be read from the commit log", "error", err)
			return nil
		}
		var out []events.Event
		for _, m := range manifests {
			out = append(out, engine.VersionEvent(m))
		}
		return out
	})
	if err != nil {
		p.log.Warn("Redis is not there; it gets the events when it is back", "error", err)
	}
}

func (p *process) eventsStatus() *coordinatorv1.EventsStatus {
	st := p.events.Status()
	return &coordinatorv1.EventsStatus{State: st.State, Message: st.Message, Published: st.Published, Pending: st.Pending}
}

func (p *process) stopEvents() error {
	if p.events == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := p.events.Close(ctx); err != nil {
		p.log.Warn("events not sent at the end; the next start sends the commits among them", "error", err)
	}
	return p.redis.Close()
}
