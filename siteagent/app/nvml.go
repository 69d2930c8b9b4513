package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/siteagent/hardware"
	"girassol.dev/siteagent/hardware/machine"
	"girassol.dev/siteagent/nvml"
)

// nvmlOff is the value of --nvml that keeps to files.
const nvmlOff = "off"

func nvmlFlag(cmd *cobra.Command, program *string) {
	cmd.Flags().StringVar(program, "nvml", "", "`path` of agent-nvml, which reads NVIDIA GPUs through NVIDIA's management library, or \""+nvmlOff+"\" (default: agent-nvml beside this program)")
}

// library is a client of NVML, or none.
type library struct{ *nvml.Client }

// newNVML starts nothing yet.
func newNVML(program string, log *slog.Logger) library {
	if program == nvmlOff {
		return library{}
	}
	return library{nvml.New(nvml.Options{Path: program, Log: log})}
}

// Close puts power limits back and ends the child.
func (l library) Close() error {
	if l.Client == nil {
		return nil
	}
	return l.Client.Close()
}

// longestLook at the machine: a driver that hangs must not hold up the agent.
const longestLook = 20 * time.Second

func inspect(ctx context.Context, l library) machine.Report {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, longestLook)
	defer cancel()
	if l.Client == nil {
		return hardware.Inspect(ctx, nil)
	}
	return hardware.Inspect(ctx, l.Client)
}
