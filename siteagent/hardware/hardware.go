// Package hardware owns the facts about the machine that an agent runs on:
// processors, memory and GPUs of any vendor, and what keeps a GPU from being
// used. It is one facade; each vendor's files are read by a package behind it.
//
// It must not know what the facts are told for. A fact that cannot be read is
// left out rather than guessed. Facts come from files in /proc, /sys and /dev,
// and, of NVIDIA GPUs, from NVIDIA's management library (NVML) where somebody who
// can ask it is given.
package hardware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"girassol.dev/siteagent/hardware/internal/amd"
	"girassol.dev/siteagent/hardware/internal/host"
	"girassol.dev/siteagent/hardware/internal/nvidia"
	"girassol.dev/siteagent/hardware/internal/pci"
	"girassol.dev/siteagent/hardware/internal/tree"
	"girassol.dev/siteagent/hardware/machine"
	"girassol.dev/siteagent/nvml"
)

// CPU is the vendor of a machine without GPUs that train.
const CPU = "cpu"

// Facts about a machine.
type Facts struct {
	// Vendor of the accelerators: "nvidia", "amd" or "cpu" without any usable.
	Vendor string
	// Devices of that vendor by model name, one entry for each that a trainer's
	// runtime would count; the processor's without accelerators.
	Devices []string
	// CPUs that this process may use.
	CPUs int
	// MemoryBytes of the machine or of the process's cgroup, whichever is less;
	// 0 when unknown.
	MemoryBytes uint64
	// Driver and Runtime versions of the accelerators, such as "570.86.15" and
	// "CUDA 12.8"; empty when not known.
	Driver, Runtime string
	// Problems are errors and warnings, each with the way out; at most 16.
	Problems []string
}

// NVML describes NVIDIA GPUs; an *nvml.Client does.
type NVML interface {
	Inventory(ctx context.Context) (nvml.Inventory, error)
}

// vendor reads the GPUs of one vendor out of the PCI functions of a machine,
// whose host facts are known already.
type vendor interface {
	Read(t tree.Tree, host machine.Report, functions []pci.Function) ([]machine.GPU, *machine.Driver, []machine.Problem)
}

// Inspect describes the machine that it runs on, and what is wrong with it. NVML
// is asked within the context's time, which may wake GPUs; nil keeps to files.
func Inspect(ctx context.Context, n NVML) machine.Report {
	var ask func() (nvml.Inventory, error)
	if n != nil {
		ask = func() (nvml.Inventory, error) { return n.Inventory(ctx) }
	}
	return inspect(below("/"), runtime.NumCPU(), ask)
}

// below is the tree of files under a folder.
func below(root string) tree.Tree {
	return tree.Tree{
		FS:      os.DirFS(root),
		Allowed: func(name string) bool { return allowed(filepath.Join(root, name)) },
		Log:     kernelLog,
	}
}

func inspect(t tree.Tree, affinity int, ask func() (nvml.Inventory, error)) machine.Report {
	r := host.Read(t, affinity)
	r.GPUs, r.Problems = []machine.GPU{}, []machine.Problem{}
	functions := pci.Functions(t)
	failed := error(&nvml.Error{Code: nvml.NoProgram, Detail: "not asked"})
	nvidiaReader := nvidia.Reader{}
	if ask != nil {
		nvidiaReader.Ask = func() (inv nvml.Inventory, err error) {
			inv, failed = ask()
			return inv, failed
		}
	}
	for _, v := range []vendor{nvidiaReader, amd.Reader{}} {
		gpus, driver, problems := v.Read(t, r, functions)
		r.GPUs, r.Problems = append(r.GPUs, gpus...), append(r.Problems, problems...)
		if driver != nil {
			r.Drivers = append(r.Drivers, *driver)
		}
	}
	if failed != nil && nvidia.Bound(r.GPUs) {
		r.NotRead = []string{notRead(failed)}
	}
	for _, f := range functions {
		if f.Vendor != pci.AMD && f.Vendor != pci.NVIDIA { // screens and GPUs that no reader knows
			g := f.GPU(t)
			g.Model = f.Name(t)
			r.GPUs = append(r.GPUs, g)
		}
	}
	return r
}

// notRead says why NVML was not read. Other reasons than a missing program are
// among the problems too, with their ways out.
func notRead(err error) string {
	text := "NVML (" + err.Error() + "): would add " + nvidia.Adds
	var e *nvml.Error
	if errors.As(err, &e) {
		text = "NVML (" + e.Detail + "): would add " + nvidia.Adds
		if e.Code == nvml.NoProgram {
			text += "; way out: " + e.WayOut()
		}
	}
	return text
}

// Summarize gives the facts that count: of several vendors the one with most
// usable GPUs, since a trainer runs on one.
func Summarize(r machine.Report) Facts {
	f := Facts{Vendor: CPU, CPUs: r.CPU.Usable, MemoryBytes: r.Memory.TotalBytes}
	if limit := r.Memory.LimitBytes; limit != nil {
		f.MemoryBytes = *limit
	}
	devices := make(map[string][]string)
	for _, g := range r.GPUs {
		if !g.Usable {
			continue
		}
		devices[g.Vendor] = append(devices[g.Vendor], names(g)...)
	}
	for _, v := range []string{machine.NVIDIA, machine.AMD} {
		if n := len(devices[v]); n > 0 && (f.Vendor == CPU || n > len(f.Devices)) {
			f.Vendor, f.Devices = v, devices[v]
		}
	}
	if f.Vendor == CPU && r.CPU.Model != "" {
		f.Devices = []string{r.CPU.Model}
	}
	for i, d := range r.Drivers { // of unusable GPUs, the first one's
		if d.Vendor == f.Vendor || f.Vendor == CPU && i == 0 {
			f.Driver, f.Runtime = d.Version, runtimeOf(d)
		}
	}
	f.Problems = lines(r.Problems)
	return f
}

// names of what a runtime counts of a GPU.
func names(g machine.GPU) (all []string) {
	for i := range max(g.Partitions, 1) {
		name := g.Model
		if i < len(g.Instances) && g.Instances[i].Profile != "" {
			name += " MIG " + g.Instances[i].Profile
		}
		all = append(all, name)
	}
	return all
}

// runtimeOf a driver: what it runs at most counts more than what is installed
// beside the agent, since trainers mostly bring their own.
func runtimeOf(d machine.Driver) string {
	name, version := "CUDA", d.Supported
	if version == "" {
		version = d.Runtime
	}
	if d.Vendor == machine.AMD {
		name = "ROCm"
	}
	if version == "" {
		return ""
	}
	return name + " " + version
}

// Most problems, and bytes of one, that facts carry.
const (
	mostProblems = 16
	longestLine  = 500
)

// lines of problems, errors first; notes are left out.
func lines(problems []machine.Problem) (all []string) {
	for _, severity := range []machine.Severity{machine.Error, machine.Warning} {
		for _, p := range problems {
			if p.Severity == severity {
				all = append(all, line(p))
			}
		}
	}
	if more := len(all) - mostProblems; more > 0 {
		all = append(all[:mostProblems-1], fmt.Sprintf("%d more; see all with: agent hardware", more+1))
	}
	return all
}

func line(p machine.Problem) string {
	text := string(p.Severity) + ": "
	if p.Device != "" {
		text += p.Device + ": "
	}
	text += p.What
	if p.Remedy != "" {
		text += "; way out: " + p.Remedy
	}
	return strings.ToValidUTF8(text[:min(len(text), longestLine)], "")
}
