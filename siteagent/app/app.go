// Package app assembles a site agent from flags: the trainer API and its
// supervisor, the replica on disk, the links to the coordinator and to Redis,
// metrics and signals.
//
// It must not hold any logic of rounds or sessions.
package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/coredump"
	"girassol.dev/internal/profiling"
	"girassol.dev/internal/redislink"
	"girassol.dev/internal/wire"
	"girassol.dev/siteagent/agent"
	"girassol.dev/siteagent/hardware"
	"girassol.dev/siteagent/replica"
	"girassol.dev/siteagent/trainer"
)

// FencedExitCode is the exit code when another agent runs under the same name;
// whoever restarts agents should not restart this one at once.
const FencedExitCode = 3

// replicaFolder below --data.
const replicaFolder = "replica"

// ExitCode of an error that Command returned: 0 without one.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, agent.ErrFenced):
		return FencedExitCode
	}
	return 1
}

type options struct {
	coordinator, federation, site, node string
	data, work, socket                  string
	redis                               redislink.Options
	grace, retryMax                     time.Duration
	link                                wire.Options
	tunnel                              tunnelOptions
	enrol                               enrolOptions
	logFormat, logLevel                 string
	metricsListen, debugListen          string
	trainer                             []string
	patience                            trainerOptions
	nvml                                string
	power                               powerOptions
	restoreDumps                        func(pid int) error // nil: the limit is as it was
}

// allowDumps lets a trainer dump core as it could without the agent: it is the
// user's and holds no secret of ours.
func (o options) allowDumps(pid int, log *slog.Logger) {
	if o.restoreDumps == nil {
		return
	}
	if err := o.restoreDumps(pid); err != nil && !errors.Is(err, syscall.ESRCH) { // else it has ended
		log.Warn("the trainer dumps no core", "error", err)
	}
}

// Command is the agent as a cobra command.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "agent [flags] [-- trainer command...]",
		Short: "Take part in a federation as one member of a site",
		Long: `The agent dials its federation's coordinator, keeps a copy of the model, hands
tasks to a trainer and uploads what it learns.

A command after "--" is the trainer: it is started, and started again when it
ends, with the API's socket and work folder in ` + trainerv1.EnvSocket + ` and
` + trainerv1.EnvWorkDir + `. Without one, a trainer attaches to the socket by itself.

SIGTERM and SIGINT drain: the step at work is finished and uploaded within the
grace; a second one ends at once. Exit code 3 says that another agent runs under
the same name.`,
		Example: `  agent --coordinator fed.example:7465 --federation lm --site porto --data /var/lib/girassol \
    --enrol porto.token --enrol-address fed.example:7467 -- python train.py
  agent --coordinator fed.example:7465 --federation lm --site porto --data /var/lib/girassol \
    --tls-cert agent.pem --tls-key agent-key.pem --tls-ca ca.pem -- python train.py`,
		SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); len(args) > 0 && n != 0 {
				return fmt.Errorf("unexpected argument %q: a trainer command goes behind \"--\"", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.trainer = args
			log, err := newLogger(cmd.ErrOrStderr(), o.logFormat, o.logLevel)
			if err != nil {
				return err
			}
			if o.restoreDumps, err = coredump.Off(); err != nil {
				log.Warn("a core dump of this process would hold its key", "error", err)
			}
			return run(cmd.Context(), o, log)
		},
	}
	host, _ := os.Hostname()
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.coordinator, "coordinator", "", "`address` of the coordinator, host:port (required but with --wireguard-key)")
	f.StringVar(&o.federation, "federation", "", "`name` of the federation (required)")
	f.StringVar(&o.site, "site", "", "`name` of the site, as declared in the federation (required)")
	f.StringVar(&o.node, "node", host, "`name` of this node within the site")
	f.StringVar(&o.data, "data", "", "`folder` for model state, residual and pending update; kept over restarts (required)")
	f.StringVar(&o.work, "work", "", "`folder` for models and results that the trainer sees, best a tmpfs (default: work below --data)")
	f.StringVar(&o.socket, "socket", "", "`path` of the trainer API's Unix socket, at most 107 bytes (default: run/trainer.sock below --work, or in a private temporary folder where that is longer)")
	f.DurationVar(&o.grace, "grace", 25*time.Second, "time from SIGTERM until the agent must be gone; below the pod's grace period")
	f.DurationVar(&o.retryMax, "retry-max", time.Minute, "longest pause between attempts to reach the coordinator")
	f.StringVar(&o.link.CertFile, "tls-cert", "", "PEM `file` with the agent's certificate (mutual TLS; all three files or none)")
	f.StringVar(&o.link.KeyFile, "tls-key", "", "PEM `file` with the certificate's key")
	f.StringVar(&o.link.CAFile, "tls-ca", "", "PEM `file` with the authority of the coordinator's certificate")
	f.StringVar(&o.link.ServerName, "server-name", "", "`name` that the coordinator's certificate must carry (default: the host dialled)")
	o.enrol.flags(f)
	f.BoolVar(&o.link.AllowInsecure, "insecure", false, "allow plaintext off this machine, for networks that encrypt below (default false)")
	f.Int32Var(&o.link.Window, "window-bytes", 0, wire.WindowUsage)
	f.StringVar(&o.logFormat, "log-format", "text", "`format` of log lines: text or json")
	f.StringVar(&o.logLevel, "log-level", "info", "least `level` to log: debug, info, warn or error")
	f.StringVar(&o.metricsListen, "metrics-listen", "", "`address` to serve /metrics and /healthz on, host:port (default none)")
	f.StringVar(&o.debugListen, "debug-listen", "", profiling.Usage)
	o.tunnel.flags(f)
	o.redis.Flags(f, "to read events from; rounds do without")
	nvmlFlag(cmd, &o.nvml)
	o.power.flags(cmd)
	o.patience.flags(cmd)
	for _, name := range []string{"federation", "site", "data"} {
		_ = cmd.MarkFlagRequired(name)
	}
	cmd.AddCommand(exportCommand())
	return cmd
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("--log-format is %q, want text or json", format)
}

// run puts the parts together and takes them apart in the right order: the
// trainer lives until the agent has got its last result.
func run(ctx context.Context, o options, log *slog.Logger) (err error) {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := time.Now()
	if o.work == "" {
		o.work = filepath.Join(o.data, "work")
	}
	if err := o.patience.check(len(o.trainer) > 0); err != nil {
		return err
	}
	if err := o.power.check(); err != nil {
		return err
	}
	counter := &wire.Counter{}
	o.link.Counter = counter
	files, err := o.identity(ctx, log)
	if err != nil {
		return err
	}
	link, address := o.link, o.coordinator
	through, err := o.tunnel.open(o.data, log)
	if err != nil {
		return err
	}
	if through != nil {
		defer through.Close()
		link, address = through.link(o.link), through.address()
	}
	if err := o.reachable(link, address, files != nil); err != nil {
		return err
	}
	if o.socket == "" {
		var remove func()
		if o.socket, remove, err = defaultSocket(o.work, log); err != nil {
			return err
		}
		defer remove()
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	var supervisor *trainer.Supervisor
	api, err := trainer.New(trainer.Options{
		SocketPath: o.socket, WorkDir: o.work, Log: log, Grace: o.patience.grace, StallTimeout: o.patience.stall,
		LastWords: func() string {
			if supervisor == nil {
				return ""
			}
			return supervisor.LastWords()
		},
		OnStall: func(reason string) {
			if supervisor != nil {
				supervisor.Restart(reason)
			}
		},
	})
	if err != nil {
		return err
	}
	gpus := newNVML(o.nvml, log)
	defer func() { err = errors.Join(err, gpus.Close()) }()
	facts := hardware.Summarize(inspect(ctx, gpus))
	if len(o.trainer) > 0 {
		s := trainer.SupervisorOptions{Command: o.trainer, SocketPath: api.SocketPath(), WorkDir: api.WorkDir(), Log: log, OnStart: func(pid int) { o.allowDumps(pid, log) }}
		if err := o.patience.supervise(&s, facts.Vendor, log); err != nil {
			return err
		}
		if supervisor, err = trainer.NewSupervisor(s); err != nil {
			return err
		}
	}
	opening := time.Now()
	store, err := replica.Open(filepath.Join(o.data, replicaFolder), o.federation, log)
	if err != nil {
		if !errors.Is(err, syscall.EWOULDBLOCK) { // else limits are those of the agent whose data it is
			o.power.limiter(o.data, gpus, log).Close()
		}
		return err
	}
	opened := time.Since(opening)
	defer func() { err = errors.Join(err, store.Close()) }()
	limiter := o.power.limiter(o.data, gpus, log)
	defer limiter.Close()
	events, err := connectRedis(o.redis, through.redisDialer(o.tunnel.redis), log)
	if err != nil {
		return err
	}
	config := agent.Config{
		Federation: o.federation, Site: o.site, Node: shortNode(o.node), Version: version(), Hardware: facts,
		Started: started, Opened: opened,
		Dial:    func() (*grpc.ClientConn, error) { return wire.Dial(address, link) },
		Link:    func() *coordinatorv1.Link { return through.facts(link.Secure()) },
		Traffic: counter.Total, Trainer: api, Replica: store,
		CursorPath: filepath.Join(o.data, "events.json"),
		RetryMax:   o.retryMax, Log: log, Registerer: registry,
	}
	if supervisor != nil {
		config.TrainerFault = func() string { return fault(supervisor.State()) }
	}
	meter := o.power.apply(&config, gpus, limiter)
	if events != nil {
		defer func() { _ = events.Close() }()
		config.Redis = events
	}
	a, err := agent.New(config)
	if err != nil {
		return err
	}

	var group sync.WaitGroup
	defer group.Wait()
	aside, endAside := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endAside(nil)
	// Neither the API nor metrics can be done without once asked for.
	start := func(part func(context.Context) error) {
		group.Go(func() {
			if err := part(aside); err != nil && aside.Err() == nil {
				endAside(err)
				cancel()
			}
		})
	}
	start(api.Serve)
	if through != nil {
		start(through.Run)
	}
	if files != nil {
		start(o.renewal(files, log).Run)
	}
	if meter != nil {
		start(meter.Run)
	}
	if supervisor != nil {
		start(supervisor.Run)
	}
	if o.metricsListen != "" {
		l, err := net.Listen("tcp", o.metricsListen)
		if err != nil {
			return fmt.Errorf("--metrics-listen: %w", err)
		}
		log.Info("metrics", "address", l.Addr().String())
		start(func(ctx context.Context) error { return serveMetrics(ctx, l, registry) })
	}
	if o.debugListen != "" {
		s, err := profiling.Listen(o.debugListen, log)
		if err != nil {
			return fmt.Errorf("--debug-listen: %w", err)
		}
		start(s.Run)
	}
	stopSignals := onSignals(cancel, a, o.grace, log)
	defer stopSignals()
	err = a.Run(ctx)
	if cause := context.Cause(aside); cause != nil {
		err = cause
	} else if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = errors.New("ended at once: work of an unfinished round is lost, what was trained before lies on disk in the residual")
	}
	return err
}

// reachable says what is missing to reach the coordinator at address.
func (o *options) reachable(link wire.Options, address string, renews bool) error {
	if err := o.tunnel.check(); err != nil {
		return err
	}
	if address == "" {
		return errors.New("--coordinator: want host:port of the coordinator, or --wireguard-key to reach it through a tunnel")
	}
	if renews && o.coordinator == "" {
		return errors.New("--coordinator: want host:port, where the agent's own certificate is renewed; the session goes through the tunnel")
	}
	return link.Check(address)
}

// onSignals turns the first SIGTERM or SIGINT into a leave and the second into
// an end.
func onSignals(cancel context.CancelFunc, a *agent.Agent, grace time.Duration, log *slog.Logger) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		select {
		case s := <-signals:
			a.Leave(s.String(), grace)
		case <-done:
			return
		}
		select {
		case s := <-signals:
			log.Warn("second signal, ending at once", "signal", s.String())
			cancel()
		case <-done:
		}
	})
	return func() {
		signal.Stop(signals)
		close(done)
		group.Wait()
	}
}

func serveMetrics(ctx context.Context, l net.Listener, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 20 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	l = wire.Bound(l, wire.Limits{Connections: 256, PerAddress: 64, Handshakes: 64})
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// longestNode is what a coordinator takes: a node's name becomes part of the names
// of files.
const longestNode = 63

// shortNode is the node's name, cut and told apart by a hash where it is longer
// than a coordinator takes; Kubernetes allows 253 bytes.
func shortNode(name string) string {
	if len(name) <= longestNode {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	const digits = 8
	return strings.TrimRight(name[:longestNode-digits-1], "-._") + "-" + hex.EncodeToString(sum[:digits/2])
}

// version is the module's, as the build knows it.
func version() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "unknown"
}
