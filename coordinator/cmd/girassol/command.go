package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

const (
	defaultAddress = "127.0.0.1:7465"
	addressEnv     = "GIRASSOL_ADDRESS"
)

// callTimeout of everything but watch.
const callTimeout = 10 * time.Second

// options of all commands.
type options struct {
	address string
	link    wire.Options
	output  string
}

func (o *options) json() bool { return o.output == "json" }

func command(getenv func(string) string) *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "girassol",
		Short: "See and steer a federation through its coordinator",
		Long: `See and steer a federation through its coordinator.

Exit codes: 0 done, 1 failed, 2 a command line that makes no sense.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if o.output != "table" && o.output != "json" {
				return usageError{fmt.Errorf("--output %q: want table or json", o.output)}
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	address := getenv(addressEnv)
	if address == "" {
		address = defaultAddress
	}
	f := root.PersistentFlags()
	f.StringVar(&o.address, "address", address, "`host:port` of the coordinator; "+addressEnv+" sets the default")
	f.StringVar(&o.link.CertFile, "tls-cert", "", "PEM `file` with a certificate of yours")
	f.StringVar(&o.link.KeyFile, "tls-key", "", "PEM `file` with its key")
	f.StringVar(&o.link.CAFile, "tls-ca", "", "PEM `file` with the authority of the coordinator's certificate")
	f.StringVar(&o.link.ServerName, "tls-server-name", "", "`name` in the coordinator's certificate (default the host of --address)")
	f.BoolVar(&o.link.AllowInsecure, "insecure", false, "allow plaintext off loopback, where the network below encrypts")
	f.StringVarP(&o.output, "output", "o", "table", "`format`: table or json")
	root.AddCommand(statusCommand(o), watchCommand(o), drainCommand(o), admitCommand(o), excludeCommand(o), pauseCommand(o), resumeCommand(o), rollbackCommand(o), explainCommand(o), overrideCommand(o), reportCommand(o), signalCommand(o), simulateCommand(o), initCommand(o), tokenCommand(o), identitiesCommand(o), revokeCommand(o), linkCommand(o), wireguardCommand(), redisCommand(), versionCommand(o))
	return root
}

// exactly wants so many arguments, named for the message.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(names) == 0 {
			return usageError{fmt.Errorf("unexpected argument %q", args[0])}
		}
		return usageError{fmt.Errorf("want %s, got %d arguments", strings.Join(names, " and "), len(args))}
	}
}

// with calls f with a client, and puts its error into words.
func (o *options) with(ctx context.Context, f func(coordinatorv1.AdminClient) error) error {
	conn, err := wire.Dial(o.address, o.link)
	if err != nil {
		return flagError(err)
	}
	defer func() { _ = conn.Close() }()
	return o.explain(f(coordinatorv1.NewAdminClient(conn)))
}

// call is with, for one exchange.
func (o *options) call(ctx context.Context, f func(context.Context, coordinatorv1.AdminClient) error) error {
	return o.with(ctx, func(c coordinatorv1.AdminClient) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return f(ctx, c)
	})
}

func pauseCommand(o *options) *cobra.Command {
	var message string
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Let the round in flight end and grant no other",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.Pause(ctx, &coordinatorv1.PauseRequest{Message: message})
				if err != nil {
					return err
				}
				return o.answer(cmd.OutOrStdout(), resp, "paused: the round in flight ends, no other starts until girassol resume")
			})
		},
	}
	cmd.Flags().StringVar(&message, "message", "", "`text` that says why, for others to read")
	return cmd
}

func resumeCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "resume",
		Short: "Go on after a pause",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.Resume(ctx, &coordinatorv1.ResumeRequest{})
				if err != nil {
					return err
				}
				return o.answer(cmd.OutOrStdout(), resp, "resumed")
			})
		},
	}
}

func versionCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which girassol this is",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
				Grpc     string `json:"grpc"`
				Platform string `json:"platform"`
			}{"unknown", "", runtime.Version(), grpc.Version, runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				v.Version = info.Main.Version
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						v.Revision = s.Value
					}
				}
			}
			if o.json() {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "girassol %s, %s, %s\n", v.Version, v.Go, v.Platform)
			return err
		},
	}
}
