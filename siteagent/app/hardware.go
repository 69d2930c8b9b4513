package app

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"girassol.dev/siteagent/hardware"
	"girassol.dev/siteagent/hardware/machine"
)

// HardwareCommand shows what an agent would see on this machine.
func HardwareCommand() *cobra.Command {
	var output, program string
	cmd := &cobra.Command{
		Use:   "hardware",
		Short: "Show the machine's processors, memory and GPUs, and what is wrong with them",
		Long: `Show the machine's processors, memory and GPUs as the agent sees them, what keeps
a GPU from being used, and the way out.

AMD GPUs are read from files. NVIDIA GPUs are read from files and through
NVIDIA's management library, which may wake those that nothing keeps awake;
"--nvml off" keeps to files. What is not known is left out.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output is %q, want text or json", output)
			}
			library := newNVML(program, nil)
			defer func() { _ = library.Close() }()
			report := inspect(cmd.Context(), library)
			if output == "text" {
				return writeReport(cmd.OutOrStdout(), report)
			}
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			e.SetEscapeHTML(false)
			return e.Encode(report)
		},
	}
	nvmlFlag(cmd, &program)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format`: text or json")
	return cmd
}

func writeReport(out io.Writer, r machine.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }
	row("CPU", or(r.CPU.Model, "model unknown"), fmt.Sprintf("%d threads, %d usable", r.CPU.Threads, r.CPU.Usable))
	memory := gib(r.Memory.TotalBytes)
	if r.Memory.LimitBytes != nil {
		memory += ", cgroup limit " + gib(*r.Memory.LimitBytes)
	}
	row("Memory", memory)
	if r.Kernel != "" {
		row("Kernel", r.Kernel)
	}
	for _, d := range r.Drivers {
		row("Driver", strings.Join(driverFacts(d), ", "))
	}
	facts := hardware.Summarize(r)
	row("Trains on", fmt.Sprintf("%s: %s", facts.Vendor, or(counted(facts.Devices), "model unknown")))
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if len(r.GPUs) == 0 {
		row("No GPU or display on the PCI bus.")
	} else {
		row("ADDRESS", "MODEL", "KIND", "DRIVER", "USABLE", "HEALTH", "MEMORY", "BUSY", "TEMP", "POWER", "DETAILS")
	}
	for _, g := range r.GPUs {
		row(gpuCells(g)...)
		for _, i := range g.Instances {
			row(instanceCells(i)...)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, p := range r.Problems {
		if i == 0 {
			row("")
		}
		row(problemLine(p))
		if p.Remedy != "" {
			row("    way out: " + p.Remedy)
		}
	}
	for _, source := range r.NotRead {
		row("")
		row("Not read: " + source)
	}
	return w.Flush()
}

func driverFacts(d machine.Driver) []string {
	facts := []string{d.Vendor}
	for _, f := range [...]struct{ name, value string }{
		{"kernel module", d.Version}, {"flavour", d.Flavour}, {"library", d.Library}, {"management library", d.Management},
		{"runtime", d.Runtime}, {"runs CUDA up to", d.Supported},
	} {
		if f.value != "" {
			facts = append(facts, f.name+" "+f.value)
		}
	}
	return facts
}

const absent = "-"

func gpuCells(g machine.GPU) []string {
	usable := "no"
	if g.Usable {
		usable = "yes"
	}
	temperature, power := absent, absent
	hottest := machine.Temperature{}
	for _, s := range g.Temperatures {
		if hottest.Sensor == "" || s.Celsius > hottest.Celsius {
			hottest = s
		}
	}
	if hottest.Sensor != "" {
		temperature = fmt.Sprintf("%.0f C", hottest.Celsius)
	}
	if p := g.Power; p != nil {
		power = number(p.Watts, "%.0f") + "/" + number(p.LimitWatts, "%.0f") + " W"
	}
	return []string{
		g.Address, g.Model, string(g.Kind), or(g.Driver, absent), usable, string(g.Health), usedOf(g.MemoryUsedBytes, g.MemoryBytes),
		number(g.BusyPercent, "%.0f%%"), temperature, power, or(strings.Join(gpuDetails(g), ", "), absent),
	}
}

func gpuDetails(g machine.GPU) (details []string) {
	say := func(when bool, format string, a ...any) {
		if when {
			details = append(details, fmt.Sprintf(format, a...))
		}
	}
	say(g.Architecture != "", "%s", g.Architecture)
	say(g.Capability != "", "compute %s", g.Capability)
	say(g.ComputeUnits > 0, "%d CUs", g.ComputeUnits)
	say(g.MaxClockMHz > 0, "%d/%d MHz", g.ClockMHz, g.MaxClockMHz)
	say(g.Board != "", "board %s", g.Board)
	if p := g.Power; p != nil {
		say(p.MinimumWatts != nil || p.MaximumWatts != nil, "limits %s to %s W", number(p.MinimumWatts, "%.0f"), number(p.MaximumWatts, "%.0f"))
		say(p.DefaultWatts != nil, "default %s W", number(p.DefaultWatts, "%.0f"))
	}
	if e := g.Errors; e != nil {
		say(!e.Checked, "no ECC")
		say(e.Checked, "ECC")
		say(e.Uncorrected != nil && *e.Uncorrected > 0, "%d uncorrectable errors", value(e.Uncorrected))
		say(e.Retired > 0, "%d parts of memory retired", e.Retired)
	}
	say(g.PartitionMode != "", "%s", g.PartitionMode)
	say(g.Partitions > 0 && len(g.Instances) == 0, "%d partitions", g.Partitions)
	say(g.VirtualFunction, "virtual function")
	say(g.VirtualFunctions > 0, "%d virtual functions handed out", g.VirtualFunctions)
	say(len(g.Slowdowns) > 0, "slowed down: %s", strings.Join(g.Slowdowns, ", "))
	return details
}

// instanceCells is a line of a partition below its GPU.
func instanceCells(i machine.Instance) []string {
	details := absent
	if i.ComputeUnits > 0 {
		details = fmt.Sprintf("%d SMs", i.ComputeUnits)
	}
	return []string{"", "MIG " + or(i.Profile, "of unknown profile"), "instance", "", "", "", usedOf(i.MemoryUsedBytes, i.MemoryBytes), "", "", "", details}
}

// usedOf a memory; absent if its size is not known.
func usedOf(used *uint64, total uint64) string {
	switch {
	case total == 0:
		return absent
	case used == nil:
		return gib(total)
	}
	return fmt.Sprintf("%.1f/%s", float64(*used)/(1<<30), gib(total))
}

func value(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

func problemLine(p machine.Problem) string {
	if p.Device != "" {
		return fmt.Sprintf("%s: %s: %s", p.Severity, p.Device, p.What)
	}
	return fmt.Sprintf("%s: %s", p.Severity, p.What)
}

// counted writes equal neighbours once, with their number.
func counted(names []string) string {
	var parts []string
	for i := 0; i < len(names); {
		n := i
		for n < len(names) && names[n] == names[i] {
			n++
		}
		part := names[i]
		if n-i > 1 {
			part = fmt.Sprintf("%d x %s", n-i, part)
		}
		parts, i = append(parts, part), n
	}
	return strings.Join(parts, ", ")
}

func number(v *float64, format string) string {
	if v == nil {
		return absent
	}
	return fmt.Sprintf(format, *v)
}

func gib(bytes uint64) string {
	if bytes == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
