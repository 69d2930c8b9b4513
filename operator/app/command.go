package app

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"girassol.dev/internal/coredump"
	"girassol.dev/internal/profiling"
	"girassol.dev/signals"
)

// Rates of requests to the API server: its own priorities and fairness bound
// more than that.
const (
	requestsPerSecond = 200
	requestsAtOnce    = 400
)

// Command is the operator as a command line.
func Command() *cobra.Command {
	o := Options{Registry: metrics.Registry}
	var f flags
	cmd := &cobra.Command{
		Use:   "girassol-operator",
		Short: "Run Federations and Sites on Kubernetes",
		Long: `Run Federations and Sites on Kubernetes: coordinators, certificates, agents and
capacity, as energy, spec and sites have it.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Log, err = newLogger(cmd.ErrOrStderr(), f.logFormat, f.logLevel); err != nil {
				return err
			}
			if err := coredump.OffForGood(); err != nil {
				o.Log.Warn("a core dump of this process would hold its keys", "error", err)
			}
			ctrl.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
			klog.SetSlogLogger(o.Log)
			if o.Clock, err = f.clock(); err != nil {
				return err
			}
			if o.Resolve, err = parseResolve(f.resolve); err != nil {
				return err
			}
			if o.Config, err = kubernetes(f.kubeconfig); err != nil {
				return err
			}
			if o.LeaderElect && o.PodNamespace == "" {
				return fmt.Errorf("--leader-elect needs --pod-namespace, in which its Lease is")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return Run(ctx, o)
		},
	}
	f.add(cmd, &o)
	return cmd
}

// flags that are read before they are options.
type flags struct {
	kubeconfig, logFormat, logLevel, clockStart, clockAnchor string
	clockSpeed                                               float64
	resolve                                                  []string
}

func (f *flags) add(cmd *cobra.Command, o *Options) {
	p := cmd.Flags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that reaches the cluster (default $KUBECONFIG, or the cluster in which it runs)")
	p.StringSliceVar(&o.Namespaces, "namespaces", nil, "`namespaces` whose Federations and Sites are served, by commas (default all)")
	p.BoolVar(&o.LeaderElect, "leader-elect", false, "let one of several operators act, by a Lease in --pod-namespace")
	p.StringVar(&o.PodName, "pod-name", "", "`name` of this operator's own pod; the leader labels it (default none: outside of a cluster)")
	p.StringVar(&o.PodNamespace, "pod-namespace", "", "`namespace` of this operator's own pod")
	p.StringVar(&o.Images.Coordinator, "coordinator-image", "girassol-coordinator:latest", "`image` of Federations that name none")
	p.StringVar(&o.Images.Agent, "agent-image", "girassol-agent:latest", "`image` of Federations that name none")
	p.StringVar(&o.Images.Redis, "redis-image", "redis:8", "`image` for events.redis.mode Trial")
	p.StringVar(&o.HealthListen, "health-listen", "", "`address` of /healthz and /readyz (default none)")
	p.StringVar(&o.MetricsListen, "metrics-listen", "", "`address` of /metrics for Prometheus (default none)")
	p.StringVar(&o.DebugListen, "debug-listen", "", profiling.Usage)
	p.StringVar(&o.WebhookListen, "webhook-listen", "", "`address` for pushed signals, POST /v1/signals/NAMESPACE/FEDERATION; served by the leader (default none)")
	p.StringVar(&o.ProvisioningListen, "provisioning-listen", "", "`address` of the provisioning API, /v1/provisioning, and of explanations, /v1/explain/NAMESPACE/FEDERATION/SITE; served by the leader (default none)")
	p.StringVar(&o.ProvisioningToken, "provisioning-token-file", "", "`file` with the bearer token of those who read wishes and explanations (default none: nobody does, callbacks are still taken)")
	p.StringVar(&o.ProvisioningURL, "provisioning-url", "", "public base `URL` of the provisioning API, which provisioners call back (default none: they are polled)")
	p.StringVar(&o.ScalerListen, "scaler-listen", "", "`address` of KEDA's external scaler (default none)")
	p.StringVar(&o.ScalerTLS.CertFile, "scaler-tls-cert", "", "PEM `file` with the scaler's certificate (default: plaintext)")
	p.StringVar(&o.ScalerTLS.KeyFile, "scaler-tls-key", "", "PEM `file` with its key")
	p.StringVar(&o.ScalerTLS.ClientCAFile, "scaler-tls-client-ca", "", "PEM `file`: let in only clients with a certificate of this authority")
	p.StringVar(&o.Traces, "traces", "", "`folder` of the CSV files that Sites name in spec.grid.tracePath (default none)")
	p.StringVar(&f.clockStart, "clock-start", "", "virtual `time` at which a replay of signals starts, RFC 3339 (default: real time)")
	p.StringVar(&f.clockAnchor, "clock-anchor", "", "real `time` at which the virtual one was --clock-start, RFC 3339, so that a replay goes on over restarts (default: now)")
	p.Float64Var(&f.clockSpeed, "clock-speed", 1, "virtual seconds per real second of the signals' clock")
	p.StringArrayVar(&f.resolve, "resolve", nil, "`HOST:PORT=ADDRESS:PORT` of a coordinator's Service, to run outside of the cluster; may be repeated")
	p.StringVar(&f.logFormat, "log-format", "text", "text or json")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

func (f *flags) clock() (signals.Clock, error) {
	if f.clockStart == "" && f.clockAnchor == "" && f.clockSpeed == 1 {
		return signals.Real{}, nil
	}
	now := time.Now()
	start, err := parseTime("--clock-start", f.clockStart, now)
	if err != nil {
		return nil, err
	}
	anchor, err := parseTime("--clock-anchor", f.clockAnchor, now)
	if err != nil {
		return nil, err
	}
	return signals.NewVirtual(start, f.clockSpeed, anchor)
}

func parseTime(flag, value string, otherwise time.Time) (time.Time, error) {
	if value == "" {
		return otherwise, nil
	}
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %q is not a time like 2026-01-31T00:00:00Z", flag, value)
	}
	return t, nil
}

func parseResolve(all []string) (map[string]string, error) {
	out := map[string]string{}
	for _, each := range all {
		from, to, ok := strings.Cut(each, "=")
		if !ok || !strings.Contains(from, ":") || !strings.Contains(to, ":") {
			return nil, fmt.Errorf("--resolve: %q is not HOST:PORT=ADDRESS:PORT", each)
		}
		out[from] = to
	}
	return out, nil
}

// kubernetes reaches the cluster of a kubeconfig, or the one in which it runs.
func kubernetes(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no way to a cluster: %w; give --kubeconfig, or run in a pod with a service account", err)
	}
	config.QPS, config.Burst = requestsPerSecond, requestsAtOnce
	return config, nil
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is none of debug, info, warn, error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is neither text nor json", format)
}
