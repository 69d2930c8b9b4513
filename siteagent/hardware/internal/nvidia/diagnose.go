package nvidia

import (
	"fmt"

	"girassol.dev/siteagent/hardware/internal/pci"
	"girassol.dev/siteagent/hardware/internal/tree"
	"girassol.dev/siteagent/hardware/machine"
)

type sayer func(severity machine.Severity, device, what, remedy string)

// diagnose judges the GPUs in place and says what is wrong, once for the machine
// where it is the same for all. Without NVML the best health is Unknown.
func diagnose(t tree.Tree, host machine.Report, gpus []machine.GPU, infos map[string]information, driver *machine.Driver, m management) (problems []machine.Problem) {
	said := make(map[string]bool)
	say := func(s machine.Severity, device, what, remedy string) {
		if key := device + what; !said[key] {
			said[key] = true
			problems = append(problems, machine.Problem{Severity: s, Device: device, What: what, Remedy: remedy})
		}
	}
	matching := judgeLibrary(driver, say)
	if !judgeManagement(m, host.Container, gpus, matching, say) {
		matching = false
	}
	if !m.answered() { // else it tells of each GPU
		judgeFabric(t, host.Container, say)
	}
	granted := anyGranted(gpus)
	listed := len(t.List(proc, "gpus")) > 0
	var xids map[string][]int
	if t.Log != nil {
		xids = parseXids(t.Log())
	}
	for i := range gpus {
		g := &gpus[i]
		g.Health = machine.Unusable
		if !judgeDriver(t, g, driver, say) {
			continue
		}
		info := infos[g.Address]
		switch {
		case g.VirtualFunctions > 0:
			say(machine.Note, g.Address, fmt.Sprintf("the GPU is divided into %d virtual functions (vGPU)", g.VirtualFunctions), "run agents in the virtual machines that have them")
			continue
		case !info.found && listed && host.Container:
			say(machine.Note, g.Address, "the GPU is not given to this container", "in a pod ask for nvidia.com/gpu")
			continue
		case !info.found:
			say(machine.Error, g.Address, "the driver is bound to the GPU, but does not list it in /"+proc+"/gpus", "see why with: dmesg | grep NVRM (RmInitAdapter failed, fallen off the bus); a reset or reboot may bring it back")
			continue
		case info.excluded:
			say(machine.Note, g.Address, "the GPU is excluded by the administrator", "remove it from the driver's option NVreg_ExcludedGpus")
			continue
		}
		g.Health = machine.Unknown
		g.Usable = judgeNodes(t, g, host.Container, granted, say) && matching
		if m.answered() {
			judgeManaged(m, g, host.Container, say)
		}
		if g.ID == "" {
			say(machine.Note, g.Address, "the driver has not started the GPU yet, or lost it", "start nvidia-persistenced; if this stays, see dmesg | grep Xid")
		}
		if g.PartitionMode == "MIG" && !m.answered() {
			say(machine.Note, g.Address, fmt.Sprintf("the GPU is divided into %d MIG instances; their profiles and memory are not known without NVML", g.Partitions), "")
		}
		if now, could, narrow := pci.Narrow(t, g.Address); narrow {
			g.Health = machine.Degraded
			say(machine.Warning, g.Address, fmt.Sprintf("the PCIe link has %d of %d lanes", now, could), "reseat the card or check the riser; a slot may have fewer lanes than its size")
		}
		judgeXids(xids[g.Address], g, say)
		if !g.Usable {
			g.Health = machine.Unusable
		}
	}
	return problems
}

// judgeLibrary compares the kernel's half of the driver with the user's, where
// both are seen: CUDA refuses to start when they differ.
func judgeLibrary(d *machine.Driver, say sayer) bool {
	if d == nil || d.Version == "" || d.Library == "" || d.Version == d.Library {
		return true
	}
	say(machine.Error, "", fmt.Sprintf("half-installed driver: the kernel runs %s, but libcuda is %s", d.Version, d.Library),
		"reboot after a driver upgrade, or install the libraries of the running version")
	return false
}

// judgeFabric finds GPUs behind NVSwitches without the service that connects
// them, which CUDA reports as "system not yet initialized". A container does not
// see the service.
func judgeFabric(t tree.Tree, container bool, say sayer) {
	if container || len(t.List("proc/driver/nvidia-nvswitch/devices")) == 0 || t.Exists("run/nvidia-fabricmanager/nv-fabricmanager.pid") {
		return
	}
	say(machine.Warning, "", "the GPUs are joined by NVSwitches, but the fabric manager does not seem to run; CUDA may fail with error 802",
		"install nvidia-fabricmanager of the driver's version and start its service")
}

// judgeDriver says whether NVIDIA's driver has the GPU.
func judgeDriver(t tree.Tree, g *machine.GPU, d *machine.Driver, say sayer) bool {
	switch {
	case g.Driver == driverName:
		return true
	case g.Driver == "nouveau":
		say(machine.Error, g.Address, "the GPU is bound to nouveau, which cannot run CUDA",
			"install NVIDIA's driver, put \"blacklist nouveau\" into /etc/modprobe.d, rebuild the initramfs and reboot")
	case g.Driver == "vfio-pci" || g.Driver == "pci-stub":
		say(machine.Note, g.Address, "the GPU is set aside for a virtual machine (driver "+g.Driver+")", "run the agent in that virtual machine, or bind the GPU to nvidia")
	case g.Driver != "":
		say(machine.Error, g.Address, "the GPU is bound to the driver "+g.Driver+", which cannot run CUDA", "unbind it and load nvidia")
	case t.Exists(module):
		say(machine.Error, g.Address, "the module nvidia is loaded, but has not taken the GPU",
			"see why with: dmesg | grep NVRM; the driver may be too old or too new for this GPU, or only its open flavour may support it")
	case d != nil && d.Library != "":
		say(machine.Error, "", "half-installed driver: libcuda "+d.Library+" is here, but the kernel module nvidia is not loaded",
			"modprobe nvidia; where that fails, install the running kernel's headers and run dkms autoinstall; Secure Boot refuses modules that are not signed")
	default:
		say(machine.Error, "", "an NVIDIA GPU is here, but no driver", "install NVIDIA's driver of the distribution, or the GPU operator on Kubernetes")
	}
	return false
}

// anyGranted says that the process has at least one GPU's own node: those without
// are then not meant for it.
func anyGranted(gpus []machine.GPU) bool {
	for _, g := range gpus {
		if len(g.Nodes) > 0 && g.Nodes[len(g.Nodes)-1].Access != machine.Missing {
			return true
		}
	}
	return false
}

func judgeNodes(t tree.Tree, g *machine.GPU, container, granted bool, say sayer) bool {
	usable := true
	// Setuid, it makes the nodes when a program first asks for CUDA.
	made := t.Exists("usr/bin/nvidia-modprobe")
	for i, n := range g.Nodes {
		own := i == len(g.Nodes)-1
		device := ""
		if own {
			device = g.Address
		}
		switch {
		case n.Access == machine.Denied:
			usable = false
			say(machine.Error, device, "permission denied on "+n.Path, "nvidia-modprobe sets the nodes' mode; NVreg_DeviceFileMode or a group may keep others out; in a pod ask for nvidia.com/gpu")
		case n.Access == machine.Missing && container && granted && own:
			usable = false
			say(machine.Note, device, "the GPU is not given to this container ("+n.Path+" is missing)", "in a pod ask for nvidia.com/gpu")
		case n.Access == machine.Missing && container:
			say(machine.Warning, "", "the driver is loaded, but this container has no "+n.Path, "right if the trainer runs in another container that has it; else run this one with --gpus all, or in a pod ask for nvidia.com/gpu")
		case n.Access == machine.Missing && made:
			say(machine.Note, device, n.Path+" is not there yet; nvidia-modprobe makes it on first use", "")
		case n.Access == machine.Missing:
			usable = false
			say(machine.Error, device, "the driver is loaded, but "+n.Path+" is missing", "install nvidia-modprobe and run nvidia-modprobe -u -c=0, or start nvidia-persistenced")
		}
	}
	return usable
}
