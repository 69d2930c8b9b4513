package app

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/internal/coredump"
	"girassol.dev/internal/profiling"
	"girassol.dev/internal/wire"
)

// Command is the coordinator as a command line.
func Command() *cobra.Command {
	o := Options{ClockSpeed: 1}
	var clockStart, clockAnchor, decides, logFormat, logFile string
	cmd := &cobra.Command{
		Use:   "coordinator --config FILE --data DIR",
		Short: "Run the rounds of one federation",
		Long: `Run the rounds of one federation: take the sites' sessions, grant rounds,
merge updates, keep the commit log, decide by energy signals who takes part.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.ErrOrStderr()
			if logFile != "" {
				f, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
				if err != nil {
					return fmt.Errorf("--log-file: %w", err)
				}
				defer f.Close()
				out = f
			}
			var err error
			if o.Log, err = newLogger(out, logFormat); err != nil {
				return err
			}
			if err := coredump.OffForGood(); err != nil {
				o.Log.Warn("a core dump of this process would hold its keys", "error", err)
			}
			if err := setClock(&o, clockStart, clockAnchor); err != nil {
				return err
			}
			switch decides {
			case "internal", "external":
				o.ExternalSignals = decides == "external"
			default:
				return fmt.Errorf("--signals: %q is neither internal nor external", decides)
			}
			if o.Heartbeat < 50*time.Millisecond {
				return fmt.Errorf("--heartbeat: %s is below 50ms", o.Heartbeat)
			}
			if o.SnapshotEvery == 0 {
				return errors.New("--snapshot-every: must be at least 1")
			}
			if o.Link.Limits.Connections < 1 || o.Link.Limits.PerAddress < 1 {
				return errors.New("--max-connections and --max-connections-per-address must be at least 1")
			}
			o.Link.Counter = &wire.Counter{}
			if os.Getenv("GOGC") == "" {
				// Model and updates lie outside the Go heap; what is inside is small, and
				// collecting it early bounds what many uploads at once leave behind.
				debug.SetGCPercent(25)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return Run(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.ConfigFiles, "config", nil, "YAML `file` with the Federation and its Sites; may be repeated (required)")
	f.StringVar(&o.DataDir, "data", "", "`folder` of the commit log; kept over restarts (required)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:7465", "`address` for agents and the girassol command; plaintext on loopback only")
	f.StringVar(&o.MetricsListen, "metrics-listen", "", "`address` for Prometheus, for example 127.0.0.1:9465 (default none)")
	f.StringVar(&o.DebugListen, "debug-listen", "", profiling.Usage)
	f.StringVar(&o.SignalsListen, "signals-listen", "", "`address` for pushed signals, POST /v1/signals, where spec.energy.webhook has sources (default "+defaultSignalsListen+" then)")
	o.Tunnel.flags(f)
	o.Redis.Flags(f, "for events; overrides where spec.events.redis says it is, as each of the next does with its part")
	f.StringVar(&o.Link.CertFile, "tls-cert", "", "PEM `file` with this coordinator's certificate")
	f.StringVar(&o.Link.KeyFile, "tls-key", "", "PEM `file` with its key")
	f.StringVar(&o.Link.CAFile, "tls-ca", "", "PEM `file` with the authority of the agents' certificates")
	o.Identity.flags(f)
	f.BoolVar(&o.Link.AllowInsecure, "insecure", false, "allow plaintext off loopback, where the network below encrypts (default false)")
	f.IntVar(&o.Link.Limits.Connections, "max-connections", 4096, "connections of agents and people at a time; more are closed at once")
	f.IntVar(&o.Link.Limits.PerAddress, "max-connections-per-address", 1024, "connections of one IPv4 address or IPv6 /64 at a time; a mesh or a gateway may bring many agents under one")
	f.Int32Var(&o.Link.Window, "window-bytes", 0, wire.WindowUsage)
	f.DurationVar(&o.Heartbeat, "heartbeat", 5*time.Second, "time between an agent's heartbeats; three missed ones end a session")
	f.Uint64Var(&o.SnapshotEvery, "snapshot-every", 16, "commits between two full snapshots")
	f.BoolVar(&o.KeepUpdates, "keep-updates", false, "archive every accepted update in its commit, for audits (default: only where recovery needs them)")
	f.StringVar(&decides, "signals", "internal", "who decides by energy: internal, or external for an operator that calls SetMembership with a signal")
	f.StringVar(&clockStart, "clock-start", "", "virtual `time` at which a replay starts, RFC 3339 (default: real time)")
	f.Float64Var(&o.ClockSpeed, "clock-speed", 1, "virtual seconds per real second of the signals' clock")
	f.StringVar(&clockAnchor, "clock-anchor", "", "real `time` at which the signals' clock showed --clock-start, RFC 3339, so that several processes share one clock (default: the first start)")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	f.StringVar(&logFile, "log-file", "", "append the log to `file` (default stderr)")
	_ = cmd.MarkFlagRequired("config")
	_ = cmd.MarkFlagRequired("data")
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(exportCommand())
	return cmd
}

// setClock reads the times of the signals' clock.
func setClock(o *Options, start, anchor string) (err error) {
	if start != "" {
		if o.ClockStart, err = time.Parse(time.RFC3339, start); err != nil {
			return fmt.Errorf("--clock-start: %q is not a time like 2026-01-31T00:00:00Z", start)
		}
	}
	if anchor == "" {
		return nil
	}
	if start == "" {
		return errors.New("--clock-anchor: needs --clock-start, the time that was shown then")
	}
	if o.ClockAnchor, err = time.Parse(time.RFC3339Nano, anchor); err != nil {
		return fmt.Errorf("--clock-anchor: %q is not a time like 2026-01-31T00:00:00Z", anchor)
	}
	return nil
}

func newLogger(w io.Writer, format string) (*slog.Logger, error) {
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, nil)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, nil)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is neither text nor json", format)
}
