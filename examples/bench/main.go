// Command bench measures what a coordinator needs: memory for a number of
// sites, bytes on the wire per site and round, and transfers and merges against the
// limits of the machine; and how far apart sites of
// unequal speed finish. It starts real coordinator processes (this same binary in
// that role) on loopback and speaks the Fleet protocol to them as so many sites, or
// starts real agents with trainers that are slowed.
//
// It owns synthetic models, synthetic members and the reading of /proc. It must
// not hold any logic of rounds, merging or encoding: what it measures is the
// product's.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"girassol.dev/internal/algorithm"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		switch args[0] {
		case roleCoordinator:
			return runCoordinator(args[1:], stderr)
		case roleAgent:
			return runAgent(args[1:], stderr)
		case roleSink:
			return runSink(args[1:], stdout, stderr)
		case roleTrainer:
			return runTrainer(args[1:], stderr)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func command() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Measure a coordinator's memory and transfers, the bytes on the wire and the spread of unequal sites",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(memoryCommand(), wireCommand(), mixedCommand(), transferCommand())
	return cmd
}

// common is what both benchmarks ask for.
type common struct {
	Sites      []int
	Rounds     int
	Algorithms []string
	Dir        string
	Output     string
}

func (c *common) flags(cmd *cobra.Command, rounds int, sites []int, algorithms []string) {
	f := cmd.Flags()
	f.IntSliceVar(&c.Sites, "sites", sites, "`numbers` of sites, one run each")
	f.IntVar(&c.Rounds, "rounds", rounds, "rounds of a run")
	f.StringSliceVar(&c.Algorithms, "algorithm", algorithms, "`strategies`: diloco, decoupled-momentum, fedavg")
	f.StringVar(&c.Dir, "dir", os.TempDir(), "`folder` below which a temporary one takes models, spools and commit logs")
	f.StringVarP(&c.Output, "output", "o", "table", "table or json")
}

func (c *common) check() error {
	var errs []error
	for _, n := range c.Sites {
		if n < 1 || n > maxSites {
			errs = append(errs, fmt.Errorf("--sites: %d is not 1 to %d", n, maxSites))
		}
	}
	if len(c.Sites) == 0 {
		errs = append(errs, errors.New("--sites: give at least one number"))
	}
	if c.Rounds < 1 {
		errs = append(errs, fmt.Errorf("--rounds: %d is below 1", c.Rounds))
	}
	for _, a := range c.Algorithms {
		if _, err := algorithm.Defaults(a); err != nil {
			errs = append(errs, fmt.Errorf("--algorithm: %w", err))
		}
	}
	if c.Output != "table" && c.Output != "json" {
		errs = append(errs, fmt.Errorf("--output: %q is neither table nor json", c.Output))
	}
	return errors.Join(errs...)
}

// maxSites is far above what one machine can drive.
const maxSites = 64

// inTemp runs f in a new folder below dir and removes it afterwards.
func inTemp(dir string, f func(dir string) error) (err error) {
	tmp, err := os.MkdirTemp(dir, "girassol-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	return f(tmp)
}
