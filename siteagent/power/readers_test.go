package power

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"girassol.dev/siteagent/nvml"
)

// tree of files by name.
func tree(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text + "\n"), Mode: 0o444}
	}
	return out
}

// locked is a tree whose files of one base name only root may read.
type locked struct {
	fstest.MapFS
	base string
}

func (l locked) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, "/"+l.base) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return l.MapFS.Open(name)
}

func zoneFiles(dir, name, uj, most string) map[string]string {
	dir = powercap + "/" + dir
	return map[string]string{dir + "/name": name, dir + "/energy_uj": uj, dir + "/max_energy_range_uj": most}
}

func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

var twoSockets = merged(
	map[string]string{powercap + "/intel-rapl/enabled": "1"},
	zoneFiles("intel-rapl:0", "package-0", "1000000", "262143328850"),
	zoneFiles("intel-rapl:0:0", "core", "600000", "262143328850"),
	zoneFiles("intel-rapl:0:1", "dram", "70000", "65712999613"),
	zoneFiles("intel-rapl:1", "package-1", "2000000", "262143328850"),
	zoneFiles("intel-rapl:1:0", "dram", "80000", "65712999613"),
	zoneFiles("intel-rapl:2", "psys", "9000000", "262143328850"),
	zoneFiles("intel-rapl-mmio:0", "package-0", "1000000", "262143328850"),
)

func TestRAPLTrees(t *testing.T) {
	for _, c := range []struct {
		name     string
		root     fs.FS
		want     string
		problems []string // parts of what is said, each
	}{
		{name: "no powercap is normal", root: tree(nil)},
		{name: "two sockets with memory, cores and platform not added", root: tree(twoSockets),
			want: "rapl package-0 1000000 of 262143328850, rapl dram of zone 0 70000 of 65712999613, rapl package-1 2000000 of 262143328850, rapl dram of zone 1 80000 of 65712999613"},
		{name: "platform alone", root: tree(zoneFiles("intel-rapl:0", "psys", "7", "100")), want: "rapl-psys psys 7 of 100"},
		{name: "two dies of a package", root: tree(merged(zoneFiles("intel-rapl:0", "package-0-die-0", "1", "9"), zoneFiles("intel-rapl:1", "package-0-die-1", "2", "9"))),
			want: "rapl package-0-die-0 1 of 9, rapl package-0-die-1 2 of 9"},
		{name: "only root may read the counters", root: locked{tree(zoneFiles("intel-rapl:0", "package-0", "1", "9")), "energy_uj"},
			problems: []string{"package-0: open sys/class/powercap/intel-rapl:0/energy_uj: permission denied; ", "chmod a+r"}},
		{name: "packages that cannot be read are not replaced by the platform",
			root:     locked{tree(merged(zoneFiles("intel-rapl:0", "package-0", "1", "9"), zoneFiles("intel-rapl:1", "psys", "1", "9"))), "intel-rapl:0/energy_uj"},
			problems: []string{"permission denied"}},
		{name: "a range that cannot be read makes no counter", root: locked{tree(zoneFiles("intel-rapl:0", "package-0", "1", "9")), "max_energy_range_uj"},
			problems: []string{"max_energy_range_uj: permission denied"}},
		{name: "a container's runtime hides the zones", root: tree(map[string]string{powercap + "/intel-rapl:0/device": ""}),
			problems: []string{"mount the host's /sys/class/powercap", "--powercap-root"}},
		{name: "garbage", root: tree(zoneFiles("intel-rapl:0", "package-0", "-5", "9")), problems: []string{`"-5" is no whole number`}},
		{name: "beyond the range", root: tree(zoneFiles("intel-rapl:0", "package-0", "10", "9")), problems: []string{"beyond max_energy_range_uj, 9"}},
		{name: "no range", root: tree(zoneFiles("intel-rapl:0", "package-0", "0", "0")), problems: []string{"beyond"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			readings, faults := RAPL(c.root)
			check(t, readings, faults, c.want, c.problems)
		})
	}
}

// sysfs' classes are folders of links into devices.
func TestReadersFollowTheLinksOfSysfs(t *testing.T) {
	root := t.TempDir()
	for class, files := range map[string]map[string]string{
		powercap + "/intel-rapl:0": {"name": "package-0", "energy_uj": "12", "max_energy_range_uj": "99"},
		hwmon + "/hwmon4":          {"name": "amdgpu", "power1_average": "3000000", "device/uevent": "PCI_SLOT_NAME=0000:c1:00.0"},
	} {
		device := filepath.Join("sys/devices", filepath.Base(class))
		for name, text := range files {
			file := filepath.Join(root, device, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(class)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("../../..", device), filepath.Join(root, class)); err != nil {
			t.Fatal(err)
		}
	}
	s := (&Sampler{Root: os.DirFS(root)}).read(noon)
	check(t, s.Readings, s.Faults, "rapl package-0 12 of 99, amdgpu-power 0000:c1:00.0 3 W", nil)
}

func boardFiles(n int, slot string, files map[string]string) map[string]string {
	dir := fmt.Sprintf("%s/hwmon%d/", hwmon, n)
	out := map[string]string{dir + "name": "amdgpu"}
	if slot != "" {
		out[dir+"device/uevent"] = "DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_SLOT_NAME=" + slot
	}
	for name, text := range files {
		out[dir+name] = text
	}
	return out
}

func TestAMDGPUTrees(t *testing.T) {
	for _, c := range []struct {
		name     string
		root     fs.FS
		want     string
		problems []string
	}{
		{name: "no hwmon is normal", root: tree(nil)},
		{name: "other sensors are passed over", root: tree(map[string]string{hwmon + "/hwmon0/name": "coretemp", hwmon + "/hwmon0/power1_average": "5"})},
		{name: "counter before sensor", root: tree(boardFiles(3, "0000:03:00.0", map[string]string{"energy1_input": "123", "power1_average": "5"})),
			want: "amdgpu 0000:03:00.0 123 of 0"},
		{name: "average, then input", root: tree(merged(
			boardFiles(1, "0000:03:00.0", map[string]string{"power1_average": "250000000", "power1_input": "1"}),
			boardFiles(2, "", map[string]string{"power1_input": "90000000"}))),
			want: "amdgpu-power 0000:03:00.0 250 W, amdgpu-power hwmon2 90 W"},
		{name: "a second die shows nothing", root: tree(merged(boardFiles(1, "a", map[string]string{"power1_average": "1000000"}), boardFiles(2, "b", map[string]string{"temp1_input": "40000"}))),
			want: "amdgpu-power a 1 W"},
		{name: "a counter that cannot be read is not replaced", root: locked{tree(boardFiles(1, "a", map[string]string{"energy1_input": "1", "power1_average": "1"})), "energy1_input"},
			problems: []string{"a: open", "permission denied; give the agent read access to /sys/class/hwmon/hwmon1"}},
		{name: "no sensor: limit times utilisation; the other die of a board has no limit", root: tree(merged(
			boardFiles(1, "a", map[string]string{"power1_cap": "350000000", "device/gpu_busy_percent": "50"}),
			boardFiles(2, "b", map[string]string{"power1_cap": "0", "device/gpu_busy_percent": "50"}))), want: "model a 200 W"},
		{name: "no power of a board", root: tree(boardFiles(1, "a", map[string]string{"power1_average": "18446744073709551615"})), problems: []string{"no power of a board"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			readings, faults := AMDGPU(c.root)
			check(t, readings, faults, c.want, c.problems)
		})
	}
}

func check(t *testing.T, readings []Reading, faults []Fault, want string, problems []string) {
	t.Helper()
	var got []string
	for _, r := range readings {
		if r.MaxWatts <= 0 || r.Accuracy <= 0 || r.Part == "" {
			t.Errorf("incomplete: %+v", r)
		}
		if r.Cumulative {
			got = append(got, fmt.Sprintf("%s %s %d of %d", r.Source, r.Device, r.Microjoules, r.Range))
		} else {
			got = append(got, fmt.Sprintf("%s %s %g W", r.Source, r.Device, r.Watts))
		}
	}
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("readings: %s\nwant: %s", text, want)
	}
	said := fmt.Sprint(faults)
	if len(problems) == 0 && len(faults) > 0 {
		t.Errorf("says %s", said)
	}
	for _, p := range problems {
		if !strings.Contains(said, p) {
			t.Errorf("says %s\nwant %q within", said, p)
		}
	}
}

func TestModelOfProcessorsFollowsUtilisation(t *testing.T) {
	zones := func(files map[string]string) map[string]string {
		return merged(zoneFiles("intel-rapl:0", "package-0", "1", "9"), zoneFiles("intel-rapl:1", "package-1", "1", "9"),
			zoneFiles("intel-rapl-mmio:0", "package-0", "1", "9"), files)
	}
	limits := map[string]string{powercap + "/intel-rapl:0/constraint_0_max_power_uw": "210000000", powercap + "/intel-rapl:1/constraint_0_max_power_uw": "0",
		powercap + "/intel-rapl:1/constraint_0_power_limit_uw": "140000000"}
	s := &Sampler{}
	look := func(stat string, files map[string]string) Reading {
		t.Helper()
		s.Root = locked{tree(merged(zones(files), map[string]string{"proc/stat": stat})), "energy_uj"}
		sample := s.read(noon)
		if len(sample.Readings) == 0 {
			return Reading{}
		}
		return sample.Readings[0]
	}
	if r := look("cpu 100 0 0 900", nil); r != (Reading{}) {
		t.Errorf("no limit, no model: %+v", r)
	}
	if r := look("cpu  100 0 0 900 0 0 0 0 50 0\ncpu0 1 2 3 4", limits); r.Watts != 200 || r.WattsError != 150+25 || r.Source != SourceModel {
		t.Errorf("utilisation unknown at first: %+v", r)
	}
	if r := look("cpu  160 10 5 920 0 3 2 0 99 0", limits); !near(r.Watts, 50+300*0.8) || !near(r.WattsError, 50*0.2) {
		t.Errorf("80 %% at work of 350 W: %+v", r)
	}
	s = &Sampler{Root: tree(zones(limits))}
	if sample := s.read(noon); slices.ContainsFunc(sample.Readings, func(r Reading) bool { return r.Source == SourceModel }) {
		t.Errorf("a model besides a counter: %+v", sample.Readings)
	}
	s = &Sampler{Root: locked{tree(zones(limits)), "energy_uj"}}
	if sample := s.read(noon); len(sample.Faults) != 3 || sample.Readings[0].WattsError != 175 {
		t.Errorf("without /proc: %+v", sample)
	}
}

func TestModelsWithoutMeaningAreRefused(t *testing.T) {
	for _, bad := range []Model{{Part: "disk", Watts: 1}, {Part: Processor}, {Part: Processor, Watts: math.NaN()}, {Part: Processor, Watts: math.Inf(1)}, {Part: Processor, Watts: 5, IdleWatts: 6}, {Part: Processor, Watts: 5, IdleWatts: -1}, {Part: Processor, Watts: 5, IdleError: -1}, {Part: Processor, Watts: 5, IdleError: math.NaN()}} {
		if bad.Validate() == nil {
			t.Errorf("accepts %+v", bad)
		}
	}
	if err := limitModel(Processor, 100).Validate(); err != nil {
		t.Error(err)
	}
}

// gpuSamples is what NVML says.
type gpuSamples struct {
	samples []nvml.GPUSample
	err     error
}

func (g gpuSamples) Sample(context.Context) ([]nvml.GPUSample, error) { return g.samples, g.err }

func TestNVMLReadings(t *testing.T) {
	energy := nvml.GPUSample{UUID: "GPU-1", Address: "0000:03:00.0", EnergyMillijoules: new(uint64(123)), PowerWatts: new(250.0)}
	for _, c := range []struct {
		name     string
		gpus     GPUs
		want     string
		problems []string
	}{
		{name: "nobody to ask"},
		{name: "no library is for the client to tell", gpus: gpuSamples{err: &nvml.Error{Code: nvml.NoLibrary}}},
		{name: "no answer in time", gpus: gpuSamples{err: context.DeadlineExceeded}, problems: []string{"NVML: context deadline exceeded; "}},
		{name: "counter before sensor, in microjoules", gpus: gpuSamples{samples: []nvml.GPUSample{energy}}, want: "nvml 0000:03:00.0 123000 of 0"},
		{name: "sensor, by UUID without an address", gpus: gpuSamples{samples: []nvml.GPUSample{{UUID: "GPU-2", PowerWatts: new(99.5)}}}, want: "nvml-power GPU-2 99.5 W"},
		{name: "limit times utilisation", gpus: gpuSamples{samples: []nvml.GPUSample{{UUID: "GPU-3", UtilisationPercent: new(50.0), PowerLimitWatts: new(700.0)}}}, want: "model GPU-3 400 W"},
		{name: "nothing told", gpus: gpuSamples{samples: []nvml.GPUSample{energy, {UUID: "GPU-4"}}}, want: "nvml 0000:03:00.0 123000 of 0", problems: []string{"GPU-4: the GPU tells neither", "spec.power"}},
		{name: "off the bus", gpus: gpuSamples{samples: []nvml.GPUSample{{UUID: "GPU-5", Problem: &nvml.Error{Code: nvml.Lost, Detail: "gone"}}}}, problems: []string{"GPU-5: NVML: gone; the GPU has fallen off the bus"}},
		{name: "impossible figures", gpus: gpuSamples{samples: []nvml.GPUSample{{UUID: "GPU-6", EnergyMillijoules: new(uint64(math.MaxUint64)), PowerWatts: new(1e9), UtilisationPercent: new(1.0), PowerLimitWatts: new(0.0)}}}, problems: []string{"GPU-6: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			readings, faults := NVML(t.Context(), c.gpus)
			check(t, readings, faults, c.want, c.problems)
		})
	}
}

// The counter is the board's, and begins anew with the driver.
func TestNVMLCounterOverADriverReload(t *testing.T) {
	var m Meter
	look := func(at float64, millijoules uint64) {
		readings, _ := NVML(t.Context(), gpuSamples{samples: []nvml.GPUSample{{UUID: "GPU-1", EnergyMillijoules: &millijoules}}})
		m.Observe(Sample{At: second(at), Readings: readings})
	}
	look(0, 90_000_000)
	look(10, 93_000_000) // 300 W
	m.Observe(Sample{At: second(15)})
	look(20, 1_000_000)
	look(30, 4_000_000)
	e := m.Totals()[SourceNVML]
	if !near(e.Joules, 3000+3000+3000) || e.Uncertainty < 2000 || m.Figures().Events[Reset] != 1 {
		t.Errorf("%+v, %v: 300 W all along, of which nobody saw a part", e, m.Figures().Events)
	}
}

func FuzzAttributes(f *testing.F) {
	for _, s := range []string{"", "12\n", "-1", "18446744073709551616", "cpu  1 2 3 4 5 6 7 8 9 10\n", "PCI_SLOT_NAME=0000:03:00.0\n", "cpu a b c d"} {
		f.Add([]byte(s), []byte(s))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if slot := parseSlot(a); strings.ContainsAny(slot, "\n") || len(slot) > 64 {
			t.Errorf("slot %q", slot)
		}
		x, _ := parseCPUTimes(a)
		y, _ := parseCPUTimes(b)
		if u := y.since(x); u < 0 || u > 1 {
			t.Errorf("utilisation %g of %v after %v", u, y, x)
		}
		// Whatever the files hold, sums neither fall nor become no number.
		var d device
		for i, bytes := range [][]byte{a, b, a} {
			root := fstest.MapFS{
				powercap + "/intel-rapl:0/name":                      {Data: []byte("package-0")},
				powercap + "/intel-rapl:0/energy_uj":                 {Data: bytes},
				powercap + "/intel-rapl:0/max_energy_range_uj":       {Data: a},
				hwmon + "/hwmon0/name":                               {Data: []byte("amdgpu")},
				hwmon + "/hwmon0/power1_average":                     {Data: bytes},
				hwmon + "/hwmon0/device/uevent":                      {Data: b},
				hwmon + "/hwmon1/name":                               {Data: []byte("amdgpu")},
				hwmon + "/hwmon1/power1_cap":                         {Data: bytes},
				hwmon + "/hwmon1/device/gpu_busy_percent":            {Data: a},
				powercap + "/intel-rapl:1/name":                      {Data: []byte("package-1")},
				powercap + "/intel-rapl:1/constraint_0_max_power_uw": {Data: bytes},
				"proc/stat": {Data: b},
			}
			s := (&Sampler{Root: root}).read(second(float64(i)))
			for _, r := range s.Readings {
				if !(r.Watts >= 0) || !(r.WattsError >= 0) || !(r.MaxWatts > 0) || math.IsInf(r.Watts+r.MaxWatts, 0) {
					t.Errorf("a reading of %+v", r)
				}
				if r.Device != "package-0" {
					continue
				}
				if e, _ := d.add(r, s.At); !(e.joules >= 0) || !(e.spread >= 0) || math.IsInf(e.joules+e.spread, 0) {
					t.Errorf("an interval of %+v", e)
				}
			}
		}
	})
}
