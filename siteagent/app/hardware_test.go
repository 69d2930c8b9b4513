package app

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"girassol.dev/siteagent/hardware/machine"
)

func TestHardwareIsShownWithWhatIsWrongAndTheWayOut(t *testing.T) {
	watts, limit, idle := 92.0, 560.0, 0.0
	report := machine.Report{
		Kernel: "6.8.0",
		CPU:    machine.CPU{Model: "EPYC", Threads: 192, Usable: 16},
		Memory: machine.Memory{TotalBytes: 1 << 40, LimitBytes: new(uint64(64 << 30))},
		Drivers: []machine.Driver{
			{Vendor: machine.AMD, Version: "6.8.5", Runtime: "6.2.4"},
			{Vendor: machine.NVIDIA, Version: "550.90.07", Management: "12.550.90.07", Supported: "12.4"},
		},
		GPUs: []machine.GPU{
			{
				Address: "0000:29:00.0", Vendor: machine.AMD, Model: "AMD Instinct MI250", Kind: machine.Discrete, Driver: "amdgpu", Usable: true, Health: machine.OK,
				MemoryBytes: 64 << 30, BusyPercent: &idle, Temperatures: []machine.Temperature{{Sensor: "edge", Celsius: 38}, {Sensor: "junction", Celsius: 41}},
				Power: &machine.Power{Watts: &watts, LimitWatts: &limit}, Architecture: "gfx90a", ComputeUnits: 104, Board: "692",
			},
			{Address: "0000:2c:00.0", Vendor: machine.AMD, Model: "AMD Instinct MI250", Kind: machine.Discrete, Driver: "amdgpu", Usable: true, Health: machine.OK},
			{
				Address: "0000:07:00.0", Vendor: machine.NVIDIA, Model: "NVIDIA A100", Kind: machine.Discrete, Driver: "nvidia", Usable: true, Health: machine.Degraded,
				MemoryBytes: 80 << 30, MemoryUsedBytes: new(uint64(8 << 30)), Architecture: "ampere", Capability: "8.0", ClockMHz: 1275, MaxClockMHz: 1410,
				Power:  &machine.Power{Watts: &watts, LimitWatts: &limit, MinimumWatts: new(100.0), MaximumWatts: &limit, DefaultWatts: new(400.0)},
				Errors: &machine.Errors{Checked: true, Uncorrected: new(uint64(2)), Retired: 3}, Slowdowns: []string{"power brake"}, PartitionMode: "MIG", Partitions: 2,
				Instances: []machine.Instance{{Profile: "3g.40gb", MemoryBytes: 40 << 30, MemoryUsedBytes: new(uint64(1 << 30)), ComputeUnits: 42}, {ID: "MIG-1"}},
			},
			{Address: "0000:c4:00.0", Vendor: "1a03", Model: "PCI 1a03:2000", Kind: machine.BMC, Health: machine.Unknown},
		},
		Problems: []machine.Problem{
			{Severity: machine.Error, What: "permission denied on /dev/kfd", Remedy: "join the group render"},
			{Severity: machine.Note, Device: "0000:2c:00.0", What: "something"},
		},
		NotRead: []string{"NVML: would add memory"},
	}
	var out bytes.Buffer
	if err := writeReport(&out, report); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := `CPU EPYC 192 threads, 16 usable
Memory 1024.0 GiB, cgroup limit 64.0 GiB
Kernel 6.8.0
Driver amd, kernel module 6.8.5, runtime 6.2.4
Driver nvidia, kernel module 550.90.07, management library 12.550.90.07, runs CUDA up to 12.4
Trains on nvidia: NVIDIA A100 MIG 3g.40gb, NVIDIA A100

ADDRESS MODEL KIND DRIVER USABLE HEALTH MEMORY BUSY TEMP POWER DETAILS
0000:29:00.0 AMD Instinct MI250 gpu amdgpu yes ok 64.0 GiB 0% 41 C 92/560 W gfx90a, 104 CUs, board 692
0000:2c:00.0 AMD Instinct MI250 gpu amdgpu yes ok - - - - -
0000:07:00.0 NVIDIA A100 gpu nvidia yes degraded 8.0/80.0 GiB - - 92/560 W ampere, compute 8.0, 1275/1410 MHz, limits 100 to 560 W, default 400 W, ECC, 2 uncorrectable errors, 3 parts of memory retired, MIG, slowed down: power brake
MIG 3g.40gb instance 1.0/40.0 GiB 42 SMs
MIG of unknown profile instance - -
0000:c4:00.0 PCI 1a03:2000 bmc - no unknown - - - - -

error: permission denied on /dev/kfd
way out: join the group render
note: 0000:2c:00.0: something

Not read: NVML: would add memory`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

func TestHardwareIsAlsoJSONAndNothingElse(t *testing.T) {
	run := func(args ...string) (string, error) {
		cmd := HardwareCommand()
		var out bytes.Buffer
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		cmd.SetErr(&bytes.Buffer{})
		err := cmd.Execute()
		return out.String(), err
	}
	text, err := run("-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var report map[string]any
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatal(err)
	}
	if _, ok := report["gpus"].([]any); !ok || report["problems"] == nil || report["cpu"] == nil {
		t.Errorf("lists are there even when empty: %s", text)
	}
	if text, err := run(); err != nil || !strings.Contains(text, "Trains on") {
		t.Errorf("%v, %q", err, text)
	}
	if _, err := run("-o", "yaml"); err == nil || !strings.Contains(err.Error(), "want text or json") {
		t.Errorf("yaml: %v", err)
	}
	if text, err := run("--nvml", "off"); err != nil || !strings.Contains(text, "Trains on") {
		t.Errorf("without NVML: %v, %q", err, text)
	}
	if _, err := run("more"); err == nil {
		t.Error("an argument is taken")
	}
}
