package nvidia

import (
	"fmt"
	"strings"

	"girassol.dev/siteagent/hardware/machine"
	"girassol.dev/siteagent/nvml"
)

// judgeManagement says why NVML as a whole does not answer, where that is a
// fault, and whether CUDA can be expected to start all the same.
func judgeManagement(m management, container bool, gpus []machine.GPU, matching bool, say sayer) bool {
	e := m.failure
	if e == nil {
		return true
	}
	severity := machine.Warning
	switch e.Code {
	case nvml.NoProgram: // Report.NotRead says it
		return true
	case nvml.NoLibrary:
		if container {
			severity = machine.Note // it may be in the trainer's
		}
		say(severity, "", "the driver is loaded, but its management library is missing: "+e.Detail, e.WayOut())
	case nvml.NoDriver:
		if everyNode(gpus, machine.Allowed) { // else the nodes are what is wrong, and said
			say(severity, "", "the driver is loaded, but its management library does not find it: "+e.Detail, "see dmesg | grep NVRM; the driver may be loading or unloading")
		}
	case nvml.Mismatch:
		if !matching { // said of libcuda
			return false
		}
		if !container {
			say(machine.Error, "", "half-installed driver: "+e.Detail, e.WayOut())
			return false
		}
		say(severity, "", "this container's NVIDIA libraries are not the running driver's: "+e.Detail, e.WayOut())
	case nvml.NoPermission:
		if everyNode(gpus, machine.Allowed) {
			say(severity, "", "NVIDIA's management library may not be used: "+e.Detail, e.WayOut())
		}
	default:
		say(severity, "", "NVIDIA's management library does not answer: "+e.Detail, e.WayOut())
	}
	return true
}

func everyNode(gpus []machine.GPU, access machine.Access) bool {
	for _, g := range gpus {
		for _, n := range g.Nodes {
			if n.Access != access {
				return false
			}
		}
	}
	return true
}

// judgeManaged judges a GPU by what NVML says of it. It makes the GPU's health
// known.
func judgeManaged(m management, g *machine.GPU, container bool, say sayer) {
	n, found := m.gpus[g.Address]
	switch {
	case !found && container:
		g.Usable = false
		say(machine.Note, g.Address, "the GPU is not given to this container (NVML does not list it)", "in a pod ask for nvidia.com/gpu")
		return
	case !found:
		g.Usable = false
		say(machine.Error, g.Address, "the driver has the GPU, but NVML does not list it", "see why with: dmesg | grep NVRM; a reset or reboot may bring it back")
		return
	case n.Problem != nil:
		g.Usable = g.Usable && n.Problem.Code != nvml.Lost && n.Problem.Code != nvml.ResetRequired
		severity := machine.Warning
		if !g.Usable {
			severity = machine.Error
		}
		say(severity, g.Address, "NVML cannot ask the GPU: "+n.Problem.Detail, n.Problem.WayOut())
		return
	}
	g.Health = machine.OK
	degraded := func(what, remedy string) {
		g.Health = machine.Degraded
		say(machine.Warning, g.Address, what, remedy)
	}
	judgeMemory(n, g.Errors, degraded)
	if n.Recovery != "" {
		degraded("the driver asks for: "+n.Recovery+" of the GPU", "drain the node; then nvidia-smi --gpu-reset -i "+g.Address+", or reboot where it says so; see dmesg | grep Xid for the reason")
	}
	if len(n.Slowdowns) > 0 {
		degraded("the GPU is slowed down: "+strings.Join(n.Slowdowns, ", "), "check fans, air flow and the power supply; nvidia-smi -q -d PERFORMANCE shows more")
	}
	if n.Fabric != "" && n.Fabric != "completed" {
		degraded("the NVLink fabric is not ready ("+n.Fabric+"); CUDA may fail with error 802", "see that nvidia-fabricmanager of the driver's version runs, and its log")
	}
	judgeModes(n, g, say)
}

func judgeMemory(n nvml.GPU, e *machine.Errors, degraded func(what, remedy string)) {
	if e == nil {
		return
	}
	if e.Uncorrected != nil && *e.Uncorrected > 0 {
		degraded(fmt.Sprintf("%d uncorrectable memory errors since the driver was loaded", *e.Uncorrected), "drain the node and reset the GPU; replace it if they come back")
	}
	if e.NoSpare {
		degraded("a row of memory could not be remapped: no spare rows are left", "replace the GPU")
	}
	if e.Pending {
		degraded("a part of memory is to be retired at the next reset", "end all processes on the GPU and reset it, or reboot")
	}
	if n.ECC != nil && n.ECC.Enabled != n.ECC.Pending {
		degraded("error correction changes at the next reset", "reset the GPU, or reboot")
	}
}

// judgeModes are how an administrator has set the GPU.
func judgeModes(n nvml.GPU, g *machine.GPU, say sayer) {
	switch {
	case n.Virtual == "host vgpu" || n.Virtual == "host vsga":
		g.Usable = false
		say(machine.Note, g.Address, "the GPU is shared out to virtual machines ("+n.Virtual+")", "run agents in the virtual machines that have a share")
	case n.ComputeMode == "prohibited":
		g.Usable = false
		say(machine.Error, g.Address, "the compute mode keeps all processes out", "nvidia-smi -i "+g.Address+" -c DEFAULT")
	case n.ComputeMode != "":
		say(machine.Note, g.Address, "the compute mode is "+n.ComputeMode+": one process at a time", "")
	}
	if m := n.MIG; m != nil {
		if m.Enabled && g.Partitions == 0 {
			g.Usable = false
			say(machine.Error, g.Address, "MIG mode is on, but there is no instance to compute on", "make some with nvidia-smi mig -cgi <profile> -C, or switch it off with nvidia-smi -mig 0")
		}
		if m.Enabled != m.Pending {
			say(machine.Warning, g.Address, "MIG mode changes at the next reset of the GPU", "end all processes on the GPU and run nvidia-smi --gpu-reset, or reboot")
		}
	}
	if n.Persistence != nil && !*n.Persistence && n.Virtual != "vgpu" {
		say(machine.Note, "", "persistence mode is off: the first use of a GPU takes seconds, and its energy counter begins anew each time", "start nvidia-persistenced")
	}
}
