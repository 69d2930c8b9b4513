package app

import (
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"girassol.dev/siteagent/hardware"
	"girassol.dev/siteagent/power"
	"girassol.dev/siteagent/replica"
)

func TestPowerCapsThatCannotBeMeantAreRefused(t *testing.T) {
	for _, watts := range []float64{-1, math.NaN(), math.Inf(1), 10_001} {
		if err := (&powerOptions{capWatts: watts}).check(); err == nil || !strings.Contains(err.Error(), "--power-cap-watts") {
			t.Errorf("%g W: %v", watts, err)
		}
	}
	if err := (&powerOptions{capWatts: 300}).check(); err != nil {
		t.Error(err)
	}
}

// In a container the runtime hides powercap, and a mount stands beside it.
func TestMountedPowercapIsRead(t *testing.T) {
	root, host := t.TempDir(), t.TempDir()
	zone := filepath.Join(host, "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0")
	write := func(uj string) {
		t.Helper()
		for name, text := range map[string]string{"name": "package-0", "max_energy_range_uj": "1000000000000", "energy_uj": uj} {
			if err := os.MkdirAll(zone, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(zone, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("1000000")
	class := filepath.Join(host, "sys/class/powercap")
	if err := os.MkdirAll(class, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../devices/virtual/powercap/intel-rapl/intel-rapl:0", filepath.Join(class, "intel-rapl:0")); err != nil {
		t.Fatal(err)
	}
	o := powerOptions{measure: true, root: root, powercap: host}
	s := o.sampler(hardware.CPU, library{}, slog.New(slog.DiscardHandler))
	end := s.Start()
	write("8000000")
	if r := end(); r.Source != power.SourceRAPL || r.Joules != 7 {
		t.Errorf("%+v", r)
	}
	if (&powerOptions{}).sampler(hardware.CPU, library{}, nil) != nil {
		t.Error("measures though it is not to")
	}
	// Without the GPUs that train it is a part's energy.
	s = o.sampler("nvidia", library{}, slog.New(slog.DiscardHandler))
	end = s.Start()
	write("9000000")
	end()
	if c, ok := s.Counter(); ok {
		t.Errorf("%+v", c)
	}
}

// capped is a machine whose GPU's limit of 560 W a killed agent has left at 250 W, the
// agent's data, and the file of the limit.
func capped(t *testing.T) (root, data, limit string) {
	t.Helper()
	root, data = t.TempDir(), t.TempDir()
	dir := filepath.Join(root, "sys/class/hwmon/hwmon0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"name": "amdgpu", "power1_cap": "250000000"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(data, "powercap.json"), []byte(`{"hwmon0":{"beforeWatts":560,"setWatts":250}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return root, data, filepath.Join(dir, "power1_cap")
}

func TestLimitsThatAKilledAgentLeftArePutBackWithoutACapToo(t *testing.T) {
	root, data, limit := capped(t)
	o := powerOptions{root: root}
	o.limiter(data, library{}, slog.New(slog.DiscardHandler)).Close()
	b, err := os.ReadFile(limit)
	if err != nil || string(b) != "560000000" {
		t.Errorf("%s, %v", b, err)
	}
}

func TestLimitsThatAKilledAgentLeftArePutBackThoughTheNextCannotStart(t *testing.T) {
	for name, c := range map[string]struct {
		hinder func(t *testing.T, data string)
		says   string
		limit  string
	}{
		"a file where the replica's folder should be": {func(t *testing.T, data string) {
			if err := os.WriteFile(filepath.Join(data, "replica"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "replica", "560000000"},
		"another agent is at work, and the limit is its": {func(t *testing.T, data string) {
			r, err := replica.Open(filepath.Join(data, "replica"), "lm", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = r.Close() })
		}, "in use by another agent", "250000000"},
	} {
		t.Run(name, func(t *testing.T) {
			root, data, limit := capped(t)
			c.hinder(t, data)
			cmd := Command()
			cmd.SetArgs([]string{"--coordinator", "127.0.0.1:1", "--federation", "lm", "--site", "porto", "--data", data, "--nvml", "off", "--machine-root", root})
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v", err)
			}
			b, err := os.ReadFile(limit)
			if err != nil || string(b) != c.limit {
				t.Errorf("%s, %v", b, err)
			}
		})
	}
}
