//go:build linux

// Command chaos runs a federation of real processes for a while, breaks one thing
// after the other and looks from outside whether everything that must hold still does.
//
// As root it is a small internet: each process lives in a network namespace of its
// own, and this process carries the packets between them, or does not. Disks are
// tmpfs, small enough to fill. Without root all processes share the loopback and
// each agent's connection goes through a proxy that can stop.
//
// It owns processes, faults and what is looked at. It must not hold any logic of the
// product, whose programs this same binary runs when it is started in their role.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	coordinatorapp "girassol.dev/coordinator/app"
	agentapp "girassol.dev/siteagent/app"
	"girassol.dev/siteagent/trainer/transformer"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	cmd := command()
	if len(args) > 0 {
		roles := map[string]func() *cobra.Command{
			"coordinator": coordinatorapp.Command, "agent": agentapp.Command, "trainer": transformer.Command,
			"source": sourceCommand, "spy": spyCommand,
		}
		if role := roles[args[0]]; role != nil {
			cmd, args = role(), args[1:]
		}
	}
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	if cmd.Name() == "agent" {
		return agentapp.ExitCode(err)
	}
	if err != nil {
		return 1
	}
	return 0
}

// options of a run.
type options struct {
	seed     uint64
	span     time.Duration
	loss     time.Duration
	agents   int
	loopback bool
	keep     string
	inside   bool
	out      io.Writer
}

// sayf tells whoever looks on.
func (o options) sayf(format string, args ...any) { _, _ = fmt.Fprintf(o.out, format, args...) }

func command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use: "chaos", Short: "Break a federation of real processes and look whether it comes to itself", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			if o.seed == 0 {
				o.seed = rand.Uint64N(1 << 32)
			}
			if why := noNamespaces(); why != "" && !o.loopback {
				o.sayf("no network namespaces (%s): all processes share the loopback, and faults of networks and disks are left out\n", why)
				o.loopback = true
			}
			if !o.loopback && !o.inside {
				return apart(o)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return chaos(ctx, o)
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&o.seed, "seed", 0, "`seed` of the choice of faults (default: any, which is printed)")
	f.DurationVar(&o.span, "for", 3*time.Minute, "how long to break things")
	f.DurationVar(&o.loss, "loss-for", 20*time.Second, "how long half of all packets are lost, each time")
	f.IntVar(&o.agents, "agents", 4, "number of sites")
	f.BoolVar(&o.loopback, "loopback", false, "do without namespaces")
	f.StringVar(&o.keep, "keep", "", "`folder` for logs and stores; kept (default: a temporary one, kept when something broke)")
	f.BoolVar(&o.inside, "inside", false, "internal: namespaces are made")
	_ = f.MarkHidden("inside")
	return cmd
}

// noNamespaces says why they cannot be had.
func noNamespaces() string {
	if os.Geteuid() != 0 {
		return "not root"
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return err.Error()
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return err.Error()
	}
	probe := exec.Command("true")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if err := probe.Run(); err != nil {
		return err.Error()
	}
	return ""
}

// apart runs this program again in namespaces of its own, so that nothing of the
// machine's network and mounts is touched.
func apart(o options) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	again := exec.Command(self, "--inside", fmt.Sprint("--seed=", o.seed), fmt.Sprint("--for=", o.span), fmt.Sprint("--loss-for=", o.loss),
		fmt.Sprint("--agents=", o.agents), "--keep="+o.keep)
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := again.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			_ = again.Process.Signal(s)
		}
	}()
	return again.Wait()
}
