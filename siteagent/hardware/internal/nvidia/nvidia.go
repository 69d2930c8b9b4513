// Package nvidia describes NVIDIA GPUs by the files of their driver in /proc, by
// PCI, and by what NVIDIA's management library (NVML) answers: memory, utilisation,
// temperature, power and its limits, clocks, errors and MIG instances are in no
// file.
//
// It must not know of other vendors, nor how NVML is asked.
package nvidia

import (
	"strconv"
	"strings"

	"girassol.dev/siteagent/hardware/internal/pci"
	"girassol.dev/siteagent/hardware/internal/tree"
	"girassol.dev/siteagent/hardware/machine"
	"girassol.dev/siteagent/nvml"
)

const (
	// driverName is how PCI calls NVIDIA's driver.
	driverName = "nvidia"

	module = "sys/module/nvidia"
	proc   = "proc/driver/nvidia"
)

// Reader of NVIDIA GPUs.
type Reader struct {
	// Ask NVML; it is called only when a GPU is bound to the driver. Nil: files
	// only.
	Ask func() (nvml.Inventory, error)
}

// Read describes the functions that are NVIDIA's, the driver, and what is wrong.
func (r Reader) Read(t tree.Tree, host machine.Report, functions []pci.Function) (gpus []machine.GPU, driver *machine.Driver, problems []machine.Problem) {
	infos := make(map[string]information)
	for _, f := range functions {
		if f.Vendor == pci.NVIDIA {
			g, info := read(t, f)
			gpus = append(gpus, g)
			infos[g.Address] = info
		}
	}
	driver = readDriver(t)
	if len(gpus) == 0 {
		return nil, driver, nil
	}
	m := r.manage(gpus)
	m.merge(gpus, &driver)
	return gpus, driver, diagnose(t, host, gpus, infos, driver, m)
}

// information of one GPU in /proc.
type information struct {
	found           bool
	model, id, bios string
	firmware        string
	minor           int // -1 when unknown
	excluded        bool
}

func parseInformation(text string) information {
	pairs := tree.Pairs(text, ":")
	known := func(key string) string {
		// What the driver has not learnt yet it writes as question marks.
		if v := pairs[key]; !strings.Contains(v, "?") && v != "Unknown" {
			return v
		}
		return ""
	}
	info := information{
		found: true, model: known("Model"), id: known("GPU UUID"), bios: known("Video BIOS"), firmware: known("GPU Firmware"), minor: -1,
		excluded: pairs["GPU Excluded"] == "Yes" || pairs["Blacklisted"] == "Yes",
	}
	if n, err := strconv.ParseUint(pairs["Device Minor"], 10, 16); err == nil {
		info.minor = int(n)
	}
	return info
}

func read(t tree.Tree, f pci.Function) (machine.GPU, information) {
	g := f.GPU(t)
	info := information{minor: -1}
	if text, err := t.Text(proc, "gpus", f.Address, "information"); err == nil {
		info = parseInformation(text)
	}
	if g.Model = info.model; g.Model == "" {
		g.Model = f.Name(t)
	}
	g.ID, g.Firmware = info.id, info.bios
	if info.minor >= 0 {
		g.Nodes = []machine.Node{t.Node("dev/nvidiactl"), t.Node("dev/nvidia-uvm"), t.Node("dev/nvidia" + strconv.Itoa(info.minor))}
		g.Partitions = migInstances(t, info.minor)
	}
	if g.Partitions > 0 {
		g.PartitionMode = "MIG"
	}
	return g, info
}

// migInstances counts compute instances, which the driver lists as capabilities.
func migInstances(t tree.Tree, minor int) (n int) {
	mig := proc + "/capabilities/gpu" + strconv.Itoa(minor) + "/mig"
	for _, gi := range t.List(mig) {
		if !strings.HasPrefix(gi, "gi") {
			continue
		}
		for _, ci := range t.List(mig, gi) {
			if strings.HasPrefix(ci, "ci") {
				n++
			}
		}
	}
	return n
}

func readDriver(t tree.Tree) *machine.Driver {
	d := machine.Driver{Vendor: machine.NVIDIA, Library: library(t), Runtime: parseToolkit(t.String("usr/local/cuda/version.json"))}
	d.Version, d.Flavour = parseVersion(t.String(proc, "version"))
	if d.Version == "" {
		d.Version = t.String(module, "version")
	}
	if d == (machine.Driver{Vendor: machine.NVIDIA}) {
		return nil
	}
	return &d
}

// parseVersion reads /proc/driver/nvidia/version. The version's place in the line
// differs between the two flavours of the module.
func parseVersion(text string) (version, flavour string) {
	line, ok := tree.Pairs(text, ":")["NVRM version"]
	if !ok {
		return "", ""
	}
	for field := range strings.FieldsSeq(line) {
		if isVersion(field) {
			version = field
			break
		}
	}
	flavour = "proprietary"
	if strings.Contains(line, "Open Kernel Module") {
		flavour = "open"
	}
	return version, flavour
}

// isVersion says whether it is numbers with dots between, at least two.
func isVersion(s string) bool {
	if !strings.Contains(s, ".") {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if _, err := strconv.ParseUint(part, 10, 32); err != nil {
			return false
		}
	}
	return true
}

// library finds the version of libcuda by its file's name.
func library(t tree.Tree) string {
	for _, dir := range []string{
		"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib",
		"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/local/nvidia/lib64",
	} {
		for _, name := range t.List(dir) {
			if version, ok := strings.CutPrefix(name, "libcuda.so."); ok && isVersion(version) {
				return version
			}
		}
	}
	return ""
}
