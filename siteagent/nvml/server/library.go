package server

// Library is NVML as far as it is needed. Errors are *nvml.Error where the kind is
// known; a call that a GPU does not support gives an error as any other.
type Library interface {
	// Open loads and initializes the library, which opens /dev/nvidiactl and wakes
	// the GPUs. Close undoes all of it.
	Open() error
	Close() error
	DriverVersion() (string, error)
	LibraryVersion() (string, error)
	// CUDAVersion is 1000 * major + 10 * minor.
	CUDAVersion() (int, error)
	// Count of GPUs, those that the process may not use among them.
	Count() (int, error)
	Device(index int) (Device, error)
	DeviceByUUID(uuid string) (Device, error)
}

// Device is a GPU or, as far as it goes, a MIG instance.
type Device interface {
	UUID() (string, error)
	Name() (string, error)
	Serial() (string, error)
	VBIOS() (string, error)
	// PCI address; the function is always 0.
	PCI() (domain, bus, device uint32, err error)
	// Architecture is NVML's number.
	Architecture() (uint32, error)
	Capability() (major, minor int, err error)

	Memory() (totalBytes, usedBytes uint64, err error)
	// Utilisation in percent of the processors and of memory.
	Utilisation() (gpu, memory uint32, err error)
	Celsius() (uint32, error)
	SlowdownCelsius() (uint32, error)
	MHz() (now, most uint32, err error)
	// Slowdowns are NVML's bits of reasons why clocks are low.
	Slowdowns() (uint64, error)

	EnergyMillijoules() (uint64, error)
	Milliwatts() (uint32, error)
	LimitMilliwatts() (uint32, error)
	DefaultLimitMilliwatts() (uint32, error)
	LimitRangeMilliwatts() (least, most uint32, err error)
	SetLimitMilliwatts(uint32) error

	Persistence() (bool, error)
	// Processes that compute or draw on the GPU.
	Processes() (int, error)
	ComputeMode() (uint32, error)
	Virtualization() (uint32, error)

	ECC() (enabled, pending bool, err error)
	// UncorrectedErrors since the driver was loaded, or over the GPU's life.
	UncorrectedErrors(lifelong bool) (uint64, error)
	RemappedRows() (corrected, uncorrected int, pending, failed bool, err error)
	RetiredPages() (int, error)
	RetiredPagesPending() (bool, error)
	// Recovery is NVML's number of what should be done.
	Recovery() (uint32, error)
	// Fabric is NVML's state of the NVLink fabric, and a status that is 0 if all is
	// well.
	Fabric() (state uint8, status uint32, err error)

	MIG() (enabled, pending bool, err error)
	MostInstances() (int, error)
	Instance(index int) (Device, error)
	// Shares of a MIG instance.
	Shares() (Shares, error)
}

// Shares that a MIG instance has of its GPU.
type Shares struct {
	// GPUSlices of the GPU instance, ComputeSlices of the compute instance in it.
	GPUSlices, ComputeSlices int
	Multiprocessors          int
	MemoryMiB                uint64
}
