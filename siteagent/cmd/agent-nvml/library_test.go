//go:build cgo

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"girassol.dev/siteagent/nvml"
)

// asCommand makes the test's own binary the command.
const asCommand = "TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// fake builds the stand-in for the driver's library.
func fake(t *testing.T) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc): a library cannot be made up")
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command(compiler, "-shared", "-fPIC", "-o", path, "testdata/libnvidia-ml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// client of this command, as agents use it.
func client(t *testing.T, library, behaviour string, timeout time.Duration) *nvml.Client {
	t.Helper()
	t.Setenv(asCommand, "1")
	t.Setenv("FAKE_NVML", behaviour)
	c := nvml.New(nvml.Options{Path: os.Args[0], Library: library, Timeout: timeout})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func code(err error) nvml.Code {
	var e *nvml.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestALibraryIsLoadedAtRunTime(t *testing.T) {
	c := client(t, fake(t), "", 0)
	inv, err := c.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := inv.GPUs[0]
	if inv.DriverVersion != "418.226.00" || inv.CUDAVersion != "" || g.UUID != "GPU-fake" || g.Model != "Tesla V100-SXM2-32GB" ||
		*g.PowerWatts != 55.5 || *g.EnergyMillijoules != 1<<40 || *g.MaximumPowerLimitWatts != 300 {
		t.Errorf("%+v", inv)
	}
	if g.MIG != nil || g.ECC != nil || g.Fabric != "" || g.TemperatureC != nil {
		t.Errorf("an old driver has no such functions: %+v", g)
	}
	if before, err := c.SetPowerLimit(t.Context(), "GPU-fake", 200); err != nil || before != 300 {
		t.Errorf("%g, %v", before, err)
	}
	if s, err := c.Sample(t.Context()); err != nil || *s[0].PowerLimitWatts != 200 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := c.RestorePowerLimits(t.Context()); err != nil {
		t.Error(err)
	}
	if s, err := c.Sample(t.Context()); err != nil || *s[0].PowerLimitWatts != 300 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAMissingLibraryIsANormalAnswer(t *testing.T) {
	_, err := client(t, filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), "", 0).Inventory(t.Context())
	var e *nvml.Error
	if !errors.As(err, &e) || e.Code != nvml.NoLibrary || !e.Normal() {
		t.Errorf("%v", err)
	}
}

func TestEachFailureOfTheLibraryHasItsCode(t *testing.T) {
	library := fake(t)
	for behaviour, want := range map[string]nvml.Code{
		"mismatch": nvml.Mismatch, "no driver": nvml.NoDriver, "no permission": nvml.NoPermission, "crash": nvml.Crashed, "hang": nvml.Hung,
	} {
		t.Run(behaviour, func(t *testing.T) {
			timeout := time.Minute
			if want == nvml.Hung {
				timeout = 100 * time.Millisecond
			}
			if _, err := client(t, library, behaviour, timeout).Inventory(t.Context()); code(err) != want {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
	t.Run("lost", func(t *testing.T) {
		s, err := client(t, library, "lost", 0).Sample(t.Context())
		if err != nil || len(s) != 1 || s[0].Problem == nil || s[0].Problem.Code != nvml.Lost {
			t.Errorf("%+v, %v", s, err)
		}
	})
	t.Run("not root", func(t *testing.T) {
		if _, err := client(t, library, "not root", 0).SetPowerLimit(t.Context(), "GPU-fake", 200); code(err) != nvml.NoPermission {
			t.Errorf("%v", err)
		}
	})
}

func TestALibraryIsClosedAndOpenedAgain(t *testing.T) {
	l := newLibrary(fake(t))
	for range 3 {
		if err := l.Open(); err != nil {
			t.Fatal(err)
		}
		d, err := l.Device(0)
		if err != nil {
			t.Fatal(err)
		}
		if mw, err := d.Milliwatts(); err != nil || mw != 55500 {
			t.Errorf("%d mW, %v", mw, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil && slices.ContainsFunc(open, func(e os.DirEntry) bool {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		return filepath.Base(to) == "libnvidia-ml.so.1"
	}) {
		t.Error("the library's file is still open")
	}
}
