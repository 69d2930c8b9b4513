package server

import (
	"errors"
	"fmt"
	"sync/atomic"

	"girassol.dev/siteagent/nvml"
)

// madeUp is a library without a driver.
type madeUp struct {
	openError, closeError error
	opened, closed        atomic.Int32
	count                 error // of Count
	devices               []*gpu
}

func (m *madeUp) Open() error {
	if m.openError != nil {
		return m.openError
	}
	m.opened.Add(1)
	return nil
}

func (m *madeUp) Close() error {
	m.closed.Add(1)
	return m.closeError
}

func (m *madeUp) open() bool                      { return m.opened.Load() > m.closed.Load() }
func (m *madeUp) DriverVersion() (string, error)  { return "550.90.07", nil }
func (m *madeUp) LibraryVersion() (string, error) { return "", unsupported }
func (m *madeUp) CUDAVersion() (int, error)       { return 12040, nil }

func (m *madeUp) Count() (int, error) {
	if !m.open() {
		panic("asked while closed")
	}
	return len(m.devices), m.count
}

func (m *madeUp) Device(i int) (Device, error) {
	d := m.devices[i]
	return d, d.fails
}

func (m *madeUp) DeviceByUUID(uuid string) (Device, error) {
	if !m.open() {
		panic("asked while closed")
	}
	for _, d := range m.devices {
		if d.uuid == uuid {
			return d, nil
		}
	}
	return nil, &nvml.Error{Code: nvml.NotFound, Detail: "Not Found"}
}

var unsupported = &nvml.Error{Code: nvml.NotSupported, Detail: "Not Supported"}

// gpu answers what is set and nothing else.
type gpu struct {
	Device // panics on what a test does not expect
	uuid   string
	name   string
	fails  error // the handle
	celsius,
	limit uint32
	cannotSet   error
	persistence bool
	processes   int
	full        bool
	shares      *Shares
	instances   []*gpu
	most        int
}

func full(i int) *gpu {
	return &gpu{uuid: fmt.Sprintf("GPU-%d", i), name: "NVIDIA H100 80GB HBM3", celsius: 40, limit: 700_000, full: true}
}

func (g *gpu) tells() error {
	if g.full {
		return nil
	}
	return unsupported
}

func (g *gpu) UUID() (string, error)   { return g.uuid, nil }
func (g *gpu) Name() (string, error)   { return g.name, nil }
func (g *gpu) Serial() (string, error) { return "1650", g.tells() }
func (g *gpu) VBIOS() (string, error)  { return "96.00", g.tells() }
func (g *gpu) PCI() (domain, bus, device uint32, err error) {
	return 0x10000, 0xAB, 0x1f, g.tells()
}
func (g *gpu) Architecture() (uint32, error)             { return 9, g.tells() }
func (g *gpu) Capability() (major, minor int, err error) { return 9, 0, g.tells() }
func (g *gpu) Memory() (total, used uint64, err error) {
	if g.shares != nil {
		return g.shares.MemoryMiB << 20, 1 << 20, nil
	}
	return 80 << 30, 1 << 30, g.tells()
}
func (g *gpu) Utilisation() (gpu, memory uint32, err error) { return 97, 55, g.tells() }
func (g *gpu) Celsius() (uint32, error) {
	if g.celsius == 0 {
		return 0, &nvml.Error{Code: nvml.Lost, Detail: "GPU is lost"}
	}
	return g.celsius, g.tells()
}
func (g *gpu) SlowdownCelsius() (uint32, error)        { return 87, g.tells() }
func (g *gpu) MHz() (now, most uint32, err error)      { return 1755, 1980, g.tells() }
func (g *gpu) Slowdowns() (uint64, error)              { return 0x48, g.tells() }
func (g *gpu) EnergyMillijoules() (uint64, error)      { return 123456789, g.tells() }
func (g *gpu) Milliwatts() (uint32, error)             { return 684_500, g.tells() }
func (g *gpu) LimitMilliwatts() (uint32, error)        { return g.limit, g.tells() }
func (g *gpu) DefaultLimitMilliwatts() (uint32, error) { return 700_000, g.tells() }
func (g *gpu) LimitRangeMilliwatts() (least, most uint32, err error) {
	return 200_000, 700_000, g.tells()
}
func (g *gpu) SetLimitMilliwatts(v uint32) error {
	if g.cannotSet != nil {
		return g.cannotSet
	}
	g.limit = v
	return nil
}
func (g *gpu) Persistence() (bool, error)        { return g.persistence, nil }
func (g *gpu) Processes() (int, error)           { return g.processes, nil }
func (g *gpu) ComputeMode() (uint32, error)      { return 3, g.tells() }
func (g *gpu) Virtualization() (uint32, error)   { return 1, g.tells() }
func (g *gpu) ECC() (now, later bool, err error) { return true, false, g.tells() }
func (g *gpu) UncorrectedErrors(lifelong bool) (uint64, error) {
	if lifelong {
		return 3, g.tells()
	}
	return 1, g.tells()
}
func (g *gpu) RemappedRows() (corrected, uncorrected int, pending, failed bool, err error) {
	return 1, 2, true, false, g.tells()
}
func (g *gpu) RetiredPages() (int, error)         { return 0, unsupported }
func (g *gpu) RetiredPagesPending() (bool, error) { return false, errors.New("not asked for") }
func (g *gpu) Recovery() (uint32, error)          { return 4, g.tells() }
func (g *gpu) Fabric() (state uint8, status uint32, err error) {
	return 3, 5, g.tells()
}
func (g *gpu) MIG() (enabled, pending bool, err error) { return g.most > 0, true, g.tells() }
func (g *gpu) MostInstances() (int, error)             { return g.most, nil }
func (g *gpu) Instance(i int) (Device, error) {
	if i >= len(g.instances) || g.instances[i] == nil {
		return nil, &nvml.Error{Code: nvml.NotFound, Detail: "Not Found"}
	}
	return g.instances[i], nil
}
func (g *gpu) Shares() (Shares, error) {
	if g.shares == nil {
		return Shares{}, unsupported
	}
	return *g.shares, nil
}
