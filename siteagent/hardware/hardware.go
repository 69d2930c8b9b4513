// Package hardware owns the facts about the machine that an agent runs on:
// processors, memory and GPUs of any vendor, and what keeps a GPU from being
// used. It is one facade; each vendor's files are read by a package behind it.
//
// It must not know what the facts are told for. A fact that cannot be read is
// left out rather than guessed. All of them come from files in /proc, /sys and
// /dev: the agent is a static binary without cgo, so NVIDIA's NVML, a C library,
// is not there. It would add memory, utilisation, temperature, power and limits,
// clocks, ECC errors and MIG profiles of NVIDIA GPUs; AMD's driver has these in
// files.
package hardware

import (
	"os"
	"path/filepath"
	"runtime"

	"girassol.dev/siteagent/hardware/internal/amd"
	"girassol.dev/siteagent/hardware/internal/host"
	"girassol.dev/siteagent/hardware/internal/nvidia"
	"girassol.dev/siteagent/hardware/internal/pci"
	"girassol.dev/siteagent/hardware/internal/tree"
	"girassol.dev/siteagent/hardware/machine"
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
}

// vendor reads the GPUs of one vendor out of the PCI functions of a machine,
// whose host facts are known already.
type vendor interface {
	Read(t tree.Tree, host machine.Report, functions []pci.Function) ([]machine.GPU, *machine.Driver, []machine.Problem)
}

var vendors = []vendor{nvidia.Reader{}, amd.Reader{}}

// Detect reads the facts of the machine that it runs on.
func Detect() Facts { return Summarize(Inspect()) }

// Inspect describes the machine that it runs on, and what is wrong with it.
func Inspect() machine.Report {
	return inspect(below("/"), runtime.NumCPU())
}

// below is the tree of files under a folder.
func below(root string) tree.Tree {
	return tree.Tree{FS: os.DirFS(root), Allowed: func(name string) bool { return allowed(filepath.Join(root, name)) }}
}

func inspect(t tree.Tree, affinity int) machine.Report {
	r := host.Read(t, affinity)
	r.GPUs, r.Problems = []machine.GPU{}, []machine.Problem{}
	functions := pci.Functions(t)
	for _, v := range vendors {
		gpus, driver, problems := v.Read(t, r, functions)
		r.GPUs, r.Problems = append(r.GPUs, gpus...), append(r.Problems, problems...)
		if driver != nil {
			r.Drivers = append(r.Drivers, *driver)
		}
	}
	for _, f := range functions {
		switch f.Vendor {
		case pci.AMD:
		case pci.NVIDIA:
			r.NotRead = []string{nvidia.NotRead}
		default: // screens and GPUs that no reader knows
			g := f.GPU(t)
			g.Model = f.Name(t)
			r.GPUs = append(r.GPUs, g)
		}
	}
	return r
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
		for range max(g.Partitions, 1) {
			devices[g.Vendor] = append(devices[g.Vendor], g.Model)
		}
	}
	for _, v := range []string{machine.NVIDIA, machine.AMD} {
		if n := len(devices[v]); n > 0 && (f.Vendor == CPU || n > len(f.Devices)) {
			f.Vendor, f.Devices = v, devices[v]
		}
	}
	if f.Vendor == CPU && r.CPU.Model != "" {
		f.Devices = []string{r.CPU.Model}
	}
	return f
}
