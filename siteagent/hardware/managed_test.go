package hardware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"girassol.dev/siteagent/hardware/machine"
	"girassol.dev/siteagent/nvml"
)

// buses of nvidia8.
var buses = []string{"07", "0f", "47", "4e", "87", "90", "b7", "bd"}

// dgx is what NVML says of the machine nvidia8, all in order.
func dgx(model string, change ...func(gpus []nvml.GPU)) nvml.Inventory {
	inv := nvml.Inventory{DriverVersion: "550.90.07", LibraryVersion: "12.550.90.07", CUDAVersion: "12.4"}
	for i, bus := range buses {
		inv.GPUs = append(inv.GPUs, nvml.GPU{
			GPUSample: nvml.GPUSample{
				UUID: fmt.Sprintf("GPU-eaf23aa1-4d3d-596c-da66-b86b0e5db58%d", i), Address: "0000:" + strings.ToUpper(bus) + ":00.0", Model: model,
				PowerWatts: new(350.0), PowerLimitWatts: new(400.0), MinimumPowerLimitWatts: new(100.0), MaximumPowerLimitWatts: new(400.0), DefaultPowerLimitWatts: new(400.0),
				UtilisationPercent: new(97.0), MemoryUsedBytes: new(uint64(70 << 30)), TemperatureC: new(61.0),
			},
			Architecture: "ampere", Capability: "8.0", MemoryBytes: 80 << 30, ClockMHz: 1275, MaxClockMHz: 1410, SlowdownC: new(92.0), Persistence: new(true),
			ECC: &nvml.ECC{Enabled: true, Pending: true, Uncorrected: new(uint64(0)), Lifelong: new(uint64(2))}, Rows: &nvml.Rows{Corrected: 1}, MIG: &nvml.MIG{},
		})
	}
	for _, c := range change {
		c(inv.GPUs)
	}
	return inv
}

func answering(inv nvml.Inventory, err error) func() (nvml.Inventory, error) {
	return func() (nvml.Inventory, error) { return inv, err }
}

const a100 = "NVIDIA A100-SXM4-80GB"

func TestAnNVIDIAGPUIsDescribedByNVML(t *testing.T) {
	r := inspect(on(nvidia8("10DE:20B2", a100)), 192, answering(dgx(a100), nil))
	if len(r.Problems) > 0 || len(r.NotRead) > 0 {
		t.Errorf("problems %+v, not read %q", r.Problems, r.NotRead)
	}
	for _, g := range r.GPUs[:8] {
		if g.MemoryBytes != 80<<30 || *g.MemoryUsedBytes != 70<<30 || *g.BusyPercent != 97 || g.Temperatures[0].Celsius != 61 || *g.Temperatures[0].CriticalCelsius != 92 ||
			*g.Power.Watts != 350 || *g.Power.MinimumWatts != 100 || *g.Power.MaximumWatts != 400 || *g.Power.DefaultWatts != 400 || g.Capability != "8.0" ||
			g.ClockMHz != 1275 || *g.Errors.Uncorrected != 0 || *g.Errors.LifelongUncorrected != 2 || g.Errors.Retired != 1 || g.Health != machine.OK || !g.Usable || g.PartitionMode != "" {
			t.Errorf("%+v", g)
		}
	}
	if d := r.Drivers[0]; d.Version != "550.90.07" || d.Management != "12.550.90.07" || d.Supported != "12.4" {
		t.Errorf("driver %+v", d)
	}
	if f := Summarize(r); f.Driver != "550.90.07" || f.Runtime != "CUDA 12.4" || f.Problems != nil || len(f.Devices) != 8 {
		t.Errorf("facts %+v", f)
	}
}

func TestWhatNVMLSaysIsJudged(t *testing.T) {
	first := func(change func(g *nvml.GPU)) func(gpus []nvml.GPU) {
		return func(gpus []nvml.GPU) { change(&gpus[0]) }
	}
	for name, tc := range map[string]struct {
		change  func(gpus []nvml.GPU)
		devices int
		health  machine.Health // of the first GPU
		says    string
	}{
		"uncorrectable errors": {first(func(g *nvml.GPU) { *g.ECC.Uncorrected = 2 }), 8, machine.Degraded, "warning: 2 uncorrectable memory errors"},
		"no spare rows":        {first(func(g *nvml.GPU) { g.Rows.Failed = true }), 8, machine.Degraded, "warning: a row of memory could not be remapped"},
		"rows wait":            {first(func(g *nvml.GPU) { g.Rows.Pending = true }), 8, machine.Degraded, "warning: a part of memory is to be retired"},
		"pages wait": {first(func(g *nvml.GPU) { g.Rows, g.Pages = nil, &nvml.Pages{Retired: 3, Pending: true} }), 8, machine.Degraded,
			"warning: a part of memory is to be retired"},
		"ECC changes":       {first(func(g *nvml.GPU) { g.ECC.Pending = false }), 8, machine.Degraded, "warning: error correction changes"},
		"a reset is due":    {first(func(g *nvml.GPU) { g.Recovery = "reset" }), 8, machine.Degraded, "warning: the driver asks for: reset"},
		"too hot":           {first(func(g *nvml.GPU) { g.Slowdowns = []string{"hardware thermal slowdown"} }), 8, machine.Degraded, "warning: the GPU is slowed down: hardware"},
		"no fabric":         {first(func(g *nvml.GPU) { g.Fabric = "in progress" }), 8, machine.Degraded, "warning: the NVLink fabric is not ready"},
		"a fabric":          {first(func(g *nvml.GPU) { g.Fabric = "completed" }), 8, machine.OK, ""},
		"prohibited":        {first(func(g *nvml.GPU) { g.ComputeMode = "prohibited" }), 7, machine.Unusable, "error: the compute mode keeps all"},
		"exclusive":         {first(func(g *nvml.GPU) { g.ComputeMode = "exclusive process" }), 8, machine.OK, "note: the compute mode is exclusive"},
		"shared out":        {first(func(g *nvml.GPU) { g.Virtual = "host vgpu" }), 7, machine.Unusable, "note: the GPU is shared out"},
		"MIG of nothing":    {first(func(g *nvml.GPU) { g.MIG = &nvml.MIG{Enabled: true, Pending: true} }), 7, machine.Unusable, "error: MIG mode is on, but there is no instance"},
		"MIG after a reset": {first(func(g *nvml.GPU) { g.MIG = &nvml.MIG{Pending: true} }), 8, machine.OK, "warning: MIG mode changes"},
		"no persistence":    {first(func(g *nvml.GPU) { *g.Persistence = false }), 8, machine.OK, "note: persistence mode is off"},
		"lost": {first(func(g *nvml.GPU) { g.Problem = &nvml.Error{Code: nvml.Lost, Detail: "GPU 0: GPU is lost"} }), 7, machine.Unusable,
			"error: NVML cannot ask the GPU: GPU 0: GPU is lost"},
		"lost, and nameless": {first(func(g *nvml.GPU) {
			*g = nvml.GPU{GPUSample: nvml.GPUSample{Problem: &nvml.Error{Code: nvml.Lost, Detail: "GPU 0: GPU is lost"}}}
		}), 7, machine.Unusable, "error: NVML cannot ask the GPU: GPU 0: GPU is lost"},
		"not for this user": {first(func(g *nvml.GPU) {
			g.Problem = &nvml.Error{Code: nvml.NoPermission, Detail: "GPU 0: Insufficient Permissions"}
		}), 8, machine.Unknown,
			"warning: NVML cannot ask the GPU"},
		"not listed": {first(func(g *nvml.GPU) { g.Address = "0000:ff:00.0" }), 7, machine.Unusable, "error: the driver has the GPU, but NVML does not list it"},
	} {
		t.Run(name, func(t *testing.T) {
			r := inspect(on(nvidia8("10DE:20B2", a100)), 192, answering(dgx(a100, tc.change), nil))
			if f := Summarize(r); len(f.Devices) != tc.devices || f.Vendor != machine.NVIDIA {
				t.Errorf("%d devices, want %d", len(f.Devices), tc.devices)
			}
			if h := r.GPUs[0].Health; h != tc.health || r.GPUs[1].Health != machine.OK {
				t.Errorf("health %s, want %s; the next one's is %s", h, tc.health, r.GPUs[1].Health)
			}
			got := problems(r)
			if tc.says == "" && len(got) != 0 || tc.says != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.says)) {
				t.Errorf("problems %q, want %q", got, tc.says)
			}
			for _, p := range r.Problems {
				if p.Severity != machine.Note && p.Remedy == "" {
					t.Errorf("no way out of %q", p.What)
				}
			}
		})
	}
}

func TestMIGMayBeOnForSomeGPUsOnly(t *testing.T) {
	inv := dgx(a100, func(gpus []nvml.GPU) {
		gpus[7].MIG = &nvml.MIG{Enabled: true, Pending: true, Instances: []nvml.MIGInstance{
			{UUID: "MIG-1", Profile: "3g.40gb", MemoryBytes: 40 << 30, Multiprocessors: 42}, {UUID: "MIG-2", Profile: "4g.40gb"}, {UUID: "MIG-3"},
		}}
	})
	r := inspect(on(nvidia8("10DE:20B2", a100)), 192, answering(inv, nil))
	want := append(repeat(7, a100), a100+" MIG 3g.40gb", a100+" MIG 4g.40gb", a100)
	if f := Summarize(r); !slices.Equal(f.Devices, want) {
		t.Errorf("%q", f.Devices)
	}
	if g := r.GPUs[7]; g.PartitionMode != "MIG" || g.Partitions != 3 || g.Instances[0].MemoryBytes != 40<<30 || g.Instances[0].ComputeUnits != 42 || r.GPUs[6].PartitionMode != "" {
		t.Errorf("%+v", g)
	}
	if len(r.Problems) > 0 {
		t.Errorf("%+v", r.Problems)
	}
}

func TestAShareOfAGPUIsToldApart(t *testing.T) {
	inv := nvml.Inventory{GPUs: []nvml.GPU{{GPUSample: nvml.GPUSample{UUID: "GPU-1", Address: "0000:07:00.0", Model: "GRID A100X-20C"}, Virtual: "vgpu", Persistence: new(false)}}}
	r := inspect(on([]files{epyc, nvidiaDriver, nvidiaNodes, nvidiaGPU("0000:07:00.0", "10DE:20B2", a100, 0), nvidiaNode(0)}), 8, answering(inv, nil))
	if g := r.GPUs[0]; !g.VirtualFunction || !g.Usable || g.Model != "GRID A100X-20C" || len(r.Problems) > 0 {
		t.Errorf("%+v, %+v", g, r.Problems)
	}
}

func TestANVMLThatDoesNotAnswerIsSaidWhereItIsAFault(t *testing.T) {
	bare := nvidia8("10DE:20B2", a100)
	other := append(slices.Clone(bare), "-- usr/lib/x86_64-linux-gnu/libcuda.so.550.90.07 --\n-- proc/driver/nvidia/version --\nNVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n")
	inside := append(slices.Clone(bare), container)
	noNodes := slices.Concat([]files{epyc, nvidiaDriver, "-- usr/bin/nvidia-modprobe --\n"}, []files{nvidiaGPU("0000:07:00.0", "10DE:20B2", a100, 0)})
	for name, tc := range map[string]struct {
		parts   []files
		err     error
		devices int
		says    []string
	}{
		"no program":                          {bare, &nvml.Error{Code: nvml.NoProgram, Detail: "agent-nvml is not there"}, 8, nil},
		"the driver without its library":      {bare, &nvml.Error{Code: nvml.NoLibrary, Detail: "no file"}, 8, []string{"warning: the driver is loaded, but its management library is missing"}},
		"the same in a container":             {inside, &nvml.Error{Code: nvml.NoLibrary, Detail: "no file"}, 8, []string{"note: the driver is loaded, but its management library is missing"}},
		"two versions":                        {bare, &nvml.Error{Code: nvml.Mismatch, Detail: "Driver/library version mismatch"}, 0, []string{"error: half-installed driver: Driver/library version mismatch"}},
		"two versions, seen in files already": {other, &nvml.Error{Code: nvml.Mismatch, Detail: "Driver/library version mismatch"}, 0, []string{"error: half-installed driver: the kernel runs 535.183.01"}},
		"two versions in a container":         {inside, &nvml.Error{Code: nvml.Mismatch, Detail: "Driver/library version mismatch"}, 8, []string{"warning: this container's NVIDIA libraries"}},
		"no driver, though it is loaded":      {bare, &nvml.Error{Code: nvml.NoDriver, Detail: "Driver Not Loaded"}, 8, []string{"warning: the driver is loaded, but its management library does not find it"}},
		"no driver for want of nodes": {noNodes, &nvml.Error{Code: nvml.NoDriver, Detail: "Driver Not Loaded"}, 1,
			[]string{"note: /dev/nvidiactl is not there yet", "note: /dev/nvidia-uvm is not there yet", "note: /dev/nvidia0 is not there yet"}},
		"no permission": {bare, &nvml.Error{Code: nvml.NoPermission, Detail: "Insufficient Permissions"}, 8, []string{"warning: NVIDIA's management library may not be used"}},
		"it hangs":      {bare, &nvml.Error{Code: nvml.Hung, Detail: "no answer"}, 8, []string{"warning: NVIDIA's management library does not answer: no answer"}},
		"it crashes":    {bare, &nvml.Error{Code: nvml.Crashed, Detail: "exit status 127"}, 8, []string{"warning: NVIDIA's management library does not answer: exit"}},
		"no time left":  {bare, context.DeadlineExceeded, 8, []string{"warning: NVIDIA's management library does not answer: context deadline"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := inspect(on(tc.parts), 192, answering(nvml.Inventory{}, tc.err))
			devices := 0
			if f := Summarize(r); f.Vendor == machine.NVIDIA {
				devices = len(f.Devices)
			}
			if got := problems(r); devices != tc.devices || !slices.EqualFunc(got, tc.says, strings.HasPrefix) {
				t.Errorf("%d devices, problems %q; want %d, %q", devices, got, tc.devices, tc.says)
			}
			if len(r.NotRead) != 1 || !strings.Contains(r.NotRead[0], "would add") {
				t.Errorf("not read: %q", r.NotRead)
			}
		})
	}
}

func TestNVMLIsAskedOnlyWhereItCanAnswer(t *testing.T) {
	for name, parts := range map[string][]files{
		"no GPU": {epyc}, "AMD": mi300x(), "no driver": {epyc, pciFunction("0000:07:00.0", "", "30200", "10DE:2330")},
		"nouveau": {epyc, pciFunction("0000:07:00.0", "nouveau", "30200", "10DE:2330")},
	} {
		r := inspect(on(parts), 8, func() (nvml.Inventory, error) {
			t.Errorf("%s: asked", name)
			return nvml.Inventory{}, errors.New("asked")
		})
		if len(r.NotRead) > 0 {
			t.Errorf("%s: %q", name, r.NotRead)
		}
	}
}

func TestAGPUThatNVMLDoesNotListIsAnotherContainers(t *testing.T) {
	inv := dgx(a100)
	inv.GPUs = inv.GPUs[:2]
	r := inspect(on(append(nvidia8("10DE:20B2", a100), container)), 192, answering(inv, nil))
	if f := Summarize(r); len(f.Devices) != 2 || f.Problems != nil {
		t.Errorf("%+v", f)
	}
}

func TestFactsCarryErrorsFirstAndNotWithoutEnd(t *testing.T) {
	var all []machine.Problem
	for i := range 20 {
		all = append(all, machine.Problem{Severity: machine.Warning, What: fmt.Sprint(i)}, machine.Problem{Severity: machine.Note, What: "note"})
	}
	all = append(all, machine.Problem{Severity: machine.Error, Device: "0000:07:00.0", What: strings.Repeat("é", 1000), Remedy: "none"})
	got := Summarize(machine.Report{Problems: all}).Problems
	if len(got) != 16 || !strings.HasPrefix(got[0], "error: 0000:07:00.0: é") || len(got[0]) > 500 || got[1] != "warning: 0" || got[15] != "6 more; see all with: agent hardware" {
		t.Errorf("%d: %q", len(got), got)
	}
	one := Summarize(machine.Report{Problems: []machine.Problem{{Severity: machine.Error, What: "a", Remedy: "b"}}}).Problems
	if !slices.Equal(one, []string{"error: a; way out: b"}) {
		t.Errorf("%q", one)
	}
}

func TestErrorsInTheKernelsLogAreOfTheirGPU(t *testing.T) {
	tr := on(nvidia8("10DE:20B2", a100))
	tr.Log = func() string {
		return "4,1,2,-;NVRM: Xid (PCI:0000:0F:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n" +
			"4,2,3,-;NVRM: Xid (PCI:0000:0f:00): 79, pid=1\n4,3,4,-;NVRM: Xid (PCI:0000:07:00): 31, pid=4711, name=python3, Ch 00000008\n4,4,5,-;NVRM: Xid (PCI:0000:47:00.0): 94, x\nNVRM: Xid (PCI:\n"
	}
	r := inspect(tr, 192, answering(dgx(a100), nil))
	got := make([]string, 0, len(r.Problems))
	for _, p := range r.Problems {
		got = append(got, p.Device+" "+p.What)
	}
	want := []string{
		"0000:0f:00.0 the kernel's log has Xid errors of the GPU: 79 (the GPU has fallen off the bus)",
		"0000:47:00.0 the kernel's log has Xid errors of the GPU: 94 (contained memory error)",
	}
	if !slices.Equal(got, want) || r.GPUs[0].Health != machine.OK || r.GPUs[1].Health != machine.Degraded || !r.GPUs[1].Usable {
		t.Errorf("%q", got)
	}
}
