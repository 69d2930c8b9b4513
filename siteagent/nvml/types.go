package nvml

// GPUSample is what changes from moment to moment on one GPU. What the GPU does
// not tell is nil: a virtual one has no energy counter, and one in MIG mode no
// utilisation.
type GPUSample struct {
	UUID string `json:"uuid"`
	// Address on the PCI bus as in /sys: domain:bus:device.function.
	Address string `json:"address,omitempty"`
	Model   string `json:"model,omitempty"`
	// EnergyMillijoules since the driver was loaded; it begins anew when the
	// driver forgets the GPU.
	EnergyMillijoules *uint64 `json:"energyMillijoules,omitempty"`
	// PowerWatts of the whole board: the mean of the last second since Ampere
	// (except GA100), of the moment before.
	PowerWatts         *float64 `json:"powerWatts,omitempty"`
	UtilisationPercent *float64 `json:"utilisationPercent,omitempty"`
	MemoryUsedBytes    *uint64  `json:"memoryUsedBytes,omitempty"`
	TemperatureC       *float64 `json:"temperatureC,omitempty"`
	// PowerLimitWatts is in force; Minimum and Maximum are what may be set, and
	// Default is the one after a reset.
	PowerLimitWatts        *float64 `json:"powerLimitWatts,omitempty"`
	MinimumPowerLimitWatts *float64 `json:"minimumPowerLimitWatts,omitempty"`
	MaximumPowerLimitWatts *float64 `json:"maximumPowerLimitWatts,omitempty"`
	DefaultPowerLimitWatts *float64 `json:"defaultPowerLimitWatts,omitempty"`
	// Problem of this GPU alone, such as one that fell off the bus.
	Problem *Error `json:"problem,omitempty"`
}

func (s *GPUSample) keepPossible() {
	keep(&s.PowerWatts, mostWatts)
	keep(&s.UtilisationPercent, 100)
	keep(&s.TemperatureC, mostCelsius)
	for _, v := range []**float64{&s.PowerLimitWatts, &s.MinimumPowerLimitWatts, &s.MaximumPowerLimitWatts, &s.DefaultPowerLimitWatts} {
		keep(v, mostWatts)
	}
}

// Inventory is what NVML says of a machine.
type Inventory struct {
	DriverVersion  string `json:"driverVersion,omitempty"`
	LibraryVersion string `json:"libraryVersion,omitempty"`
	// CUDAVersion is the newest that the driver runs, such as "12.8".
	CUDAVersion string `json:"cudaVersion,omitempty"`
	GPUs        []GPU  `json:"gpus"`
}

// GPU is one physical GPU, or the share of one that a virtual machine has.
type GPU struct {
	GPUSample
	Serial       string `json:"serial,omitempty"`
	VBIOS        string `json:"vbios,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	// Capability is CUDA's compute capability, such as "9.0".
	Capability  string `json:"capability,omitempty"`
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	// MemoryBusyPercent of the time in which memory was read or written.
	MemoryBusyPercent *float64 `json:"memoryBusyPercent,omitempty"`
	// ClockMHz and MaxClockMHz of the multiprocessors.
	ClockMHz    int `json:"clockMHz,omitempty"`
	MaxClockMHz int `json:"maxClockMHz,omitempty"`
	// SlowdownC is where the GPU slows itself down.
	SlowdownC *float64 `json:"slowdownC,omitempty"`
	// Slowdowns in force that mean trouble, such as "thermal slowdown".
	Slowdowns []string `json:"slowdowns,omitempty"`
	// Persistence mode keeps the driver's state without users of the GPU.
	Persistence *bool `json:"persistence,omitempty"`
	// ExclusiveProcess and Prohibited are modes that keep further processes out.
	ComputeMode string `json:"computeMode,omitempty"`
	ECC         *ECC   `json:"ecc,omitempty"`
	// Rows of memory that were replaced by spare ones; since Ampere.
	Rows *Rows `json:"rows,omitempty"`
	// Pages of memory that were retired; before Ampere.
	Pages *Pages `json:"pages,omitempty"`
	// Recovery is what the driver asks for: "", "reset", "reboot", "drain" or
	// "drain and reset".
	Recovery string `json:"recovery,omitempty"`
	// Fabric is the state of the NVLink fabric, where there is one: "not started",
	// "in progress", "completed", or the latter with an error behind.
	Fabric string `json:"fabric,omitempty"`
	MIG    *MIG   `json:"mig,omitempty"`
	// Virtual says in which way the GPU is shared between virtual machines:
	// "passthrough", "vgpu" (a share of one), "host vgpu" or "host vsga" (it is
	// handed out in shares); empty for none.
	Virtual string `json:"virtual,omitempty"`
}

func (g *GPU) keepPossible() {
	g.GPUSample.keepPossible()
	keep(&g.MemoryBusyPercent, 100)
	keep(&g.SlowdownC, mostCelsius)
	g.ClockMHz, g.MaxClockMHz = max(g.ClockMHz, 0), max(g.MaxClockMHz, 0)
}

// ECC is the checking of memory, and the uncorrectable errors that it found.
type ECC struct {
	Enabled bool `json:"enabled"`
	// Pending is the mode after a reboot.
	Pending bool `json:"pending"`
	// Since the driver was loaded, and over the GPU's life.
	Uncorrected *uint64 `json:"uncorrected,omitempty"`
	Lifelong    *uint64 `json:"lifelongUncorrected,omitempty"`
}

// Rows of memory that were remapped.
type Rows struct {
	Corrected   int `json:"corrected"`
	Uncorrected int `json:"uncorrected"`
	// Pending wait for a reset; Failed says that no spare ones were left.
	Pending bool `json:"pending"`
	Failed  bool `json:"failed"`
}

// Pages of memory that were retired.
type Pages struct {
	Retired int  `json:"retired"`
	Pending bool `json:"pending"`
}

// MIG is the division of a GPU into instances.
type MIG struct {
	Enabled bool `json:"enabled"`
	// Pending is the mode after a reset.
	Pending   bool          `json:"pending"`
	Instances []MIGInstance `json:"instances,omitempty"`
}

// MIGInstance is a part of a GPU that a runtime sees as a device.
type MIGInstance struct {
	UUID string `json:"uuid"`
	// Profile such as "3g.40gb", or "1c.3g.40gb" for a share of its processors.
	Profile         string  `json:"profile,omitempty"`
	MemoryBytes     uint64  `json:"memoryBytes,omitempty"`
	MemoryUsedBytes *uint64 `json:"memoryUsedBytes,omitempty"`
	Multiprocessors int     `json:"multiprocessors,omitempty"`
}
