//go:build cgo

package main

import (
	"encoding/binary"

	driver "github.com/NVIDIA/go-nvml/pkg/nvml"

	"girassol.dev/siteagent/nvml"
	"girassol.dev/siteagent/nvml/server"
)

// device adapts a GPU or a MIG instance.
type device struct {
	lib *library
	d   driver.Device
}

func (d device) UUID() (string, error)   { return ask(d.lib, "nvmlDeviceGetUUID", d.d.GetUUID) }
func (d device) Name() (string, error)   { return ask(d.lib, "nvmlDeviceGetName", d.d.GetName) }
func (d device) Serial() (string, error) { return ask(d.lib, "nvmlDeviceGetSerial", d.d.GetSerial) }
func (d device) VBIOS() (string, error) {
	return ask(d.lib, "nvmlDeviceGetVbiosVersion", d.d.GetVbiosVersion)
}

func (d device) PCI() (domain, bus, slot uint32, err error) {
	p, err := ask(d.lib, "nvmlDeviceGetPciInfo", d.d.GetPciInfo)
	return p.Domain, p.Bus, p.Device, err
}

func (d device) Architecture() (uint32, error) {
	v, err := ask(d.lib, "nvmlDeviceGetArchitecture", d.d.GetArchitecture)
	return uint32(v), err
}

func (d device) Capability() (major, minor int, err error) {
	v, err := ask(d.lib, "nvmlDeviceGetCudaComputeCapability", two(d.d.GetCudaComputeCapability))
	return v.a, v.b, err
}

func (d device) Memory() (totalBytes, usedBytes uint64, err error) {
	m, err := ask(d.lib, "nvmlDeviceGetMemoryInfo", d.d.GetMemoryInfo)
	return m.Total, m.Used, err
}

func (d device) Utilisation() (gpu, memory uint32, err error) {
	u, err := ask(d.lib, "nvmlDeviceGetUtilizationRates", d.d.GetUtilizationRates)
	return u.Gpu, u.Memory, err
}

func (d device) Celsius() (uint32, error) {
	return ask(d.lib, "nvmlDeviceGetTemperature", func() (uint32, driver.Return) { return d.d.GetTemperature(driver.TEMPERATURE_GPU) })
}

func (d device) SlowdownCelsius() (uint32, error) {
	return ask(d.lib, "nvmlDeviceGetTemperatureThreshold", func() (uint32, driver.Return) {
		return d.d.GetTemperatureThreshold(driver.TEMPERATURE_THRESHOLD_SLOWDOWN)
	})
}

func (d device) MHz() (now, most uint32, err error) {
	now, err = ask(d.lib, "nvmlDeviceGetClockInfo", func() (uint32, driver.Return) { return d.d.GetClockInfo(driver.CLOCK_SM) })
	if err != nil {
		return 0, 0, err
	}
	most, err = ask(d.lib, "nvmlDeviceGetMaxClockInfo", func() (uint32, driver.Return) { return d.d.GetMaxClockInfo(driver.CLOCK_SM) })
	return now, most, err
}

func (d device) Slowdowns() (uint64, error) {
	return ask(d.lib, "nvmlDeviceGetCurrentClocksEventReasons", d.d.GetCurrentClocksEventReasons)
}

func (d device) EnergyMillijoules() (uint64, error) {
	return ask(d.lib, "nvmlDeviceGetTotalEnergyConsumption", d.d.GetTotalEnergyConsumption)
}

func (d device) Milliwatts() (uint32, error) {
	return ask(d.lib, "nvmlDeviceGetPowerUsage", d.d.GetPowerUsage)
}

func (d device) LimitMilliwatts() (uint32, error) {
	return ask(d.lib, "nvmlDeviceGetPowerManagementLimit", d.d.GetPowerManagementLimit)
}

func (d device) DefaultLimitMilliwatts() (uint32, error) {
	return ask(d.lib, "nvmlDeviceGetPowerManagementDefaultLimit", d.d.GetPowerManagementDefaultLimit)
}

func (d device) LimitRangeMilliwatts() (least, most uint32, err error) {
	v, err := ask(d.lib, "nvmlDeviceGetPowerManagementLimitConstraints", two(d.d.GetPowerManagementLimitConstraints))
	return v.a, v.b, err
}

func (d device) SetLimitMilliwatts(v uint32) error {
	_, err := ask(d.lib, "nvmlDeviceSetPowerManagementLimit", func() (struct{}, driver.Return) { return struct{}{}, d.d.SetPowerManagementLimit(v) })
	return err
}

func (d device) Persistence() (bool, error) {
	v, err := ask(d.lib, "nvmlDeviceGetPersistenceMode", d.d.GetPersistenceMode)
	return v == driver.FEATURE_ENABLED, err
}

func (d device) Processes() (int, error) {
	compute, err := ask(d.lib, "nvmlDeviceGetComputeRunningProcesses", d.d.GetComputeRunningProcesses)
	if err != nil {
		return 0, err
	}
	graphics, err := ask(d.lib, "nvmlDeviceGetGraphicsRunningProcesses", d.d.GetGraphicsRunningProcesses)
	return len(compute) + len(graphics), err
}

func (d device) ComputeMode() (uint32, error) {
	v, err := ask(d.lib, "nvmlDeviceGetComputeMode", d.d.GetComputeMode)
	return uint32(v), err
}

func (d device) Virtualization() (uint32, error) {
	v, err := ask(d.lib, "nvmlDeviceGetVirtualizationMode", d.d.GetVirtualizationMode)
	return uint32(v), err
}

func (d device) ECC() (enabled, pending bool, err error) {
	v, err := ask(d.lib, "nvmlDeviceGetEccMode", two(d.d.GetEccMode))
	return v.a == driver.FEATURE_ENABLED, v.b == driver.FEATURE_ENABLED, err
}

func (d device) UncorrectedErrors(lifelong bool) (uint64, error) {
	counter := driver.VOLATILE_ECC
	if lifelong {
		counter = driver.AGGREGATE_ECC
	}
	return ask(d.lib, "nvmlDeviceGetTotalEccErrors", func() (uint64, driver.Return) {
		return d.d.GetTotalEccErrors(driver.MEMORY_ERROR_TYPE_UNCORRECTED, counter)
	})
}

func (d device) RemappedRows() (corrected, uncorrected int, pending, failed bool, err error) {
	_, err = ask(d.lib, "nvmlDeviceGetRemappedRows", func() (struct{}, driver.Return) {
		var r driver.Return
		corrected, uncorrected, pending, failed, r = d.d.GetRemappedRows()
		return struct{}{}, r
	})
	return corrected, uncorrected, pending, failed, err
}

func (d device) RetiredPages() (n int, err error) {
	for _, cause := range []driver.PageRetirementCause{
		driver.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, driver.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
	} {
		pages, err := ask(d.lib, "nvmlDeviceGetRetiredPages", func() ([]uint64, driver.Return) { return d.d.GetRetiredPages(cause) })
		if err != nil {
			return 0, err
		}
		n += len(pages)
	}
	return n, nil
}

func (d device) RetiredPagesPending() (bool, error) {
	v, err := ask(d.lib, "nvmlDeviceGetRetiredPagesPendingStatus", d.d.GetRetiredPagesPendingStatus)
	return v == driver.FEATURE_ENABLED, err
}

// Recovery is a field that drivers have since 2024.
func (d device) Recovery() (uint32, error) {
	fields := []driver.FieldValue{{FieldId: driver.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	_, err := ask(d.lib, "nvmlDeviceGetFieldValues", func() (struct{}, driver.Return) { return struct{}{}, d.d.GetFieldValues(fields) })
	if err != nil {
		return 0, err
	}
	f := fields[0]
	if err := failure(driver.Return(f.NvmlReturn)); err != nil {
		return 0, err
	}
	if t := driver.ValueType(f.ValueType); t != driver.VALUE_TYPE_UNSIGNED_INT {
		return 0, &nvml.Error{Code: nvml.NotSupported, Detail: "the recovery action is not a number"}
	}
	return binary.NativeEndian.Uint32(f.Value[:]), nil
}

func (d device) Fabric() (state uint8, status uint32, err error) {
	v, err := ask(d.lib, "nvmlDeviceGetGpuFabricInfo", func() (driver.GpuFabricInfo, driver.Return) { return d.d.GetGpuFabricInfoV().V1() })
	return v.State, v.Status, err
}

func (d device) MIG() (enabled, pending bool, err error) {
	v, err := ask(d.lib, "nvmlDeviceGetMigMode", two(d.d.GetMigMode))
	return v.a == driver.DEVICE_MIG_ENABLE, v.b == driver.DEVICE_MIG_ENABLE, err
}

func (d device) MostInstances() (int, error) {
	return ask(d.lib, "nvmlDeviceGetMaxMigDeviceCount", d.d.GetMaxMigDeviceCount)
}

func (d device) Instance(index int) (server.Device, error) {
	return d.lib.device("nvmlDeviceGetMigDeviceHandleByIndex", func() (driver.Device, driver.Return) { return d.d.GetMigDeviceHandleByIndex(index) })
}

func (d device) Shares() (server.Shares, error) {
	a, err := ask(d.lib, "nvmlDeviceGetAttributes_v2", d.d.GetAttributes)
	return server.Shares{
		GPUSlices: int(a.GpuInstanceSliceCount), ComputeSlices: int(a.ComputeInstanceSliceCount),
		Multiprocessors: int(a.MultiprocessorCount), MemoryMiB: a.MemorySizeMB,
	}, err
}

// pair of values that a function returns.
type pair[T any] struct{ a, b T }

func two[T any](call func() (T, T, driver.Return)) func() (pair[T], driver.Return) {
	return func() (pair[T], driver.Return) {
		a, b, r := call()
		return pair[T]{a, b}, r
	}
}
