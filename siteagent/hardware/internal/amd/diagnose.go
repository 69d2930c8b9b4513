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

const permissions = "add the user to the groups that own /dev/kfd and /dev/dri/renderD* (mostly render and video) and log in again; in a pod ask for amd.com/gpu"

// diagnose judges the GPUs in place and says what is wrong, once for the machine
// where it is the same for all.
func diagnose(t tree.Tree, host machine.Report, gpus []machine.GPU, top topology) (problems []machine.Problem) {
	said := make(map[string]bool)
	say := func(s machine.Severity, device, what, remedy string) {
		if key := device + what; !said[key] {
			said[key] = true
			problems = append(problems, machine.Problem{Severity: s, Device: device, What: what, Remedy: remedy})
		}
	}
	granted := anyGranted(gpus)
	for i := range gpus {
		g := &gpus[i]
		if g.Kind == machine.Integrated {
			say(machine.Note, g.Address, "integrated graphics are not used for training", "")
			continue
		}
		g.Health = machine.Unusable
		switch {
		case g.Driver == "vfio-pci" || g.Driver == "pci-stub":
			say(machine.Note, g.Address, "the GPU is set aside for a virtual machine (driver "+g.Driver+")", "run the agent in that virtual machine, or bind the GPU to amdgpu")
			continue
		case g.Driver == "" && !t.Exists(module):
			text, remedy := "an AMD GPU is here, but the driver amdgpu is not loaded", "modprobe amdgpu; where that fails install AMD's amdgpu-dkms for the running kernel, and see dmesg"
			if t.Exists("opt/rocm") {
				text = "half-installed driver: ROCm is installed, but the driver amdgpu is not loaded"
			}
			say(machine.Error, "", text, remedy)
			continue
		case g.Driver == "":
			say(machine.Error, g.Address, "amdgpu is loaded, but has not taken the GPU", "see why with: dmesg | grep amdgpu; missing firmware (package linux-firmware or amdgpu-dkms-firmware) and a failed GPU are the usual causes")
			continue
		case g.Driver != "amdgpu":
			say(machine.Error, g.Address, "the GPU is bound to the driver "+g.Driver+", which cannot compute", "unbind it and load amdgpu")
			continue
		case g.VirtualFunctions > 0:
			say(machine.Note, g.Address, fmt.Sprintf("the GPU is divided into %d virtual functions", g.VirtualFunctions), "run agents where those are, or set sriov_numvfs to 0")
			continue
		case !top.present:
			say(machine.Error, "", "the kernel's amdgpu has no compute half (/sys/class/kfd is missing)", "use a kernel with CONFIG_HSA_AMD, or AMD's amdgpu-dkms")
			continue
		case g.Architecture == "" && top.hidden > 0:
			say(machine.Note, g.Address, "the GPU is not given to this container", "in a pod ask for amd.com/gpu")
			continue
		case g.Architecture == "":
			say(machine.Error, g.Address, "amdgpu shows the GPU, but not for computing (it is not in KFD's topology)", "see why with: dmesg | grep kfd; the slot may lack PCIe atomics, or the GPU may be too old")
			continue
		}
		g.Health = machine.OK
		g.Usable = judgeNodes(g, host.Container, granted, say)
		judgeHealth(t, g, say)
		if !g.Usable {
			g.Health = machine.Unusable
		}
	}
	return problems
}

// anyGranted says that the process has at least one GPU's render node: those
// without are then not meant for it.
func anyGranted(gpus []machine.GPU) bool {
	for _, g := range gpus {
		for _, n := range g.Nodes {
			if g.Kind == machine.Discrete && n.Path != "/"+kfdNode && n.Access != machine.Missing {
				return true
			}
		}
	}
	return false
}

func judgeNodes(g *machine.GPU, container, granted bool, say func(machine.Severity, string, string, string)) bool {
	usable := true
	for _, n := range g.Nodes {
		device := g.Address
		if n.Path == "/"+kfdNode {
			device = ""
		}
		switch {
		case n.Access == machine.Denied:
			usable = false
			say(machine.Error, device, "permission denied on "+n.Path, permissions)
		case n.Access == machine.Missing && container && granted && device != "":
			usable = false
			say(machine.Note, device, "the GPU is not given to this container ("+n.Path+" is missing)", "in a pod ask for amd.com/gpu")
		case n.Access == machine.Missing && container:
			say(machine.Warning, "", "the driver is loaded, but this container has no "+n.Path, "right if the trainer runs in another container that has it; else give it --device=/dev/kfd --device=/dev/dri, or in a pod ask for amd.com/gpu")
		case n.Access == machine.Missing:
			usable = false
			say(machine.Error, device, "the driver is loaded, but "+n.Path+" is missing", "udevadm trigger, and see dmesg | grep -e amdgpu -e kfd")
		}
	}
	return usable
}

func judgeHealth(t tree.Tree, g *machine.GPU, say func(machine.Severity, string, string, string)) {
	dir := path.Join(pci.Devices, g.Address)
	for _, name := range t.List(dir, "ras") {
		block, ok := strings.CutSuffix(name, "_err_count")
		if !ok {
			continue
		}
		if n := parseErrors(t.String(dir, "ras", name)); n > 0 {
			g.Health = machine.Degraded
			say(machine.Warning, g.Address, fmt.Sprintf("%d uncorrectable errors in %s since the driver was loaded", n, block), "drain the node and reset the GPU; replace it if they come back")
		}
	}
	if e := g.Errors; e != nil && (e.Pending || e.NoSpare) {
		g.Health = machine.Degraded
		say(machine.Warning, g.Address, fmt.Sprintf("%d bad pages of memory, some not yet retired", e.Retired), "drain the node and reset the GPU; replace it if pages cannot be retired (rocm-smi --showpendingpages --showunreservablepages)")
	}
	for _, s := range g.Temperatures {
		if s.CriticalCelsius != nil && *s.CriticalCelsius > 0 && s.Celsius >= *s.CriticalCelsius {
			g.Health = machine.Degraded
			say(machine.Warning, g.Address, fmt.Sprintf("sensor %s is at %.0f C, critical is %.0f C", s.Sensor, s.Celsius, *s.CriticalCelsius), "check fans and air flow")
		}
	}
	if now, could, narrow := pci.Narrow(t, g.Address); narrow {
		g.Health = machine.Degraded
		say(machine.Warning, g.Address, fmt.Sprintf("the PCIe link has %d of %d lanes", now, could), "reseat the card or check the riser; a slot may have fewer lanes than its size")
	}
}

// memoryErrors of a GPU that counts them.
func memoryErrors(t tree.Tree, dir string) *machine.Errors {
	if !t.Exists(dir, "ras") {
		return nil
	}
	e := machine.Errors{Checked: true}
	for _, name := range t.List(dir, "ras") {
		if text, err := t.Text(dir, "ras", name); err == nil && strings.HasSuffix(name, "_err_count") {
			if e.Uncorrected == nil {
				e.Uncorrected = new(uint64)
			}
			*e.Uncorrected += parseErrors(text)
		}
	}
	e.Retired, e.Pending, e.NoSpare = parseBadPages(t.String(dir, "ras", "gpu_vram_bad_pages"))
	return &e
}

// parseBadPages reads lines of an address, a size and a letter: R for retired, P
// for waiting, F for not possible.
func parseBadPages(text string) (n int, pending, failed bool) {
	for line := range strings.Lines(text) {
		fields := strings.Split(line, ":")
		if len(fields) != 3 {
			continue
		}
		switch strings.TrimSpace(fields[2]) {
		case "R":
		case "P":
			pending = true
		case "F":
			failed = true
		default:
			continue
		}
		n++
	}
	return n, pending, failed
}

// parseErrors reads a RAS counter file for uncorrectable errors ("ue: 0").
func parseErrors(text string) uint64 {
	n, err := strconv.ParseUint(tree.Pairs(text, ":")["ue"], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
