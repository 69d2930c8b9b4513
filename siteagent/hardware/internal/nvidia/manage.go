package nvidia

import (
	"errors"
	"slices"
	"strings"

	"girassol.dev/siteagent/hardware/machine"
	"girassol.dev/siteagent/nvml"
)

// Adds is what NVML tells beyond files.
const Adds = "NVIDIA memory, utilisation, temperature, power and limits, clocks, memory errors and MIG profiles"

// management is what NVML said of the GPUs.
type management struct {
	// asked is false where nothing could answer: no GPU has the driver.
	asked   bool
	failure *nvml.Error
	inv     nvml.Inventory
	// gpus by address.
	gpus map[string]nvml.GPU
}

func (m management) answered() bool { return m.asked && m.failure == nil }

// Bound says that NVIDIA's driver has one of the GPUs.
func Bound(gpus []machine.GPU) bool {
	return slices.ContainsFunc(gpus, func(g machine.GPU) bool { return g.Vendor == machine.NVIDIA && g.Driver == driverName })
}

// manage asks NVML about GPUs that have its driver.
func (r Reader) manage(gpus []machine.GPU) management {
	if r.Ask == nil || !Bound(gpus) {
		return management{}
	}
	m := management{asked: true, gpus: make(map[string]nvml.GPU)}
	var err error
	if m.inv, err = r.Ask(); err != nil {
		if !errors.As(err, &m.failure) {
			m.failure = &nvml.Error{Code: nvml.Hung, Detail: err.Error()} // the caller's time was up
		}
		return m
	}
	var nameless []nvml.GPU
	for _, g := range m.inv.GPUs {
		if address := strings.ToLower(g.Address); address != "" {
			m.gpus[address] = g
		} else {
			nameless = append(nameless, g)
		}
	}
	m.place(nameless, gpus)
	return m
}

// place GPUs that cannot even tell their addresses: those that are left over, if
// there are as many. NVML lists in the order of addresses.
func (m management) place(nameless []nvml.GPU, gpus []machine.GPU) {
	var left []string
	for _, g := range gpus {
		if _, found := m.gpus[g.Address]; !found && g.Driver == driverName {
			left = append(left, g.Address)
		}
	}
	if len(left) != len(nameless) {
		return
	}
	for i, address := range left {
		m.gpus[address] = nameless[i]
	}
}

// merge what NVML knows into what files told.
func (m management) merge(gpus []machine.GPU, driver **machine.Driver) {
	if !m.answered() {
		return
	}
	if *driver == nil {
		*driver = &machine.Driver{Vendor: machine.NVIDIA}
	}
	d := *driver
	if d.Version == "" {
		d.Version = m.inv.DriverVersion
	}
	d.Management, d.Supported = m.inv.LibraryVersion, m.inv.CUDAVersion
	for i := range gpus {
		if found, ok := m.gpus[gpus[i].Address]; ok && found.Problem == nil {
			mergeGPU(&gpus[i], found)
		}
	}
}

func mergeGPU(g *machine.GPU, n nvml.GPU) {
	replace(&g.ID, n.UUID)
	replace(&g.Model, n.Model)
	replace(&g.Board, n.Serial)
	replace(&g.Firmware, n.VBIOS)
	replace(&g.Architecture, n.Architecture)
	g.Capability = n.Capability
	g.MemoryBytes, g.MemoryUsedBytes = n.MemoryBytes, n.MemoryUsedBytes
	g.BusyPercent, g.MemoryBusyPercent = n.UtilisationPercent, n.MemoryBusyPercent
	g.ClockMHz, g.MaxClockMHz = min(n.ClockMHz, n.MaxClockMHz), n.MaxClockMHz
	if n.TemperatureC != nil {
		g.Temperatures = []machine.Temperature{{Sensor: "gpu", Celsius: *n.TemperatureC, CriticalCelsius: n.SlowdownC}}
	}
	p := machine.Power{
		Watts: n.PowerWatts, LimitWatts: n.PowerLimitWatts, DefaultWatts: n.DefaultPowerLimitWatts,
		MinimumWatts: n.MinimumPowerLimitWatts, MaximumWatts: n.MaximumPowerLimitWatts,
	}
	if p != (machine.Power{}) {
		g.Power = &p
	}
	g.Slowdowns, g.Persistence, g.Errors = n.Slowdowns, n.Persistence, memoryErrors(n)
	g.VirtualFunction = g.VirtualFunction || n.Virtual == "vgpu"
	mergeMIG(g, n.MIG)
}

func replace(s *string, by string) {
	if by != "" {
		*s = by
	}
}

func memoryErrors(n nvml.GPU) *machine.Errors {
	if n.ECC == nil && n.Rows == nil && n.Pages == nil {
		return nil
	}
	var e machine.Errors
	if n.ECC != nil {
		e.Checked, e.Uncorrected, e.LifelongUncorrected = n.ECC.Enabled, n.ECC.Uncorrected, n.ECC.Lifelong
	}
	if n.Rows != nil {
		e.Retired, e.Pending, e.NoSpare = max(n.Rows.Corrected, 0)+max(n.Rows.Uncorrected, 0), n.Rows.Pending, n.Rows.Failed
	} else if n.Pages != nil {
		e.Retired, e.Pending = max(n.Pages.Retired, 0), n.Pages.Pending
	}
	return &e
}

// mergeMIG takes NVML's word over the count of capabilities in /proc.
func mergeMIG(g *machine.GPU, m *nvml.MIG) {
	if m == nil {
		return
	}
	if !m.Enabled {
		g.Partitions, g.PartitionMode = 0, ""
		return
	}
	g.PartitionMode = "MIG"
	for _, i := range m.Instances {
		g.Instances = append(g.Instances, machine.Instance{
			ID: i.UUID, Profile: i.Profile, MemoryBytes: i.MemoryBytes, MemoryUsedBytes: i.MemoryUsedBytes, ComputeUnits: max(i.Multiprocessors, 0),
		})
	}
	if len(m.Instances) > 0 {
		g.Partitions = len(m.Instances)
	}
}
