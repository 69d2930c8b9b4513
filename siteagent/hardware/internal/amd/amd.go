// Package amd reads AMD GPUs from the files of the amdgpu driver: its attributes
// in sysfs, its hwmon sensors and the topology of KFD, the driver's compute half.
//
// It must not know of other vendors, nor need ROCm to be installed.
package amd

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"girassol.dev/siteagent/hardware/internal/pci"
	"girassol.dev/siteagent/hardware/internal/tree"
	"girassol.dev/siteagent/hardware/machine"
)

const (
	module  = "sys/module/amdgpu"
	kfdNode = "dev/kfd"
)

// models by PCI device, for drivers too old to tell and cards without a
// readable product name.
var models = map[uint16]string{
	0x738c: "AMD Instinct MI100",
	0x7408: "AMD Instinct MI250X",
	0x740c: "AMD Instinct MI250",
	0x740f: "AMD Instinct MI210",
	0x74a0: "AMD Instinct MI300A",
	0x74a1: "AMD Instinct MI300X",
	0x74a5: "AMD Instinct MI325X",
	0x74b5: "AMD Instinct MI300X VF",
}

// guests are device numbers that only virtual functions have: how a virtual
// machine, which does not see the physical one, knows.
var guests = map[uint16]bool{0x7410: true, 0x74b5: true}

// Reader of AMD GPUs.
type Reader struct{}

// Read describes the functions that are AMD's, the driver, and what is wrong.
func (Reader) Read(t tree.Tree, host machine.Report, functions []pci.Function) (gpus []machine.GPU, driver *machine.Driver, problems []machine.Problem) {
	topology := readTopology(t)
	real := make(map[string]bool)
	for _, f := range functions {
		real[f.Address] = true
	}
	for _, f := range functions {
		if f.Vendor == pci.AMD {
			gpus = append(gpus, read(t, f, topology.of(f.Address, real)))
		}
	}
	driver = readDriver(t, host.Kernel)
	if len(gpus) == 0 {
		return nil, driver, nil
	}
	return gpus, driver, diagnose(t, host, gpus, topology)
}

func readDriver(t tree.Tree, kernel string) *machine.Driver {
	d := machine.Driver{Vendor: machine.AMD, Runtime: t.String("opt/rocm/.info/version")}
	if t.Exists(module) {
		if d.Version = t.String(module, "version"); d.Version == "" {
			d.Version, d.Flavour = kernel, "in-tree"
		}
	}
	if d == (machine.Driver{Vendor: machine.AMD}) {
		return nil
	}
	return &d
}

func read(t tree.Tree, f pci.Function, nodes []node) machine.GPU {
	g := f.GPU(t)
	dir := path.Join(pci.Devices, f.Address)
	g.VirtualFunction = g.VirtualFunction || guests[f.Device]
	if g.Model = t.String(dir, "product_name"); g.Model == "" {
		g.Model = models[f.Device]
	}
	if g.Model == "" {
		g.Model = f.Name(t)
	}
	if f.Driver != "amdgpu" {
		return g
	}
	for _, n := range nodes {
		g.ComputeUnits += n.computeUnits
		g.Architecture, g.ComputeFirmware = n.architecture, n.firmware
	}
	if integrated(t, dir, g.Architecture) {
		g.Kind = machine.Integrated
	}
	g.ID, g.Board, g.Firmware = t.String(dir, "unique_id"), t.String(dir, "serial_number"), t.String(dir, "vbios_version")
	g.MemoryBytes, _ = t.Uint(dir, "mem_info_vram_total")
	if used, ok := t.Uint(dir, "mem_info_vram_used"); ok {
		g.MemoryUsedBytes = &used
	}
	g.BusyPercent = t.Scaled(1, dir, "gpu_busy_percent")
	g.MemoryBusyPercent = t.Scaled(1, dir, "mem_busy_percent")
	g.ClockMHz, g.MaxClockMHz = parseClocks(t.String(dir, "pp_dpm_sclk"))
	g.Temperatures, g.Power = sensors(t, dir)
	g.Errors = memoryErrors(t, dir)
	g.PartitionMode = partitionMode(t, dir)
	if len(nodes) > 1 {
		g.Partitions = len(nodes)
	}
	g.Nodes = deviceNodes(t, dir, nodes)
	return g
}

// integrated tells an APU's graphics from a card. The driver's metrics table
// says so in its header, version 2 and 3 being those of APUs (MI300A reports as
// a card, which it is to a trainer); without it, the architecture does.
func integrated(t tree.Tree, dir, architecture string) bool {
	if f, err := t.Open(path.Join(dir, "gpu_metrics")); err == nil {
		var header [4]byte // size uint16, format revision, content revision
		n, _ := f.Read(header[:])
		_ = f.Close()
		if n == len(header) && header[2] != 0 {
			return header[2] >= 2
		}
	}
	switch architecture {
	case "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037",
		"gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153":
		return true
	}
	return false
}

// parseClocks reads a pp_dpm file: a level, its frequency, and a star at the
// level in use.
func parseClocks(text string) (now, most int) {
	for line := range strings.Lines(text) {
		_, value, _ := strings.Cut(line, ":")
		value, current := strings.CutSuffix(strings.TrimSpace(value), "*")
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.ToLower(strings.TrimSpace(value)), "mhz"), 10, 31)
		if err != nil {
			continue
		}
		most = max(most, int(n))
		if current {
			now = int(n)
		}
	}
	return now, most
}

func partitionMode(t tree.Tree, dir string) string {
	compute, memory := t.String(dir, "current_compute_partition"), t.String(dir, "current_memory_partition")
	if compute == "" || memory == "" {
		return compute + memory
	}
	return compute + "/" + memory
}

// sensors reads hwmon: millidegrees and microwatts.
func sensors(t tree.Tree, dir string) (temperatures []machine.Temperature, power *machine.Power) {
	for _, name := range t.List(dir, "hwmon") {
		hwmon := path.Join(dir, "hwmon", name)
		if t.String(hwmon, "name") != "amdgpu" {
			continue
		}
		for i := 1; i <= 16; i++ {
			sensor := fmt.Sprintf("temp%d_", i)
			c := t.Scaled(1e3, hwmon, sensor+"input")
			if c == nil {
				continue
			}
			label := t.String(hwmon, sensor+"label")
			if label == "" {
				label = strconv.Itoa(i)
			}
			temperatures = append(temperatures, machine.Temperature{Sensor: label, Celsius: *c, CriticalCelsius: t.Scaled(1e3, hwmon, sensor+"crit")})
		}
		p := machine.Power{
			Watts: t.Scaled(1e6, hwmon, "power1_average"), LimitWatts: t.Scaled(1e6, hwmon, "power1_cap"),
			DefaultWatts: t.Scaled(1e6, hwmon, "power1_cap_default"),
			MinimumWatts: t.Scaled(1e6, hwmon, "power1_cap_min"), MaximumWatts: t.Scaled(1e6, hwmon, "power1_cap_max"),
		}
		if p.Watts == nil {
			p.Watts = t.Scaled(1e6, hwmon, "power1_input")
		}
		if p != (machine.Power{}) {
			power = &p
		}
	}
	return temperatures, power
}

// deviceNodes of one GPU: KFD's, which all share, and a render node for each
// partition.
func deviceNodes(t tree.Tree, dir string, nodes []node) []machine.Node {
	found := []machine.Node{t.Node(kfdNode)}
	seen := make(map[string]bool)
	add := func(render string) {
		if !seen[render] {
			seen[render] = true
			found = append(found, t.Node("dev/dri/"+render))
		}
	}
	for _, name := range t.List(dir, "drm") {
		if strings.HasPrefix(name, "renderD") {
			add(name)
		}
	}
	for _, n := range nodes {
		if n.renderMinor > 0 {
			add("renderD" + strconv.Itoa(n.renderMinor))
		}
	}
	return found
}
