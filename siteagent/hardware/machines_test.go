package hardware

import (
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing/fstest"

	"girassol.dev/siteagent/hardware/internal/tree"
)

// files of a machine: "-- name --" lines with the text behind them.
type files string

func (f files) fs() fstest.MapFS {
	m := fstest.MapFS{}
	var name string
	for line := range strings.Lines(string(f)) {
		if rest, ok := strings.CutPrefix(line, "-- "); ok {
			name = strings.TrimSuffix(strings.TrimSpace(rest), " --")
			m[name] = &fstest.MapFile{Mode: 0o444}
			continue
		}
		if name != "" {
			m[name].Data = append(m[name].Data, line...)
		}
	}
	return m
}

// refusing is a tree in which some files exist but may not be opened.
type refusing struct {
	fstest.MapFS
	names map[string]bool
}

func (r refusing) Open(name string) (fs.File, error) {
	if r.names[name] {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return r.MapFS.Open(name)
}

// on a machine of some files, a few of them denied to the process.
func on(parts []files, denied ...string) tree.Tree {
	m, names := fstest.MapFS{}, map[string]bool{}
	for _, part := range parts {
		maps.Copy(m, part.fs())
	}
	for _, name := range denied {
		names[name] = true
	}
	return tree.Tree{FS: refusing{m, names}, Allowed: func(name string) bool { return !names[name] }}
}

const epyc files = `-- proc/sys/kernel/osrelease --
6.8.0-45-generic
-- proc/cpuinfo --
processor	: 0
model name	: AMD EPYC 9654 96-Core Processor
physical id	: 0

processor	: 1
model name	: AMD EPYC 9654 96-Core Processor
physical id	: 1
-- proc/meminfo --
MemTotal:       1584942592 kB
MemFree:        1500000000 kB
MemAvailable:   1550000000 kB
-- proc/self/cgroup --
0::/user.slice/user-1000.slice
-- proc/self/mountinfo --
29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
`

// container marks a container and gives it 16 CPUs and 64 GiB.
const container files = `-- proc/self/cgroup --
0::/
-- proc/self/mountinfo --
840 720 0:52 / / rw,relatime master:287 - overlay overlay rw,lowerdir=/l
841 840 0:55 / /proc rw,nosuid - proc proc rw
-- sys/fs/cgroup/cpu.max --
1550000 100000
-- sys/fs/cgroup/memory.max --
68719476736
`

const aspeed files = `-- sys/bus/pci/devices/0000:c4:00.0/uevent --
DRIVER=ast
PCI_CLASS=30000
PCI_ID=1A03:2000
PCI_SUBSYS_ID=15D9:1B95
PCI_SLOT_NAME=0000:c4:00.0
-- sys/bus/pci/devices/0000:01:00.0/uevent --
DRIVER=nvme
PCI_CLASS=10802
PCI_ID=144D:A80A
PCI_SLOT_NAME=0000:01:00.0
`

const intelGraphics files = `-- sys/bus/pci/devices/0000:00:02.0/uevent --
DRIVER=i915
PCI_CLASS=30000
PCI_ID=8086:4680
PCI_SLOT_NAME=0000:00:02.0
`

func pciFunction(address, driver, class, id string) files {
	bound := ""
	if driver != "" {
		bound = "DRIVER=" + driver + "\n"
	}
	return files(fmt.Sprintf("-- sys/bus/pci/devices/%s/uevent --\n%sPCI_CLASS=%s\nPCI_ID=%s\nPCI_SLOT_NAME=%s\n", address, bound, class, id, address))
}

const nvidiaDriver files = `-- proc/driver/nvidia/version --
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build  (dvs-builder@U16-I2-C05-15-3)  Fri May 31 09:35:42 UTC 2024
GCC version:  gcc version 13.2.0 (Ubuntu 13.2.0-23ubuntu4)
-- sys/module/nvidia/version --
550.90.07
-- usr/lib/x86_64-linux-gnu/libcuda.so.1 --
-- usr/lib/x86_64-linux-gnu/libcuda.so.550.90.07 --
-- usr/local/cuda/version.json --
{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}, "nvcc": {"version": "12.4.131"}}
`

const nvidiaNodes files = `-- dev/nvidiactl --
-- dev/nvidia-uvm --
`

func nvidiaGPU(address, id, model string, minor int) files {
	return pciFunction(address, "nvidia", "30200", id) + files(fmt.Sprintf(`-- sys/bus/pci/devices/%[1]s/numa_node --
%[3]d
-- sys/bus/pci/devices/%[1]s/sriov_numvfs --
0
-- sys/bus/pci/devices/%[1]s/current_link_width --
16
-- sys/bus/pci/devices/%[1]s/max_link_width --
16
-- proc/driver/nvidia/gpus/%[1]s/information --
Model: 		 %[2]s
IRQ:   		 %[4]d
GPU UUID: 	 GPU-eaf23aa1-4d3d-596c-da66-b86b0e5db58%[5]d
Video BIOS: 	 96.00.74.00.0d
Bus Type: 	 PCIe
DMA Size: 	 52 bits
DMA Mask: 	 0xfffffffffffff
Bus Location: 	 %[1]s
Device Minor: 	 %[5]d
GPU Firmware: 	 550.90.07
GPU Excluded:	 No
`, address, model, minor/4, 200+minor, minor))
}

func nvidiaNode(minor int) files { return files(fmt.Sprintf("-- dev/nvidia%d --\n", minor)) }

// nvidia8 is a baseboard with eight GPUs and their nodes.
func nvidia8(id, model string) (parts []files) {
	parts = []files{epyc, aspeed, nvidiaDriver, nvidiaNodes}
	for i, bus := range []string{"07", "0f", "47", "4e", "87", "90", "b7", "bd"} {
		parts = append(parts, nvidiaGPU("0000:"+bus+":00.0", id, model, i), nvidiaNode(i))
	}
	return parts
}

const amdDriver files = `-- sys/module/amdgpu/version --
6.8.5
-- opt/rocm/.info/version --
6.2.4-139
-- sys/class/kfd/kfd/topology/nodes/0/properties --
cpu_cores_count 96
simd_count 0
vendor_id 0
`

const kfd files = "-- dev/kfd --\n"

type amdCard struct {
	address, class, id, product, board string
	gfx, simds, render                 int
	memory                             uint64
	watts                              bool // its own power sensor
	metrics                            byte // format revision
}

// bus of the address, as KFD counts locations.
func (c amdCard) location() (n int) {
	_, _ = fmt.Sscanf(c.address, "0000:%x:", &n)
	return n << 8
}

// files of a card in slot n of KFD's topology.
func (c amdCard) files(n int) files {
	f := pciFunction(c.address, "amdgpu", c.class, c.id) + files(fmt.Sprintf(`-- sys/bus/pci/devices/%[1]s/drm/card%[2]d/dev --
226:%[2]d
-- sys/bus/pci/devices/%[1]s/drm/renderD%[3]d/dev --
226:%[3]d
-- sys/bus/pci/devices/%[1]s/mem_info_vram_total --
%[4]d
-- sys/bus/pci/devices/%[1]s/mem_info_vram_used --
10850304
-- sys/bus/pci/devices/%[1]s/gpu_busy_percent --
0
-- sys/bus/pci/devices/%[1]s/unique_id --
b4d6f3c2a1%06[2]x
-- sys/bus/pci/devices/%[1]s/serial_number --
%[5]s
-- sys/bus/pci/devices/%[1]s/product_name --
%[6]s
-- sys/bus/pci/devices/%[1]s/vbios_version --
113-D67301-063
-- sys/bus/pci/devices/%[1]s/pp_dpm_sclk --
0: 500Mhz
1: 800Mhz *
2: 1700Mhz
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/name --
amdgpu
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/temp2_input --
41000
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/temp2_label --
junction
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/temp2_crit --
100000
-- sys/bus/pci/devices/%[1]s/ras/umc_err_count --
ue: 0
ce: 3
-- sys/class/kfd/kfd/topology/nodes/%[2]d/properties --
cpu_cores_count 0
simd_count %[7]d
simd_per_cu 4
gfx_target_version %[8]d
fw_version 68
vendor_id 4098
location_id %[9]d
domain 0
drm_render_minor %[3]d
-- dev/dri/renderD%[3]d --
`, c.address, n, c.render, c.memory, c.board, c.product, c.simds, c.gfx, c.location()))
	if c.watts {
		f += files(fmt.Sprintf(`-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/power1_average --
92000000
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/power1_cap --
560000000
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/power1_cap_default --
500000000
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/power1_cap_min --
0
-- sys/bus/pci/devices/%[1]s/hwmon/hwmon%[2]d/power1_cap_max --
560000000
`, c.address, n))
	}
	if c.metrics > 0 {
		f += files(fmt.Sprintf("-- sys/bus/pci/devices/%s/gpu_metrics --\n\x40\x01%c\x03 and so on\n", c.address, c.metrics))
	}
	return f
}

// mi250 has two dies on each card, each a GPU of its own; the first one's sensor
// measures both.
func mi250() (parts []files) {
	parts = []files{epyc, aspeed, amdDriver, kfd}
	for i, bus := range []string{"29", "2c", "2f", "32", "ad", "b0", "b3", "b6"} {
		parts = append(parts, amdCard{
			address: "0000:" + bus + ":00.0", class: "38000", id: "1002:740C", board: fmt.Sprintf("69225500%d", i/2),
			gfx: 90010, simds: 416, render: 128 + i, memory: 64 << 30, watts: i%2 == 0, metrics: 1,
		}.files(i+1))
	}
	return parts
}

func mi300x() (parts []files) {
	parts = []files{epyc, aspeed, amdDriver, kfd}
	for i, bus := range []string{"05", "26", "46", "65", "85", "a6", "c6", "e5"} {
		parts = append(parts, amdCard{
			address: "0000:" + bus + ":00.0", class: "120000", id: "1002:74A1", product: "AMD Instinct MI300X OAM", board: fmt.Sprintf("69242400%d", i),
			gfx: 90402, simds: 1216, render: 128 + 8*i, memory: 206141652992, watts: true, metrics: 1,
		}.files(i+1))
	}
	return parts
}

// partitioned is one MI300X as eight devices, of which PCI shows one.
func partitioned() []files {
	card := amdCard{address: "0000:05:00.0", class: "120000", id: "1002:74A1", product: "AMD Instinct MI300X OAM", gfx: 90402, simds: 152, render: 128, memory: 206141652992, watts: true, metrics: 1}
	parts := []files{epyc, amdDriver, kfd, card.files(1), `-- sys/bus/pci/devices/0000:05:00.0/current_compute_partition --
CPX
-- sys/bus/pci/devices/0000:05:00.0/current_memory_partition --
NPS4
`}
	for i := 1; i < 8; i++ {
		parts = append(parts, files(fmt.Sprintf(`-- sys/class/kfd/kfd/topology/nodes/%d/properties --
simd_count 152
simd_per_cu 4
gfx_target_version 90402
location_id %d
domain 0
drm_render_minor %d
-- dev/dri/renderD%d --
`, 1+i, 5<<8|i, 128+i, 128+i)))
	}
	return parts
}

// ryzen is a desktop's integrated graphics.
func ryzen(metrics byte) []files {
	return []files{epyc, amdDriver, kfd, amdCard{
		address: "0000:0e:00.0", class: "30000", id: "1002:164E", gfx: 100306, simds: 4, render: 128, memory: 512 << 20, metrics: metrics,
	}.files(1)}
}
