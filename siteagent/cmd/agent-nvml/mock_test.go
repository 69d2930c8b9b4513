//go:build cgo

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"testing"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	mock "github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"girassol.dev/siteagent/nvml"
	"girassol.dev/siteagent/nvml/server"
)

// answered is what a server made of a mock's library answers to one request.
func answered(t *testing.T, m *mock.Server, r nvml.Request) nvml.Answer {
	t.Helper()
	m.LookupSymbolFunc = func(symbol string) error {
		if symbol == "nvmlDeviceGetGpuFabricInfo" { // its handler has no mock
			return errors.New("no such symbol")
		}
		return nil
	}
	return answer(t, server.New(&library{api: m}), r)
}

// answer of a server to its only request.
func answer(t *testing.T, s *server.Server, r nvml.Request) nvml.Answer {
	t.Helper()
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := s.Serve(bytes.NewReader(append(line, '\n')), &out); err != nil {
		t.Fatal(err)
	}
	a, err := nvml.ParseAnswer(out.Bytes())
	if err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return a
}

// complete gives a mock's device the functions that it lacks.
func complete(d *mock.Device, bus uint32) {
	d.GetPciInfoFunc = func() (driver.PciInfo, driver.Return) { return driver.PciInfo{Bus: bus}, driver.SUCCESS }
	d.GetSerialFunc = func() (string, driver.Return) { return "1320921000123", driver.SUCCESS }
	d.GetVbiosVersionFunc = func() (string, driver.Return) { return "92.00.36.00.10", driver.SUCCESS }
	d.GetUtilizationRatesFunc = func() (driver.Utilization, driver.Return) {
		return driver.Utilization{Gpu: 98, Memory: 40}, driver.SUCCESS
	}
	d.GetTemperatureFunc = func(driver.TemperatureSensors) (uint32, driver.Return) { return 61, driver.SUCCESS }
	d.GetTemperatureThresholdFunc = func(driver.TemperatureThresholds) (uint32, driver.Return) { return 92, driver.SUCCESS }
	d.GetClockInfoFunc = func(driver.ClockType) (uint32, driver.Return) { return 1275, driver.SUCCESS }
	d.GetMaxClockInfoFunc = func(driver.ClockType) (uint32, driver.Return) { return 1410, driver.SUCCESS }
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, driver.Return) { return driver.ClocksThrottleReasonSwPowerCap, driver.SUCCESS }
	d.GetTotalEnergyConsumptionFunc = func() (uint64, driver.Return) { return 987654321, driver.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, driver.Return) { return 396_250, driver.SUCCESS }
	limit := uint32(400_000)
	d.GetPowerManagementLimitFunc = func() (uint32, driver.Return) { return limit, driver.SUCCESS }
	d.SetPowerManagementLimitFunc = func(v uint32) driver.Return { limit = v; return driver.SUCCESS }
	d.GetPowerManagementDefaultLimitFunc = func() (uint32, driver.Return) { return 400_000, driver.SUCCESS }
	d.GetPowerManagementLimitConstraintsFunc = func() (uint32, uint32, driver.Return) { return 100_000, 400_000, driver.SUCCESS }
	d.GetPersistenceModeFunc = func() (driver.EnableState, driver.Return) { return driver.FEATURE_ENABLED, driver.SUCCESS }
	d.GetComputeModeFunc = func() (driver.ComputeMode, driver.Return) { return driver.COMPUTEMODE_DEFAULT, driver.SUCCESS }
	d.GetVirtualizationModeFunc = func() (driver.GpuVirtualizationMode, driver.Return) {
		return driver.GPU_VIRTUALIZATION_MODE_NONE, driver.SUCCESS
	}
	d.GetEccModeFunc = func() (driver.EnableState, driver.EnableState, driver.Return) {
		return driver.FEATURE_ENABLED, driver.FEATURE_ENABLED, driver.SUCCESS
	}
	d.GetTotalEccErrorsFunc = func(_ driver.MemoryErrorType, c driver.EccCounterType) (uint64, driver.Return) {
		return uint64(c), driver.SUCCESS // one over the life
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, driver.Return) { return 0, 1, true, false, driver.SUCCESS }
	d.GetRetiredPagesFunc = func(driver.PageRetirementCause) ([]uint64, driver.Return) { return nil, driver.ERROR_NOT_SUPPORTED }
	d.GetFieldValuesFunc = func(f []driver.FieldValue) driver.Return {
		f[0].ValueType = uint32(driver.VALUE_TYPE_UNSIGNED_INT)
		binary.NativeEndian.PutUint32(f[0].Value[:], uint32(driver.GPU_RECOVERY_ACTION_GPU_RESET))
		return driver.SUCCESS
	}
	d.GetComputeRunningProcessesFunc = func() ([]driver.ProcessInfo, driver.Return) { return nil, driver.SUCCESS }
	d.GetGraphicsRunningProcessesFunc = func() ([]driver.ProcessInfo, driver.Return) { return nil, driver.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, driver.Return) { return 7, driver.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(int) (driver.Device, driver.Return) { return nil, driver.ERROR_NOT_FOUND }
}

// dgx completes all devices of a server.
func dgx(m *mock.Server) *mock.Server {
	for i, d := range m.Devices {
		complete(d.(*mock.Device), uint32(7+8*i))
	}
	return m
}

func TestADGXIsDescribed(t *testing.T) {
	for name, tc := range map[string]struct {
		server                                *mock.Server
		model, architecture, capability, cuda string
		memory                                uint64
	}{
		"A100": {dgx(dgxa100.New()), "Mock NVIDIA A100-SXM4-40GB", "ampere", "8.0", "12.4", 40 << 30},
		"H100": {dgx(dgxh100.New()), "NVIDIA H100 80GB HBM3", "hopper", "9.0", "12.4", 80 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			a := answered(t, tc.server, nvml.Request{ID: 1, Op: nvml.OpInventory})
			if a.Error != nil || len(a.Inventory.GPUs) != 8 {
				t.Fatalf("%+v", a)
			}
			g := a.Inventory.GPUs[3]
			if a.Inventory.CUDAVersion != tc.cuda || g.Model != tc.model || g.Architecture != tc.architecture || g.Capability != tc.capability || g.MemoryBytes != tc.memory || g.Address != "0000:1f:00.0" {
				t.Errorf("%+v", a.Inventory)
			}
			if *g.PowerWatts != 396.25 || *g.UtilisationPercent != 98 || *g.TemperatureC != 61 || *g.SlowdownC != 92 || g.ClockMHz != 1275 || g.MaxClockMHz != 1410 ||
				*g.EnergyMillijoules != 987654321 || g.Slowdowns != nil || !*g.Persistence || g.ComputeMode != "" || g.Virtual != "" || g.Recovery != "reset" {
				t.Errorf("%+v", g)
			}
			if *g.ECC.Uncorrected != 0 || *g.ECC.Lifelong != 1 || *g.Rows != (nvml.Rows{Uncorrected: 1, Pending: true}) || g.Pages != nil || g.MIG == nil || g.MIG.Enabled {
				t.Errorf("%+v %+v %+v", g.ECC, g.Rows, g.MIG)
			}
		})
	}
}

func TestMIGIsDescribedGPUByGPU(t *testing.T) {
	m := dgx(dgxa100.New())
	divided := m.Devices[2].(*mock.Device)
	divided.MigMode = driver.DEVICE_MIG_ENABLE
	part := dgxa100.NewDevice(0)
	part.UUID = "MIG-5cdfb2c1"
	part.MemoryInfo = driver.Memory{Total: 20096 << 20, Used: 19 << 20}
	part.GetAttributesFunc = func() (driver.DeviceAttributes, driver.Return) {
		return driver.DeviceAttributes{MultiprocessorCount: 42, GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 3, MemorySizeMB: 20096}, driver.SUCCESS
	}
	divided.GetMigDeviceHandleByIndexFunc = func(i int) (driver.Device, driver.Return) {
		if i == 1 {
			return part, driver.SUCCESS
		}
		return nil, driver.ERROR_NOT_FOUND
	}
	a := answered(t, m, nvml.Request{ID: 1, Op: nvml.OpInventory})
	for i, g := range a.Inventory.GPUs {
		if g.MIG.Enabled != (i == 2) || len(g.MIG.Instances) > 0 != (i == 2) {
			t.Errorf("GPU %d: %+v", i, g.MIG)
		}
	}
	got := a.Inventory.GPUs[2].MIG.Instances[0]
	if got.UUID != "MIG-5cdfb2c1" || got.Profile != "3g.20gb" || got.Multiprocessors != 42 || got.MemoryBytes != 20096<<20 {
		t.Errorf("%+v", got)
	}
}

func TestALimitIsSetInMilliwatts(t *testing.T) {
	m := dgx(dgxa100.New())
	d := m.Devices[0].(*mock.Device)
	a := answered(t, m, nvml.Request{ID: 1, Op: nvml.OpSetPowerLimit, UUID: d.UUID, Watts: 250})
	if a.Error != nil || *a.BeforeWatts != 400 {
		t.Fatalf("%+v", a)
	}
	// The server has ended since, and put it back.
	if v, _ := d.GetPowerManagementLimit(); v != 400_000 || len(d.SetPowerManagementLimitCalls()) != 2 || d.SetPowerManagementLimitCalls()[0].V != 250_000 {
		t.Errorf("%d mW after %+v", v, d.SetPowerManagementLimitCalls())
	}
}
