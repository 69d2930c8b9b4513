package app

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/siteagent/agent"
	"girassol.dev/siteagent/hardware"
	"girassol.dev/siteagent/power"
)

// powerOptions are the flags of power and energy. The stated model of the site's
// spec.power is none of them: the coordinator has it and books by it what no agent
// measures, so that there is one.
type powerOptions struct {
	capWatts float64
	measure  bool
	powercap string
	root     string
}

func (o *powerOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Float64Var(&o.capWatts, "power-cap-watts", 0, "cap of each GPU's power in `watts` while rounds are at work; the limit before is put back when training pauses and at the end, after a kill at the next start; for one of several agents on a machine (default no cap)")
	f.BoolVar(&o.measure, "measure-energy", true, "measure the machine's energy; false for all but one of several agents on one machine, which would each tell all of it")
	f.StringVar(&o.powercap, "powercap-root", "", "`folder` in which the machine's /sys/class/powercap and /sys/devices/virtual/powercap are mounted, for containers, from which runtimes hide them (default: those of /)")
	f.StringVar(&o.root, "machine-root", "/", "`folder` whose proc and sys stand for the machine's, for tests")
	_ = f.MarkHidden("machine-root")
}

func (o *powerOptions) check() error {
	if !(o.capWatts >= 0 && o.capWatts <= 10_000) {
		return fmt.Errorf("--power-cap-watts is %g, want the watts of one GPU, 1 to 10000, or 0 for no cap", o.capWatts)
	}
	return nil
}

// sampler measures the machine; nil if it is not to.
func (o *powerOptions) sampler(vendor string, gpus library, log *slog.Logger) *power.Sampler {
	if !o.measure {
		return nil
	}
	s := &power.Sampler{
		Root: os.DirFS(o.root), Now: time.Now, Needs: []power.Part{power.Processor},
		Report: func(faults []power.Fault) { logPower(log, faults) },
	}
	if gpus.Client != nil {
		s.GPUs = gpus
	}
	if o.powercap != "" {
		s.Powercap = os.DirFS(o.powercap)
	}
	if vendor != hardware.CPU {
		// Accelerators draw most of the power. Processors that only root may measure
		// are left out, and what they draw is missing.
		s.Needs = []power.Part{power.Accelerator}
	}
	return s
}

// limiter caps the GPUs, and puts back what an earlier process has left.
func (o *powerOptions) limiter(data string, gpus library, log *slog.Logger) *power.Cap {
	boards := []power.Boards{power.AMDBoards{Root: o.root}}
	if gpus.Client != nil {
		boards = append(boards, power.NVMLBoards{GPUs: gpus})
	}
	return power.NewCap(power.CapOptions{Watts: o.capWatts, Boards: boards, Path: filepath.Join(data, "powercap.json"), Log: log})
}

// apply puts a meter and the cap into the agent's configuration. The meter, which
// may be nil, is to be run.
func (o *powerOptions) apply(c *agent.Config, gpus library, limiter *power.Cap) *power.Sampler {
	c.PowerCap = limiter
	meter := o.sampler(c.Hardware.Vendor, gpus, c.Log)
	if meter != nil {
		c.Energy = meter
	}
	return meter
}

// logPower says which energy counters are there and cannot be read.
func logPower(log *slog.Logger, faults []power.Fault) {
	if len(faults) == 0 {
		log.Info("all energy counters can be read again")
	}
	for _, f := range faults {
		log.Warn("energy counter cannot be read", "device", f.Device, "problem", f.Problem, "cure", f.WayOut)
	}
}
