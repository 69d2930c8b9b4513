// Package machine holds the words in which a machine is described: its
// processors, memory, GPUs and what is wrong with them.
//
// It must not know where a fact comes from. A fact that is not known is left
// out: a pointer is nil, a string empty, a size 0.
package machine

// Vendors of GPUs whose drivers are read.
const (
	NVIDIA = "nvidia"
	AMD    = "amd"
)

// Kind of a display or compute function on the PCI bus.
type Kind string

// Kinds. Only Discrete ones train.
const (
	Discrete   Kind = "gpu"
	Integrated Kind = "integrated"
	BMC        Kind = "bmc"     // a server's remote console
	Emulated   Kind = "virtual" // a virtual machine's screen
	Other      Kind = "other"
)

// Health of a GPU.
type Health string

// Healths. Unknown says that nothing speaks against the device, but that its
// error counters could not be read.
const (
	OK       Health = "ok"
	Degraded Health = "degraded"
	Unusable Health = "unusable"
	Unknown  Health = "unknown"
)

// Severity of a Problem.
type Severity string

// Severities: an Error keeps a GPU from being used, a Warning may.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Note    Severity = "note"
)

// Problem is what is wrong and the way out.
type Problem struct {
	Severity Severity `json:"severity"`
	// Device is the PCI address; empty for the machine.
	Device string `json:"device,omitempty"`
	What   string `json:"what"`
	Remedy string `json:"remedy,omitempty"`
}

// Access to a device node.
type Access string

// Accesses. A missing node in a container may be another container's.
const (
	Allowed Access = "ok"
	Denied  Access = "denied"
	Missing Access = "missing"
)

// Node is a file below /dev through which a device is used.
type Node struct {
	Path   string `json:"path"`
	Access Access `json:"access"`
}

// Temperature of one sensor.
type Temperature struct {
	Sensor  string  `json:"sensor"`
	Celsius float64 `json:"celsius"`
	// CriticalCelsius is where the device stops itself.
	CriticalCelsius *float64 `json:"criticalCelsius,omitempty"`
}

// Power of a device in watts.
type Power struct {
	Watts        *float64 `json:"watts,omitempty"`
	LimitWatts   *float64 `json:"limitWatts,omitempty"`
	DefaultWatts *float64 `json:"defaultLimitWatts,omitempty"`
	MinimumWatts *float64 `json:"minimumLimitWatts,omitempty"`
	MaximumWatts *float64 `json:"maximumLimitWatts,omitempty"`
}

// Errors of a device's memory that it could not correct, and what was done.
type Errors struct {
	// Checked says that memory has error correction, and that it is on.
	Checked bool `json:"checked"`
	// Uncorrected since the driver was loaded, and over the device's life.
	Uncorrected         *uint64 `json:"uncorrected,omitempty"`
	LifelongUncorrected *uint64 `json:"lifelongUncorrected,omitempty"`
	// Retired parts of memory: NVIDIA's remapped rows or retired pages, AMD's bad
	// pages. Pending ones wait for a reset.
	Retired int  `json:"retired"`
	Pending bool `json:"pending"`
	// NoSpare says that a part could not be replaced.
	NoSpare bool `json:"noSpare"`
}

// Instance is a part of a GPU that a runtime sees as a device.
type Instance struct {
	ID string `json:"id"`
	// Profile such as "3g.40gb".
	Profile         string  `json:"profile,omitempty"`
	MemoryBytes     uint64  `json:"memoryBytes,omitempty"`
	MemoryUsedBytes *uint64 `json:"memoryUsedBytes,omitempty"`
	ComputeUnits    int     `json:"computeUnits,omitempty"`
}

// GPU is one PCI function that shows or computes.
type GPU struct {
	// Address is domain:bus:device.function.
	Address string `json:"address"`
	// Vendor is "nvidia", "amd", or the PCI vendor's four digits.
	Vendor string `json:"vendor"`
	Model  string `json:"model"`
	Kind   Kind   `json:"kind"`
	// PCIID is vendor:device in hexadecimal digits.
	PCIID string `json:"pciId"`
	// Driver bound to the function.
	Driver string `json:"driver,omitempty"`
	// ID is the driver's own: an NVIDIA UUID or an AMD unique_id.
	ID string `json:"id,omitempty"`
	// Board is the serial number of the card; GPUs of one card share it.
	Board string `json:"board,omitempty"`
	// Architecture is NVIDIA's name for it, or AMD's gfx number.
	Architecture string `json:"architecture,omitempty"`
	// Capability is CUDA's compute capability.
	Capability   string `json:"computeCapability,omitempty"`
	ComputeUnits int    `json:"computeUnits,omitempty"`
	// Firmware is the version of the video BIOS, ComputeFirmware that of KFD's
	// compute engine.
	Firmware        string `json:"firmware,omitempty"`
	ComputeFirmware string `json:"computeFirmware,omitempty"`
	NUMANode        *int   `json:"numaNode,omitempty"`

	MemoryBytes       uint64   `json:"memoryBytes,omitempty"`
	MemoryUsedBytes   *uint64  `json:"memoryUsedBytes,omitempty"`
	BusyPercent       *float64 `json:"busyPercent,omitempty"`
	MemoryBusyPercent *float64 `json:"memoryBusyPercent,omitempty"`
	// ClockMHz and MaxClockMHz of the compute engine.
	ClockMHz     int           `json:"clockMHz,omitempty"`
	MaxClockMHz  int           `json:"maxClockMHz,omitempty"`
	Temperatures []Temperature `json:"temperatures,omitempty"`
	Power        *Power        `json:"power,omitempty"`
	// Slowdowns in force that mean trouble.
	Slowdowns []string `json:"slowdowns,omitempty"`
	Errors    *Errors  `json:"memoryErrors,omitempty"`
	// Persistence says that the driver keeps the GPU's state while nobody uses it.
	Persistence *bool `json:"persistence,omitempty"`

	// Partitions that a runtime sees as devices; 0 when it is not divided.
	Partitions int `json:"partitions,omitempty"`
	// PartitionMode is AMD's, such as "CPX/NPS4", or "MIG".
	PartitionMode string `json:"partitionMode,omitempty"`
	// Instances are the partitions one by one, where their sizes are known.
	Instances []Instance `json:"instances,omitempty"`
	// VirtualFunction says that this is a share of a GPU that others use too.
	VirtualFunction bool `json:"virtualFunction,omitempty"`
	// VirtualFunctions handed out by this one.
	VirtualFunctions int `json:"virtualFunctions,omitempty"`

	Nodes  []Node `json:"nodes,omitempty"`
	Health Health `json:"health"`
	// Usable by a trainer on this machine.
	Usable bool `json:"usable"`
}

// Driver of a vendor.
type Driver struct {
	Vendor string `json:"vendor"`
	// Version of the kernel module; the kernel's own version for a module of the
	// kernel's tree.
	Version string `json:"version,omitempty"`
	// Flavour is "open", "proprietary" or "in-tree".
	Flavour string `json:"flavour,omitempty"`
	// Library is the version of the user-space driver (libcuda).
	Library string `json:"library,omitempty"`
	// Management is the version of NVIDIA's management library (NVML).
	Management string `json:"management,omitempty"`
	// Runtime is the version of CUDA or ROCm that is installed.
	Runtime string `json:"runtime,omitempty"`
	// Supported is the newest version of CUDA that the driver runs.
	Supported string `json:"supportedRuntime,omitempty"`
}

// CPU and memory of the machine.
type CPU struct {
	Model   string `json:"model,omitempty"`
	Sockets int    `json:"sockets,omitempty"`
	// Threads of the machine.
	Threads int `json:"threads,omitempty"`
	// Usable is what the process may use: affinity and cgroup quota, rounded up.
	Usable int `json:"usable"`
	// QuotaCPUs of the cgroup.
	QuotaCPUs *float64 `json:"quotaCpus,omitempty"`
}

// Memory of the machine in bytes.
type Memory struct {
	TotalBytes     uint64  `json:"totalBytes,omitempty"`
	AvailableBytes uint64  `json:"availableBytes,omitempty"`
	LimitBytes     *uint64 `json:"limitBytes,omitempty"`
}

// Report is everything that was found.
type Report struct {
	Kernel    string    `json:"kernel,omitempty"`
	Container bool      `json:"container"`
	CPU       CPU       `json:"cpu"`
	Memory    Memory    `json:"memory"`
	Drivers   []Driver  `json:"drivers,omitempty"`
	GPUs      []GPU     `json:"gpus"`
	Problems  []Problem `json:"problems"`
	// NotRead names sources that could not be read, why, and what they would add.
	NotRead []string `json:"notRead,omitempty"`
}
