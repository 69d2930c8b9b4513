package power

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/siteagent/nvml"
)

// limits is NVML with limits that can be set.
type limits struct {
	samples []nvml.GPUSample
	fail    error
	set     []float64
	kept    int  // limits that are to stay
	late    bool // a failure comes after the limit is set
}

func (l *limits) Sample(context.Context) ([]nvml.GPUSample, error) { return l.samples, nil }

func (l *limits) SetPowerLimit(_ context.Context, uuid string, watts float64) (float64, error) {
	if l.fail != nil && !l.late {
		return 0, l.fail
	}
	for i, s := range l.samples {
		if s.UUID == uuid {
			l.set = append(l.set, watts)
			l.samples[i].PowerLimitWatts = &watts
			return *s.PowerLimitWatts, l.fail
		}
	}
	return 0, &nvml.Error{Code: nvml.NotFound, Detail: uuid}
}

func (l *limits) KeepPowerLimit(ctx context.Context, uuid string, watts float64) error {
	l.kept++
	_, err := l.SetPowerLimit(ctx, uuid, watts)
	return err
}

func (l *limits) limit(i int) float64 { return *l.samples[i].PowerLimitWatts }

func h100(uuid string, limit float64) nvml.GPUSample {
	return nvml.GPUSample{UUID: uuid, PowerLimitWatts: &limit, MinimumPowerLimitWatts: new(200.0), MaximumPowerLimitWatts: new(700.0)}
}

// capRig is a cap with its log and file.
type capRig struct {
	*Cap
	log  bytes.Buffer
	file string
}

func newCapRig(t *testing.T, watts float64, file string, boards ...Boards) *capRig {
	r := &capRig{file: file}
	if file == "" {
		r.file = filepath.Join(t.TempDir(), "powercap.json")
	}
	r.Cap = NewCap(CapOptions{Watts: watts, Boards: boards, Path: r.file, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	return r
}

func (r *capRig) kept(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(r.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestCapHoldsWhileTrainingAndAWhileLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &limits{samples: []nvml.GPUSample{h100("a", 700), h100("b", 300)}}
		c := newCapRig(t, 400, "", NVMLBoards{g})
		release := c.Hold()
		if g.limit(0) != 400 || g.limit(1) != 300 || c.InForce() != 400 {
			t.Errorf("%g and %g W, in force %g: what draws less is left alone", g.limit(0), g.limit(1), c.InForce())
		}
		release()
		time.Sleep(50 * time.Second)
		again := c.Hold() // the next round
		time.Sleep(time.Hour)
		if g.limit(0) != 400 || len(g.set) != 1 {
			t.Errorf("%g W, set %v", g.limit(0), g.set)
		}
		again()
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if g.limit(0) != 700 || c.InForce() != 0 || c.kept(t) != "" {
			t.Errorf("after training: %g W, in force %g, %q", g.limit(0), c.InForce(), c.kept(t))
		}
		c.Hold()
		c.Close()
		if g.limit(0) != 700 {
			t.Errorf("at the end: %g W", g.limit(0))
		}
	})
}

func TestCapThatAKilledProcessLeftIsPutBackAtTheNextStart(t *testing.T) {
	g := &limits{samples: []nvml.GPUSample{h100("a", 700), h100("b", 650)}}
	killed := newCapRig(t, 400, "", NVMLBoards{g})
	killed.Hold()
	g.samples[1].PowerLimitWatts = new(500.0) // a person's doing
	next := newCapRig(t, 0, killed.file, NVMLBoards{g})
	if g.limit(0) != 700 || g.limit(1) != 500 || next.kept(t) != "" {
		t.Errorf("%g and %g W, %q", g.limit(0), g.limit(1), next.kept(t))
	}
	if g.kept != 1 {
		t.Error("agent-nvml would put the cap back at its end")
	}
}

func TestALimitThatMayBeSetThoughSettingFailedIsPutBack(t *testing.T) {
	for name, err := range map[string]error{
		"no time left":      context.DeadlineExceeded,
		"the child hangs":   &nvml.Error{Code: nvml.Hung, Detail: "no answer"},
		"the child crashed": &nvml.Error{Code: nvml.Crashed, Detail: "signal: segmentation fault"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &limits{samples: []nvml.GPUSample{h100("a", 700)}, fail: err, late: true}
			killed := newCapRig(t, 400, "", NVMLBoards{g})
			killed.Hold()
			g.fail = nil
			next := newCapRig(t, 0, killed.file, NVMLBoards{g})
			if g.limit(0) != 700 || next.kept(t) != "" {
				t.Errorf("%g W, %q", g.limit(0), next.kept(t))
			}
			// It was not set after all.
			g.fail, g.late = err, false
			c := newCapRig(t, 400, "", NVMLBoards{g})
			c.Hold()
			g.fail = nil
			c.Close()
			if g.limit(0) != 700 || c.kept(t) != "" || strings.Contains(c.log.String(), "somebody else") {
				t.Errorf("%g W, %q, %s", g.limit(0), c.kept(t), c.log.String())
			}
		})
	}
}

func TestALimitThatWasChangedMeanwhileIsTheOneToPutBack(t *testing.T) {
	g := &limits{samples: []nvml.GPUSample{h100("a", 700)}}
	c := newCapRig(t, 400, "", NVMLBoards{g})
	c.Hold()
	g.samples[0].PowerLimitWatts = new(600.0) // a person's doing
	c.Hold()
	if g.limit(0) != 400 {
		t.Errorf("%g W", g.limit(0))
	}
	c.Close()
	if g.limit(0) != 600 {
		t.Errorf("%g W after the end", g.limit(0))
	}
}

func TestALimitThatCannotBePutBackIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &limits{samples: []nvml.GPUSample{h100("a", 700)}}
		killed := newCapRig(t, 400, "", NVMLBoards{g})
		killed.Hold()
		there := g.samples
		g.samples = nil // the driver is not loaded yet
		c := newCapRig(t, 0, killed.file, NVMLBoards{g})
		c.mu.Lock() // boards are listed under it
		g.samples = there
		c.mu.Unlock()
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if g.limit(0) != 700 || c.kept(t) != "" {
			t.Errorf("%g W, %q", g.limit(0), c.kept(t))
		}
		c.Close()
	})
}

func TestALimitThatCannotBePutBackIsNotForgotten(t *testing.T) {
	g := &limits{samples: []nvml.GPUSample{h100("a", 700)}}
	c := newCapRig(t, 400, "", NVMLBoards{g})
	c.Hold()
	g.fail = &nvml.Error{Code: nvml.Hung, Detail: "no answer"}
	c.Close()
	gone := &limits{}
	between := newCapRig(t, 300, c.file, NVMLBoards{gone}) // the driver is not loaded
	if !strings.Contains(between.kept(t), `"beforeWatts":700`) {
		t.Fatalf("forgotten: %q", between.kept(t))
	}
	// It comes back while the next process caps: what was before is still known.
	g.fail = nil
	gone.samples = g.samples
	between.Hold()
	if gone.limit(0) != 300 {
		t.Errorf("%g W", gone.limit(0))
	}
	between.Close()
	if gone.limit(0) != 700 || between.kept(t) != "" {
		t.Errorf("%g W, %q", gone.limit(0), between.kept(t))
	}
}

func TestCapsThatCannotBeSetAreToldOnceWithTheWayOut(t *testing.T) {
	for name, c := range map[string]struct {
		gpus  *limits
		watts float64
		says  []string
	}{
		"below the range": {&limits{samples: []nvml.GPUSample{h100("a", 700)}}, 100, []string{"least that the GPU takes, 200 W", "spec.power.capWatts"}},
		"no permission":   {&limits{samples: []nvml.GPUSample{h100("a", 700)}, fail: &nvml.Error{Code: nvml.NoPermission, Detail: "SetPowerLimit"}}, 400, []string{"SetPowerLimit", "nvidia-smi -pl"}},
		"not supported":   {&limits{samples: []nvml.GPUSample{h100("a", 700)}, fail: &nvml.Error{Code: nvml.NotSupported, Detail: "x"}}, 400, []string{"does not offer it"}},
		"no GPU at all":   {&limits{}, 400, []string{"no GPU is there"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newCapRig(t, c.watts, "", NVMLBoards{c.gpus})
			for range 3 {
				r.Hold()()
			}
			for _, s := range c.says {
				if n := strings.Count(r.log.String(), s); n != 1 {
					t.Errorf("%q is said %d times: %s", s, n, r.log.String())
				}
			}
			if r.kept(t) != "" || r.InForce() != 0 || len(c.gpus.set) != 0 {
				t.Errorf("kept %q, in force %g, set %v", r.kept(t), r.InForce(), c.gpus.set)
			}
			r.Close()
		})
	}
}

func TestAnUnreadableFileOfLimitsIsToldAndReplaced(t *testing.T) {
	for _, text := range []string{"garbage", `{"a":{"beforeWatts":-1,"setWatts":3}}`, `{"a":{"beforeWatts":1e9,"setWatts":3}}`} {
		file := filepath.Join(t.TempDir(), "powercap.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		g := &limits{samples: []nvml.GPUSample{h100("a", 700)}}
		r := newCapRig(t, 0, file, NVMLBoards{g})
		if !strings.Contains(r.log.String(), "cannot be read") || r.kept(t) != "" || len(g.set) != 0 {
			t.Errorf("%q: %s, kept %q, set %v", text, r.log.String(), r.kept(t), g.set)
		}
	}
}

// hwmonTree makes boards on disk, with slots and limits in µW.
func hwmonTree(t *testing.T, caps map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for slot, most := range caps {
		dir := filepath.Join(root, hwmon, "hwmon"+slot)
		for name, text := range map[string]string{"name": "amdgpu\n", "power1_cap": most, "power1_cap_min": "100000000\n", "power1_cap_max": "600000000\n", "device/uevent": "PCI_SLOT_NAME=" + slot + "\n"} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func TestAMDBoardsAreCappedThroughHwmon(t *testing.T) {
	root := hwmonTree(t, map[string]string{"1": "560000000\n", "2": "0\n"})
	file := filepath.Join(root, hwmon, "hwmon1", "power1_cap")
	limit := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	c := newCapRig(t, 400, "", AMDBoards{root})
	c.Hold()
	if limit() != "400000000" {
		t.Errorf("%s µW", limit())
	}
	c.Close()
	if limit() != "560000000" {
		t.Errorf("%s µW after the end", limit())
	}
	if err := (AMDBoards{root}).SetLimit(t.Context(), "9", 1); err == nil {
		t.Error("a board that is gone")
	}
	if os.Geteuid() == 0 {
		t.Log("the rest needs a user who may not write everything")
		return
	}
	if err := os.Chmod(file, 0o444); err != nil {
		t.Fatal(err)
	}
	c = newCapRig(t, 400, "", AMDBoards{root})
	c.Hold()
	if !strings.Contains(c.log.String(), "udev rule") || limit() != "560000000" || c.kept(t) != "" {
		t.Errorf("%s: %s, %q", c.log.String(), limit(), c.kept(t))
	}
}
