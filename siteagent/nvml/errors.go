package nvml

// Code is a kind of failure.
type Code string

// The codes. The first ones are of the whole library, from Lost on of one GPU or
// one request, and from Hung on of the child.
const (
	NoProgram    Code = "noProgram"       // agent-nvml is not there or does not start
	NoLibrary    Code = "noLibrary"       // libnvidia-ml.so.1 is not there
	NoDriver     Code = "noDriver"        // the kernel module is not loaded
	Mismatch     Code = "versionMismatch" // the module is of another version than the library
	NoPermission Code = "noPermission"
	TooOld       Code = "tooOld" // the library lacks a function
	Failed       Code = "failed"

	Lost          Code = "gpuLost"
	ResetRequired Code = "resetRequired"
	NotSupported  Code = "notSupported"
	NotFound      Code = "notFound" // no such GPU
	OutOfRange    Code = "outOfRange"

	Hung    Code = "hung"
	Crashed Code = "crashed"
	Garbage Code = "garbage"
	Closed  Code = "closed"
)

// Error is a failure of NVML or on the way to it.
type Error struct {
	Code Code `json:"code"`
	// Detail names what failed.
	Detail string `json:"detail"`
}

func (e *Error) Error() string { return "NVML: " + e.Detail }

// Normal says that the failure is none where there is no NVIDIA GPU.
func (e *Error) Normal() bool {
	return e.Code == NoProgram || e.Code == NoLibrary || e.Code == NoDriver
}

// WayOut is what a person can do; empty when there is nothing.
func (e *Error) WayOut() string { return waysOut[e.Code] }

var waysOut = map[Code]string{
	NoProgram:     "install agent-nvml beside the agent (make build makes it; it needs glibc), or name its path; without it NVIDIA GPUs are read from files only",
	NoLibrary:     "install libnvidia-ml.so.1 of the driver's version (Debian: libnvidia-ml1, Ubuntu: libnvidia-compute-<version>); in a container let the NVIDIA container toolkit give it (runtimeClassName: nvidia, NVIDIA_DRIVER_CAPABILITIES with utility)",
	NoDriver:      "modprobe nvidia; where that fails, install the running kernel's headers and run dkms autoinstall; Secure Boot refuses modules that are not signed",
	Mismatch:      "the driver was upgraded, but the old kernel module still runs: reboot, or end all users of the GPUs and reload the module nvidia; in a container restart the pod",
	NoPermission:  "reading needs /dev/nvidiactl and /dev/nvidia*, and power limits need root (CAP_SYS_ADMIN): run the agent as root, or set the limit with nvidia-smi -pl beforehand",
	TooOld:        "install a newer driver",
	Failed:        "see dmesg | grep NVRM; nvidia-smi asks the same library and should fail alike",
	Lost:          "the GPU has fallen off the bus: see dmesg | grep Xid (79), check power and seating; a reboot or a power cycle may bring it back",
	ResetRequired: "end all processes on the GPU and run nvidia-smi --gpu-reset -i <address>, or reboot",
	NotSupported:  "this GPU or driver does not offer it; virtual GPUs and many consumer cards do not",
	NotFound:      "list GPUs and their UUIDs with nvidia-smi -L",
	OutOfRange:    "choose a limit within the range; nvidia-smi -q -d POWER shows it",
	Hung:          "the driver does not answer: see dmesg | grep -e NVRM -e Xid; a driver being reloaded answers again by itself, else reboot",
	Crashed:       "the driver's library crashed: see dmesg; install a driver whose module and library are of one version",
	Garbage:       "agent-nvml is of another version than the agent: install both from one build",
}
