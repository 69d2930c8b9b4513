// Command quickstart shows a whole federation on one machine: it writes the
// configuration, starts a coordinator, an agent and a trainer per site as
// processes of their own, shows them at work and reports what came of it.
//
// It owns processes, flags and the order of things. It must not hold any logic
// of rounds, energy decisions or training: those are the product's packages,
// which this same binary runs when it is started in their role.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	coordinatorapp "girassol.dev/coordinator/app"
	"girassol.dev/examples/quickstart/plan"
	agentapp "girassol.dev/siteagent/app"
	"girassol.dev/siteagent/trainer/transformer"
)

// The roles in which the binary executes itself.
const (
	roleCoordinator = "coordinator"
	roleAgent       = "agent"
	roleTrainer     = "trainer"
)

// exitInterrupted is the exit code after Ctrl-C, as shells have it.
const exitInterrupted = 130

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		role := map[string]func() *cobra.Command{
			roleCoordinator: coordinatorapp.Command, roleAgent: agentapp.Command, roleTrainer: transformer.Command,
		}[args[0]]
		if role != nil {
			return runRole(role(), args, stderr)
		}
	}
	code := 0
	cmd := command(stdout, stderr, &code)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return max(code, 1)
	}
	return code
}

// runRole is a child process: the coordinator, an agent or a trainer.
func runRole(cmd *cobra.Command, args []string, stderr io.Writer) int {
	if args[0] != roleTrainer {
		holdLifeline()
	}
	cmd.SetArgs(args[1:])
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", args[0], err)
	}
	if args[0] == roleAgent {
		return agentapp.ExitCode(err)
	}
	if err != nil {
		return 1
	}
	return 0
}

// command is the demo itself.
func command(stdout, stderr io.Writer, code *int) *cobra.Command {
	o := plan.Options{Algorithm: plan.DefaultAlgorithm, Speed: plan.DefaultSpeed, Seed: 1, Out: plan.DefaultOut}
	cmd := &cobra.Command{
		Use:   "quickstart [flags] [-- trainer arguments]",
		Short: "Train one model across sites that come and go with clean electricity",
		Long: `Train one byte-level transformer across sites that come and go with clean
electricity, all on this machine: a coordinator, and for each site an agent and a
trainer, each a process of its own. Electricity is generated and replayed fast,
18 hours in two minutes; everything else is real. At the end a table is printed
and a report written.

Ctrl-C stops cleanly; --resume goes on where a run stopped. Arguments after "--"
go to the trainers (see quickstart trainer --help).`,
		Example: `  quickstart
  quickstart --algorithm diloco --sites 4 --compare
  quickstart --data ~/texts --speed 270
  quickstart --resume`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); len(args) > 0 && n != 0 {
				return fmt.Errorf("unexpected argument %q; trainer arguments go after \"--\"", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed
			if given("sites") && o.Sites < 1 {
				return fmt.Errorf("--sites: %d is not between 1 and 16", o.Sites)
			}
			if len(args) > 0 {
				o.Trainer = args
			}
			if err := o.Check(); err != nil {
				return err
			}
			if _, err := trainerConfig(o.Trainer); err != nil {
				return err
			}
			err := demo(cmd.Context(), o, given, stdout, stderr)
			if errors.Is(err, errInterrupted) {
				*code = exitInterrupted
				return nil
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Algorithm, "algorithm", o.Algorithm, "`name` of the way to merge: decoupled-momentum, diloco or fedavg")
	f.IntVar(&o.Sites, "sites", 0, "`number` of sites, 1 to 16 (default 3, or with --data one per sub-folder)")
	f.Float64Var(&o.Speed, "speed", o.Speed, "virtual `seconds` per real second, 1 to 36000; 540 plays the 18 hours in two minutes")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "`seed` of traces, text split, first weights and sampling")
	f.Int64Var(&o.Rounds, "rounds", 0, "stop after so many committed `rounds`; 0 runs until the trace ends (default 0)")
	f.StringVar(&o.Out, "out", o.Out, "`folder` for configuration, logs, model and report; an earlier run in it is replaced")
	f.StringVar(&o.Data, "data", "", "`folder` of text to train on, a site per sub-folder or an even split (default: the Go source tree)")
	f.StringVar(&o.Redis, "redis", "", "`URL` of a Redis for events, redis://host:port/db (default: one embedded in this process)")
	f.StringVar(&o.Metrics, "metrics-listen", "", "`address` at which the coordinator serves Prometheus, for example 127.0.0.1:9465 (default none)")
	f.BoolVar(&o.Resume, "resume", false, "go on with the run in --out where it stopped (default false)")
	f.BoolVar(&o.Compare, "compare", false, "afterwards train each site alone and all text in one place, with the same tokens; takes minutes more (default false)")
	f.BoolVar(&o.Plain, "plain", false, "print log lines instead of the live view, as is done when the output is no terminal (default false)")
	f.BoolVar(&o.Keep, "keep", false, "keep the stores of coordinator and sites after a completed run (default false)")
	return cmd
}
