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
	var output string
	cmd := &cobra.Command{
		Use:   "hardware",
		Short: "Show the machine's processors, memory and GPUs, and what is wrong with them",
		Long: `Show the machine's processors, memory and GPUs as the agent sees them, what keeps
a GPU from being used, and the way out.

Everything is read from files; no GPU is opened or woken. What is not known is
left out. ` + "NVML is not part of this build, so NVIDIA GPUs show no memory,\nutilisation, temperature or power.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch output {
			case "text":
				return writeReport(cmd.OutOrStdout(), hardware.Inspect())
			case "json":
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				e.SetEscapeHTML(false)
				return e.Encode(hardware.Inspect())
			}
			return fmt.Errorf("--output is %q, want text or json", output)
		},
	}
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
		{"kernel module", d.Version}, {"flavour", d.Flavour}, {"library", d.Library}, {"runtime", d.Runtime},
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
	memory, temperature, power := absent, absent, absent
	if g.MemoryBytes > 0 {
		memory = gib(g.MemoryBytes)
	}
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
		g.Address, g.Model, string(g.Kind), or(g.Driver, absent), usable, string(g.Health), memory,
		number(g.BusyPercent, "%.0f%%"), temperature, power, or(strings.Join(gpuDetails(g), ", "), absent),
	}
}

func gpuDetails(g machine.GPU) (details []string) {
	if g.Architecture != "" {
		details = append(details, g.Architecture)
	}
	if g.ComputeUnits > 0 {
		details = append(details, fmt.Sprintf("%d CUs", g.ComputeUnits))
	}
	if g.Board != "" {
		details = append(details, "board "+g.Board)
	}
	if g.PartitionMode != "" {
		details = append(details, g.PartitionMode)
	}
	if g.Partitions > 0 {
		details = append(details, fmt.Sprintf("%d partitions", g.Partitions))
	}
	if g.VirtualFunction {
		details = append(details, "virtual function")
	}
	return details
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
