package hardware

import (
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"girassol.dev/siteagent/hardware/machine"
)

// repeat a name.
func repeat(n int, name string) []string { return slices.Repeat([]string{name}, n) }

// problems of a report as lines, without the device.
func problems(r machine.Report) (lines []string) {
	for _, p := range r.Problems {
		lines = append(lines, string(p.Severity)+": "+p.What)
	}
	return lines
}

const epycName = "AMD EPYC 9654 96-Core Processor"

func TestMachinesAreSeenAsTheyAre(t *testing.T) {
	const h100, mi250Name, mi300Name = "NVIDIA H100 80GB HBM3", "AMD Instinct MI250", "AMD Instinct MI300X OAM"
	one := func(parts ...files) []files { return append([]files{epyc, aspeed}, parts...) }
	gpu := nvidiaGPU("0000:07:00.0", "10DE:2330", h100, 0)
	all := slices.Concat[[]files]
	for name, tc := range map[string]struct {
		parts    []files
		denied   []string
		vendor   string
		devices  []string
		problems []string // all, in order, each from its beginning
	}{
		"no GPU":                                 {[]files{epyc}, nil, CPU, []string{epycName}, nil},
		"BMC only":                               {[]files{epyc, aspeed}, nil, CPU, []string{epycName}, nil},
		"Intel integrated graphics":              {[]files{epyc, intelGraphics}, nil, CPU, []string{epycName}, nil},
		"AMD integrated graphics by its metrics": {ryzen(2), nil, CPU, []string{epycName}, []string{"note: integrated graphics"}},
		"AMD integrated graphics by its architecture": {ryzen(0), nil, CPU, []string{epycName}, []string{"note: integrated graphics"}},
		"8 A100":                    {nvidia8("10DE:20B2", "NVIDIA A100-SXM4-80GB"), nil, machine.NVIDIA, repeat(8, "NVIDIA A100-SXM4-80GB"), nil},
		"8 H100":                    {nvidia8("10DE:2330", h100), nil, machine.NVIDIA, repeat(8, h100), nil},
		"4 MI250 of two dies":       {mi250(), nil, machine.AMD, repeat(8, mi250Name), nil},
		"8 MI300X":                  {mi300x(), nil, machine.AMD, repeat(8, mi300Name), nil},
		"an MI300X in 8 partitions": {partitioned(), nil, machine.AMD, repeat(8, mi300Name), nil},
		"an NVIDIA GPU beside AMD's integrated graphics": {
			all(ryzen(2), one(nvidiaDriver, nvidiaNodes, gpu, nvidiaNode(0))), nil, machine.NVIDIA, []string{h100}, []string{"note: integrated graphics"},
		},
		"both vendors: the one with more": {
			all(mi300x(), one(nvidiaDriver, nvidiaNodes, nvidiaGPU("0000:47:00.0", "10DE:2330", h100, 0), nvidiaNode(0))), nil, machine.AMD, repeat(8, mi300Name), nil,
		},
		"MIG": {
			one(nvidiaDriver, nvidiaNodes, gpu, nvidiaNode(0), "-- proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access --\n-- proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access --\n"),
			nil, machine.NVIDIA, repeat(2, h100), []string{"note: the GPU is divided into 2 MIG instances"},
		},
		"NVIDIA without a driver": {one(pciFunction("0000:07:00.0", "", "30200", "10DE:2330")), nil, CPU, []string{epycName}, []string{"error: an NVIDIA GPU is here, but no driver"}},
		"nouveau":                 {one(pciFunction("0000:07:00.0", "nouveau", "30200", "10DE:2330")), nil, CPU, []string{epycName}, []string{"error: the GPU is bound to nouveau"}},
		"a GPU for virtual machines": {
			one(pciFunction("0000:07:00.0", "vfio-pci", "30200", "10DE:2330")), nil, CPU, []string{epycName}, []string{"note: the GPU is set aside for a virtual machine"},
		},
		"half-installed: libraries without the module": {
			one(pciFunction("0000:07:00.0", "", "30200", "10DE:2330"), "-- usr/lib64/libcuda.so.550.90.07 --\n"), nil, CPU, []string{epycName},
			[]string{"error: half-installed driver: libcuda 550.90.07 is here"},
		},
		"half-installed: another version's libraries": {
			one(nvidiaDriver, nvidiaNodes, gpu, nvidiaNode(0), "-- proc/driver/nvidia/version --\nNVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"),
			nil, CPU, []string{epycName}, []string{"error: half-installed driver: the kernel runs 535.183.01, but libcuda is 550.90.07"},
		},
		"the module has not taken the GPU": {
			one(nvidiaDriver, pciFunction("0000:07:00.0", "", "30200", "10DE:2330")), nil, CPU, []string{epycName}, []string{"error: the module nvidia is loaded, but has not taken the GPU"},
		},
		"the driver does not list the GPU": {
			one(nvidiaDriver, pciFunction("0000:07:00.0", "nvidia", "30200", "10DE:2330")), nil, CPU, []string{epycName}, []string{"error: the driver is bound to the GPU, but does not list it"},
		},
		"an excluded GPU": {
			one(nvidiaDriver, nvidiaNodes, files(strings.Replace(string(gpu), "Excluded:\t No", "Excluded:\t Yes", 1)), nvidiaNode(0)), nil, CPU, []string{epycName},
			[]string{"note: the GPU is excluded by the administrator"},
		},
		"NVIDIA without device nodes": {
			one(nvidiaDriver, gpu), nil, CPU, []string{epycName},
			[]string{"error: the driver is loaded, but /dev/nvidiactl is missing", "error: the driver is loaded, but /dev/nvidia-uvm", "error: the driver is loaded, but /dev/nvidia0"},
		},
		"NVIDIA after a boot, before the first use": {
			one(nvidiaDriver, gpu, "-- usr/bin/nvidia-modprobe --\n"), nil, machine.NVIDIA, []string{h100},
			[]string{"note: /dev/nvidiactl is not there yet", "note: /dev/nvidia-uvm is not there yet", "note: /dev/nvidia0 is not there yet"},
		},
		"NVIDIA permission denied": {
			one(nvidiaDriver, nvidiaNodes, gpu, nvidiaNode(0)), []string{"dev/nvidia0"}, CPU, []string{epycName}, []string{"error: permission denied on /dev/nvidia0"},
		},
		"an agent's container beside the trainer's": {
			append(nvidia8("10DE:2330", h100)[:3:3], container, gpu), nil, machine.NVIDIA, []string{h100},
			[]string{"warning: the driver is loaded, but this container has no /dev/nvidiactl", "warning: the driver is loaded, but this container has no /dev/nvidia-uvm", "warning: the driver is loaded, but this container has no /dev/nvidia0"},
		},
		"a container with one GPU of two": {
			one(container, nvidiaDriver, nvidiaNodes, gpu, nvidiaGPU("0000:0f:00.0", "10DE:2330", h100, 1), nvidiaNode(1)), nil, machine.NVIDIA, []string{h100},
			[]string{"note: the GPU is not given to this container (/dev/nvidia0 is missing)"},
		},
		"NVSwitches without their service": {
			append(nvidia8("10DE:2330", h100), "-- proc/driver/nvidia-nvswitch/devices/0000:05:00.0 --\n"), nil, machine.NVIDIA, repeat(8, h100),
			[]string{"warning: the GPUs are joined by NVSwitches"},
		},
		"NVSwitches with their service": {
			append(nvidia8("10DE:2330", h100), "-- proc/driver/nvidia-nvswitch/devices/0000:05:00.0 --\n-- run/nvidia-fabricmanager/nv-fabricmanager.pid --\n"), nil, machine.NVIDIA, repeat(8, h100), nil,
		},
		"a narrow link": {
			one(nvidiaDriver, nvidiaNodes, gpu, nvidiaNode(0), "-- sys/bus/pci/devices/0000:07:00.0/current_link_width --\n8\n"), nil, machine.NVIDIA, []string{h100},
			[]string{"warning: the PCIe link has 8 of 16 lanes"},
		},
		"AMD without a driver": {one(pciFunction("0000:29:00.0", "", "38000", "1002:740C")), nil, CPU, []string{epycName}, []string{"error: an AMD GPU is here, but the driver amdgpu is not loaded"}},
		"half-installed: ROCm without the driver": {
			one(pciFunction("0000:29:00.0", "", "38000", "1002:740C"), "-- opt/rocm/.info/version --\n6.2.4\n"), nil, CPU, []string{epycName},
			[]string{"error: half-installed driver: ROCm is installed"},
		},
		"amdgpu has not taken the GPU": {
			one(amdDriver, pciFunction("0000:29:00.0", "", "38000", "1002:740C")), nil, CPU, []string{epycName}, []string{"error: amdgpu is loaded, but has not taken the GPU"},
		},
		"no compute half": {
			one("-- sys/module/amdgpu/initstate --\nlive\n", pciFunction("0000:29:00.0", "amdgpu", "38000", "1002:740C")), nil, CPU, []string{epycName},
			[]string{"error: the kernel's amdgpu has no compute half"},
		},
		"not for computing": {
			one(amdDriver, pciFunction("0000:29:00.0", "amdgpu", "38000", "1002:740C")), nil, CPU, []string{epycName}, []string{"error: amdgpu shows the GPU, but not for computing"},
		},
		"permission denied on /dev/kfd": {mi300x(), []string{"dev/kfd"}, CPU, []string{epycName}, []string{"error: permission denied on /dev/kfd"}},
		"permission denied on a render node": {
			mi300x(), []string{"dev/dri/renderD128"}, machine.AMD, repeat(7, mi300Name), []string{"error: permission denied on /dev/dri/renderD128"},
		},
		"GPUs kept from the container": {
			append(mi250(), container), []string{"sys/class/kfd/kfd/topology/nodes/1/properties"}, machine.AMD, repeat(7, mi250Name),
			[]string{"note: the GPU is not given to this container"},
		},
		"uncorrectable errors": {
			append(mi300x(), "-- sys/bus/pci/devices/0000:05:00.0/ras/umc_err_count --\nue: 2\nce: 9\n"), nil, machine.AMD, repeat(8, mi300Name),
			[]string{"warning: 2 uncorrectable errors in umc"},
		},
		"pages of memory to be retired": {
			append(mi300x(), "-- sys/bus/pci/devices/0000:05:00.0/ras/gpu_vram_bad_pages --\n0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n"), nil, machine.AMD, repeat(8, mi300Name),
			[]string{"warning: 2 bad pages of memory"},
		},
		"too hot": {
			append(mi300x(), "-- sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon1/temp2_input --\n101000\n"), nil, machine.AMD, repeat(8, mi300Name),
			[]string{"warning: sensor junction is at 101 C, critical is 100 C"},
		},
		"a host of virtual functions": {
			append(mi300x()[:5:5], "-- sys/bus/pci/devices/0000:05:00.0/sriov_numvfs --\n1\n"), nil, CPU, []string{epycName},
			[]string{"note: the GPU is divided into 1 virtual functions"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := inspect(on(tc.parts, tc.denied...), 192, nil)
			f := Summarize(r)
			if f.Vendor != tc.vendor || !slices.Equal(f.Devices, tc.devices) {
				t.Errorf("vendor %q, devices %q; want %q, %q", f.Vendor, f.Devices, tc.vendor, tc.devices)
			}
			got := problems(r)
			if !slices.EqualFunc(got, tc.problems, strings.HasPrefix) {
				t.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.problems, "\n"))
			}
			for _, p := range r.Problems {
				if p.Severity != machine.Note && p.Remedy == "" {
					t.Errorf("no way out of %q", p.What)
				}
			}
			for _, g := range r.GPUs {
				if g.Usable && g.Kind != machine.Discrete || g.Kind == machine.Discrete && g.Usable == (g.Health == machine.Unusable) {
					t.Errorf("%s is a %s, usable %t, health %s", g.Address, g.Kind, g.Usable, g.Health)
				}
			}
		})
	}
}

func TestAnAMDGPUIsDescribedByItsDriver(t *testing.T) {
	r := inspect(on(mi250()), 192, nil)
	var boards []string
	var measured int
	for _, g := range r.GPUs {
		if g.Vendor != machine.AMD {
			continue
		}
		boards = append(boards, g.Board)
		if g.MemoryBytes != 64<<30 || g.ComputeUnits != 104 || g.Architecture != "gfx90a" || g.ComputeFirmware != "68" || g.ClockMHz != 800 || g.MaxClockMHz != 1700 || g.ID == "" ||
			g.BusyPercent == nil || *g.BusyPercent != 0 || len(g.Temperatures) != 1 || g.Temperatures[0].Celsius != 41 || g.Health != machine.OK || g.Partitions != 0 {
			t.Errorf("%+v", g)
		}
		if g.Power != nil {
			measured++
			if *g.Power.Watts != 92 || *g.Power.LimitWatts != 560 || *g.Power.MinimumWatts != 0 || *g.Power.MaximumWatts != 560 || *g.Power.DefaultWatts != 500 {
				t.Errorf("power %+v", g.Power)
			}
		}
	}
	if len(boards) != 8 || len(slices.Compact(boards)) != 4 || measured != 4 {
		t.Errorf("boards %v, %d with a power sensor; want 4 boards of two, one sensor each", boards, measured)
	}
	if d := r.Drivers[0]; d.Version != "6.8.5" || d.Runtime != "6.2.4-139" {
		t.Errorf("driver %+v", d)
	}
}

func TestPartitionsOfAnAMDGPUAddUpToIt(t *testing.T) {
	g := inspect(on(partitioned()), 192, nil).GPUs[0]
	if g.Partitions != 8 || g.ComputeUnits != 304 || g.PartitionMode != "CPX/NPS4" || len(g.Nodes) != 9 {
		t.Errorf("%+v", g)
	}
}

func TestAnNVIDIAGPUHasWhatFilesTellAndNamesNVMLForTheRest(t *testing.T) {
	r := inspect(on(nvidia8("10DE:2330", "NVIDIA H100 80GB HBM3")), 192, nil)
	g := r.GPUs[5]
	if g.ID != "GPU-eaf23aa1-4d3d-596c-da66-b86b0e5db585" || g.Firmware != "96.00.74.00.0d" || g.NUMANode == nil || *g.NUMANode != 1 || len(g.Nodes) != 3 {
		t.Errorf("%+v", g)
	}
	if g.MemoryBytes != 0 || g.BusyPercent != nil || g.Power != nil || g.Health != machine.Unknown {
		t.Errorf("guessed: %+v", g)
	}
	if len(r.NotRead) != 1 || !strings.Contains(r.NotRead[0], "NVML") {
		t.Errorf("not read: %q", r.NotRead)
	}
	if d := r.Drivers[0]; d.Version != "550.90.07" || d.Flavour != "open" || d.Library != d.Version || d.Runtime != "12.4.1" {
		t.Errorf("driver %+v", d)
	}
	if bmc := r.GPUs[8]; bmc.Kind != machine.BMC || bmc.Usable || len(r.GPUs) != 9 {
		t.Errorf("%d functions, the last %+v", len(r.GPUs), bmc)
	}
}

func TestAVirtualFunctionIsToldApart(t *testing.T) {
	guest := amdCard{address: "0000:05:00.0", class: "120000", id: "1002:74B5", gfx: 90402, simds: 1216, render: 128, memory: 206141652992, metrics: 1}
	g := inspect(on([]files{epyc, amdDriver, kfd, guest.files(1)}), 8, nil).GPUs[0]
	if !g.VirtualFunction || !g.Usable || g.Model != "AMD Instinct MI300X VF" {
		t.Errorf("%+v", g)
	}
}

func TestAModelWithoutADriverIsNamedByTheListOfIDs(t *testing.T) {
	parts := []files{epyc, pciFunction("0000:07:00.0", "nouveau", "30200", "10DE:2330")}
	if got := inspect(on(parts), 1, nil).GPUs[0].Model; got != "PCI 10de:2330" {
		t.Errorf("without a list %q", got)
	}
	parts = append(parts, "-- usr/share/misc/pci.ids --\n# list\n1002  AMD\n\t2330  Another\n10de  NVIDIA Corporation\n\t20b2  GA100 [A100 SXM4 80GB]\n\t2330  GH100 [H100 SXM5 80GB]\n\t\t10de 16c1  Sub\n")
	if got := inspect(on(parts), 1, nil).GPUs[0].Model; got != "NVIDIA Corporation GH100 [H100 SXM5 80GB]" {
		t.Errorf("with a list %q", got)
	}
}

// The kernel's folders of devices hold links, and a node's mode is the kernel's
// to judge.
func TestAMachineOnDiskIsReadThroughItsLinks(t *testing.T) {
	root := t.TempDir()
	const bus, real = "sys/bus/pci/devices", "sys/devices/pci0000:00"
	parts := mi300x()
	for _, part := range parts {
		for name, file := range part.fs() {
			path := filepath.Join(root, strings.Replace(name, bus, real, 1))
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, file.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.MkdirAll(filepath.Join(root, bus), 0o700); err != nil {
		t.Fatal(err)
	}
	devices, err := os.ReadDir(filepath.Join(root, real))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if err := os.Symlink("../../../devices/pci0000:00/"+d.Name(), filepath.Join(root, bus, d.Name())); err != nil {
			t.Fatal(err)
		}
	}
	got, want := inspect(below(root), 192, nil), inspect(on(parts), 192, nil)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
	t.Run("a node closed to the process", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root is denied nothing: run as another user")
		}
		if err := os.Chmod(filepath.Join(root, "dev/kfd"), 0); err != nil {
			t.Fatal(err)
		}
		if got := problems(inspect(below(root), 192, nil)); !slices.Equal(got, []string{"error: permission denied on /dev/kfd"}) {
			t.Errorf("%q", got)
		}
	})
}

func TestLimitsOfTheCgroupBound(t *testing.T) {
	for name, tc := range map[string]struct {
		extra    files
		affinity int
		cpus     int
		memory   uint64
	}{
		"none":               {"", 192, 192, 1584942592 << 10},
		"affinity only":      {"", 4, 4, 1584942592 << 10},
		"a container":        {container, 192, 16, 64 << 30},
		"version 2 says max": {"-- sys/fs/cgroup/user.slice/cpu.max --\nmax 100000\n-- sys/fs/cgroup/user.slice/memory.max --\nmax\n", 192, 192, 1584942592 << 10},
		"a group above":      {"-- sys/fs/cgroup/user.slice/memory.max --\n1073741824\n-- sys/fs/cgroup/user.slice/user-1000.slice/memory.max --\n2147483648\n", 192, 192, 1 << 30},
		"version 1": {
			"-- proc/self/cgroup --\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n-- sys/fs/cgroup/memory/memory.limit_in_bytes --\n1073741824\n-- sys/fs/cgroup/cpu/cpu.cfs_quota_us --\n50000\n-- sys/fs/cgroup/cpu/cpu.cfs_period_us --\n100000\n",
			192, 1, 1 << 30,
		},
		"version 1 without limits": {
			"-- proc/self/cgroup --\n4:memory:/\n3:cpu:/\n-- sys/fs/cgroup/memory/memory.limit_in_bytes --\n9223372036854771712\n-- sys/fs/cgroup/cpu/cpu.cfs_quota_us --\n-1\n-- sys/fs/cgroup/cpu/cpu.cfs_period_us --\n100000\n",
			192, 192, 1584942592 << 10,
		},
		"a group outside": {"-- proc/self/cgroup --\n0::/../../x\n", 192, 192, 1584942592 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			f := Summarize(inspect(on([]files{epyc, tc.extra}), tc.affinity, nil))
			if f.CPUs != tc.cpus || f.MemoryBytes != tc.memory {
				t.Errorf("%d CPUs and %d bytes, want %d and %d", f.CPUs, f.MemoryBytes, tc.cpus, tc.memory)
			}
		})
	}
}

func TestNothingReadableLeavesEverythingOut(t *testing.T) {
	r := inspect(on(nil), 0, nil)
	f := Summarize(r)
	if f.Vendor != CPU || f.Devices != nil || f.CPUs != 1 || f.MemoryBytes != 0 || len(r.GPUs)+len(r.Problems)+len(r.Drivers) != 0 {
		t.Errorf("facts %+v, report %+v", f, r)
	}
}

func TestThisMachineHasAtLeastProcessors(t *testing.T) {
	f := Summarize(Inspect(t.Context(), nil))
	if f.Vendor == "" || f.CPUs < 1 || f.CPUs > runtime.NumCPU() {
		t.Errorf("facts %+v", f)
	}
}

// Whatever a file holds, reading it ends, and what is said fits together.
func FuzzReport(f *testing.F) {
	base := [][]files{nvidia8("10DE:2330", "NVIDIA H100"), mi250(), partitioned(), ryzen(2), {epyc, container}}
	names := make([][]string, len(base))
	for i, parts := range base {
		m := files("").fs()
		for _, part := range parts {
			for name := range part.fs() {
				m[name] = nil
			}
		}
		for name := range m {
			names[i] = append(names[i], name)
		}
		slices.Sort(names[i])
		for j := range names[i] {
			f.Add(uint8(i), uint16(j), []byte("0"))
			f.Add(uint8(i), uint16(j), []byte("18446744073709551615: -- \x00\xff\nue: 7\n"))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, file uint16, content []byte) {
		i := int(which) % len(base)
		name := names[i][int(file)%len(names[i])]
		tr := on(append(slices.Clone(base[i]), files("-- "+name+" --\n")))
		tr.FS.(refusing).MapFS[name].Data = content
		r := inspect(tr, 192, nil)
		facts := Summarize(r)
		if facts.CPUs < 1 || facts.CPUs > 192 || facts.Vendor == "" {
			t.Errorf("facts %+v", facts)
		}
		for _, g := range r.GPUs {
			if g.Model == "" || g.ComputeUnits < 0 || g.MaxClockMHz < g.ClockMHz ||
				g.Kind == machine.Discrete && g.Usable == (g.Health == machine.Unusable) {
				t.Errorf("%s = %q: %+v", name, content, g)
			}
		}
	})
}
