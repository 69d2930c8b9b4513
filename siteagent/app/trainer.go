package app

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/siteagent/trainer"
)

// trainerOptions are the flags of the trainer and of the patience with it.
type trainerOptions struct {
	gpus         []string
	memory       string
	grace, stall time.Duration
}

func (o *trainerOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&o.gpus, "gpus", nil, "`GPUs` that the started trainer sees, by index or UUID, such as 0,2 or MIG-...: sets CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES (default: those variables stay as they are)")
	f.StringVar(&o.memory, "trainer-memory-limit", "", "most `memory` of the started trainer's processes together, such as 24Gi; above it they are killed and started again (default none)")
	f.DurationVar(&o.grace, "trainer-grace", trainer.DefaultGrace, "time after a round's stop time, or after it was told to finish or to drop the task, until a trainer counts as lost and is started again")
	f.DurationVar(&o.stall, "trainer-stall", trainer.DefaultStallTimeout, "longest silence of a trainer at work; above the time of its longest step, the first one with compiling included")
}

// check refuses what cannot be meant.
func (o *trainerOptions) check(command bool) error {
	for _, d := range []struct {
		flag string
		v    time.Duration
	}{{"--trainer-grace", o.grace}, {"--trainer-stall", o.stall}} {
		if d.v < time.Second {
			return fmt.Errorf("%s is %s, must be at least 1s", d.flag, d.v)
		}
	}
	if command {
		return nil
	}
	for flag, given := range map[string]bool{"--gpus": len(o.gpus) > 0, "--trainer-memory-limit": o.memory != ""} {
		if given {
			return fmt.Errorf("%s is for a trainer that the agent starts: give its command behind \"--\", or set it where the trainer is started", flag)
		}
	}
	return nil
}

// supervise puts the options into a supervisor's.
func (o *trainerOptions) supervise(s *trainer.SupervisorOptions, vendor string, log *slog.Logger) error {
	var err error
	if s.MemoryLimit, err = parseBytes(o.memory); err != nil {
		return fmt.Errorf("--trainer-memory-limit: %w", err)
	}
	if s.Env, err = trainer.Visible(vendor, o.gpus); err != nil {
		return fmt.Errorf("--gpus: %w", err)
	}
	s.Env = slices.DeleteFunc(s.Env, func(e string) bool {
		name, value, _ := strings.Cut(e, "=")
		old, set := os.LookupEnv(name)
		if set && old != value && name != "CUDA_DEVICE_ORDER" {
			log.Warn("--gpus takes the place of a variable that was set", "variable", name, "was", old, "is", value)
		}
		return set && name == "CUDA_DEVICE_ORDER" // an order that was chosen is kept
	})
	return nil
}

// parseBytes reads an amount as Kubernetes writes it, "" is 0.
func parseBytes(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	digits := strings.TrimRight(s, "kMGTi")
	unit := map[string]int64{
		"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	}[s[len(digits):]]
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || unit == 0 || !(v > 0) || v*float64(unit) < 1 || v*float64(unit) > 1<<60 {
		return 0, fmt.Errorf("%.40q is no amount of memory such as 24Gi or 800M", s)
	}
	return int64(v * float64(unit)), nil
}

// fault is why a trainer is not running, with the last that it wrote.
func fault(s trainer.State) string {
	if s.Phase != trainer.Backoff && s.Failures < 2 {
		return ""
	}
	text := s.Reason
	if n := len(s.Tail); n > 0 && !strings.Contains(text, s.Tail[n-1]) {
		text += ": " + s.Tail[n-1]
	}
	const most = 300 // bytes in a heartbeat
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
