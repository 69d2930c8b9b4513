package server

import (
	"errors"
	"fmt"

	"girassol.dev/siteagent/nvml"
)

// mostGPUs of a machine, against a library gone wild.
const mostGPUs = 256

// inventory describes all GPUs.
func (s *Server) inventory() (*nvml.Inventory, error) {
	inv := nvml.Inventory{GPUs: []nvml.GPU{}}
	inv.DriverVersion = or(s.lib.DriverVersion())
	inv.LibraryVersion = or(s.lib.LibraryVersion())
	if v, err := s.lib.CUDAVersion(); err == nil && v > 0 {
		inv.CUDAVersion = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	err := s.each(func(d Device, g nvml.GPUSample) {
		inv.GPUs = append(inv.GPUs, describe(d, g))
	})
	if err != nil {
		return nil, err
	}
	return &inv, nil
}

// samples of all GPUs.
func (s *Server) samples() (all []nvml.GPUSample, err error) {
	err = s.each(func(_ Device, g nvml.GPUSample) { all = append(all, g) })
	return all, err
}

// each GPU with its sample; the device is nil for one that cannot be asked, which
// the sample says.
func (s *Server) each(do func(Device, nvml.GPUSample)) error {
	n, err := s.lib.Count()
	if err != nil {
		return err
	}
	for i := range min(n, mostGPUs) {
		d, err := s.lib.Device(i)
		var g nvml.GPUSample
		if err == nil {
			g, err = sample(d)
		}
		if err != nil {
			e := asError(fmt.Sprintf("GPU %d", i), err)
			if whole(e.Code) {
				return e
			}
			id := s.identities[i]
			do(nil, nvml.GPUSample{UUID: id.uuid, Address: id.address, Model: id.model, Problem: e})
			continue
		}
		s.identities[i] = identity{g.UUID, g.Address, g.Model}
		do(d, g)
	}
	return nil
}

// sample of one GPU; an error if it cannot be asked at all.
func sample(d Device) (g nvml.GPUSample, err error) {
	if g.UUID, err = d.UUID(); err != nil {
		return g, err
	}
	if domain, bus, device, err := d.PCI(); err == nil {
		g.Address = fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, device)
	}
	g.Model = or(d.Name())
	if v, err := d.EnergyMillijoules(); err == nil {
		g.EnergyMillijoules = &v
	}
	g.PowerWatts = scaled(d.Milliwatts)
	if gpu, _, err := d.Utilisation(); err == nil {
		g.UtilisationPercent = new(float64(gpu))
	}
	if _, used, err := d.Memory(); err == nil {
		g.MemoryUsedBytes = &used
	}
	if v, err := d.Celsius(); err == nil {
		g.TemperatureC = new(float64(v))
	} else if lost(err) {
		return g, err
	}
	g.PowerLimitWatts, g.DefaultPowerLimitWatts = scaled(d.LimitMilliwatts), scaled(d.DefaultLimitMilliwatts)
	if least, most, err := d.LimitRangeMilliwatts(); err == nil {
		g.MinimumPowerLimitWatts, g.MaximumPowerLimitWatts = new(watt(least)), new(watt(most))
	}
	return g, nil
}

// lost says that a GPU is gone, though its handle was given.
func lost(err error) bool {
	var e *nvml.Error
	return errors.As(err, &e) && (e.Code == nvml.Lost || e.Code == nvml.ResetRequired)
}

// describe one GPU, whose sample is taken.
func describe(d Device, sample nvml.GPUSample) nvml.GPU {
	g := nvml.GPU{GPUSample: sample}
	if d == nil {
		return g
	}
	g.Serial, g.VBIOS = or(d.Serial()), or(d.VBIOS())
	if v, err := d.Architecture(); err == nil {
		g.Architecture = architectures[v]
	}
	if major, minor, err := d.Capability(); err == nil {
		g.Capability = fmt.Sprintf("%d.%d", major, minor)
	}
	if total, _, err := d.Memory(); err == nil {
		g.MemoryBytes = total
	}
	if _, memory, err := d.Utilisation(); err == nil {
		g.MemoryBusyPercent = new(float64(memory))
	}
	if now, most, err := d.MHz(); err == nil {
		g.ClockMHz, g.MaxClockMHz = int(now), int(most)
	}
	if v, err := d.SlowdownCelsius(); err == nil && v > 0 {
		g.SlowdownC = new(float64(v))
	}
	if bits, err := d.Slowdowns(); err == nil {
		g.Slowdowns = slowdowns(bits)
	}
	if v, err := d.Persistence(); err == nil {
		g.Persistence = &v
	}
	if v, err := d.ComputeMode(); err == nil {
		g.ComputeMode = computeModes[v]
	}
	if v, err := d.Virtualization(); err == nil {
		g.Virtual = virtualizations[v]
	}
	if v, err := d.Recovery(); err == nil {
		g.Recovery = recoveries[v]
	}
	if state, status, err := d.Fabric(); err == nil {
		g.Fabric = fabric(state, status)
	}
	g.ECC, g.Rows, g.Pages = memoryHealth(d)
	g.MIG = mig(d, g.MemoryBytes)
	return g
}

func memoryHealth(d Device) (ecc *nvml.ECC, rows *nvml.Rows, pages *nvml.Pages) {
	if enabled, pending, err := d.ECC(); err == nil {
		ecc = &nvml.ECC{Enabled: enabled, Pending: pending}
		if v, err := d.UncorrectedErrors(false); err == nil {
			ecc.Uncorrected = &v
		}
		if v, err := d.UncorrectedErrors(true); err == nil {
			ecc.Lifelong = &v
		}
	}
	if corrected, uncorrected, pending, failed, err := d.RemappedRows(); err == nil {
		rows = &nvml.Rows{Corrected: corrected, Uncorrected: uncorrected, Pending: pending, Failed: failed}
	}
	if n, err := d.RetiredPages(); err == nil {
		pages = &nvml.Pages{Retired: n}
		if pending, err := d.RetiredPagesPending(); err == nil {
			pages.Pending = pending
		}
	}
	return ecc, rows, pages
}

func or(s string, err error) string {
	if err != nil {
		return ""
	}
	return s
}

// scaled is watts of a figure in milliwatts.
func scaled(read func() (uint32, error)) *float64 {
	v, err := read()
	if err != nil {
		return nil
	}
	w := watt(v)
	return &w
}
