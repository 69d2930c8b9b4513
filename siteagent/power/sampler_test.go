package power

import (
	"context"
	"io/fs"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"girassol.dev/siteagent/nvml"
)

// changing is a tree that tests change while it is read.
type changing struct {
	mu   sync.Mutex
	tree fstest.MapFS
}

func (c *changing) set(files map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tree = tree(files)
}

func (c *changing) Open(name string) (fs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tree.Open(name)
}

func TestSamplerMeasuresARoundAndSaysFaultsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := &changing{}
		root.set(zoneFiles("intel-rapl:0", "package-0", "1000000", "262143328850"))
		var said []string
		s := &Sampler{Root: root, Now: time.Now, Report: func(f []Fault) {
			line := "all well"
			for _, f := range f {
				line = f.String()
			}
			said = append(said, line)
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()

		time.Sleep(5 * time.Second)
		root.set(zoneFiles("intel-rapl:0", "package-0", "501000000", "262143328850"))
		stop := s.Start()
		time.Sleep(10 * time.Second)
		root.set(zoneFiles("intel-rapl:0", "package-0", "garbage", "262143328850"))
		time.Sleep(time.Minute)
		root.set(zoneFiles("intel-rapl:0", "package-0", "7501000000", "262143328850"))
		r := stop()
		if !near(r.Joules, 7000) || r.Source != SourceRAPL || r.Coverage != 1 || !near(r.Uncertainty, 350) {
			t.Errorf("a round over a minute without counter: %+v", r)
		}
		if got := s.Figures().Totals[SourceRAPL].Joules; !near(got, 7500) {
			t.Errorf("total %g J", got)
		}
		if len(said) != 2 || !strings.Contains(said[0], "garbage") || said[1] != "all well" {
			t.Errorf("said %q", said)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestFaultsThatChangeAllTheTimeDoNotFillTheLog(t *testing.T) {
	for name, energy := range map[string]func(i int) string{
		"a figure that is in the fault": func(i int) string { return strconv.Itoa(300_000_000_000 + i) },
		"one that comes and goes":       func(i int) string { return []string{"1000000", "garbage"}[i%2] },
	} {
		t.Run(name, func(t *testing.T) {
			now, reports := noon, 0
			s := &Sampler{Now: func() time.Time { return now }, Report: func([]Fault) { reports++ }}
			for i := range 600 {
				s.Root = tree(zoneFiles("intel-rapl:0", "package-0", energy(i), "262143328850"))
				s.look()
				now = now.Add(time.Second)
			}
			if reports == 0 || reports > 21 {
				t.Errorf("%d reports in ten minutes", reports)
			}
		})
	}
}

func TestSamplerFallsBackToTheModelUntilThereIsACounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := &changing{}
		files := map[string]string{
			"proc/stat": "cpu 100 0 0 900", powercap + "/intel-rapl:0/name": "package-0",
			powercap + "/intel-rapl:0/constraint_0_max_power_uw": "70000000",
		}
		root.set(files)
		s := &Sampler{Root: root, Now: time.Now, Needs: []Part{Processor}}
		stop := s.Start()
		time.Sleep(10 * time.Second)
		files["proc/stat"] = "cpu 150 0 0 950"
		root.set(files)
		if r := stop(); r.Source != SourceModel || !near(r.Joules, 400) || !near(r.Uncertainty, 120+50) || r.Coverage != 0 {
			t.Errorf("model: %+v", r)
		}
		if c, ok := s.Counter(); ok {
			t.Errorf("a model alone is no counter: %+v", c)
		}
		maps.Copy(files, zoneFiles("intel-rapl:0", "package-0", "1000000", "262143328850"))
		root.set(files)
		stop = s.Start()
		time.Sleep(10 * time.Second)
		maps.Copy(files, zoneFiles("intel-rapl:0", "package-0", "901000000", "262143328850"))
		root.set(files)
		if r := stop(); r.Source != SourceRAPL || !near(r.Joules, 900) || r.Coverage != 1 {
			t.Errorf("counter: %+v", r)
		}
		if got := s.Figures().Totals; !near(got[SourceModel].Joules, 400) || !near(got[SourceRAPL].Joules, 900) {
			t.Errorf("totals: %+v", got)
		}
		if c, ok := s.Counter(); !ok || !near(c.Joules, 1300) || !near(c.Metered, 900) || c.Source != "model+rapl" {
			t.Errorf("counter: %+v, %v", c, ok)
		}
	})
}

// A part's energy must not be taken for the machine's.
func TestCounterNeedsAllPartsThatTrain(t *testing.T) {
	now := noon
	s := &Sampler{Root: tree(zoneFiles("intel-rapl:0", "package-0", "1000000", "262143328850")), Now: func() time.Time { return now }, Needs: []Part{Accelerator}}
	look := func(uj string, gpus GPUs) (Counter, bool) {
		s.Root, s.GPUs = tree(zoneFiles("intel-rapl:0", "package-0", uj, "262143328850")), gpus
		s.look()
		now = now.Add(10 * time.Second)
		return s.Counter()
	}
	look("1000000", nil)
	if c, ok := look("2000000", nil); ok {
		t.Errorf("no GPU is told: %+v", c)
	}
	told := func(mj uint64) GPUs {
		return gpuSamples{samples: []nvml.GPUSample{{UUID: "a", EnergyMillijoules: &mj}}}
	}
	look("3000000", told(1000))
	if c, ok := look("4000000", told(3000)); !ok || !near(c.Joules, 3+2) || !near(c.Metered, 5) || c.Source != "nvml+rapl" {
		t.Errorf("%+v, %v", c, ok)
	}
	now = now.Add(time.Minute)
	if c, ok := look("5000000", nil); !ok || !near(c.Joules, 5) {
		t.Errorf("a driver that is being loaded takes the counter away, or a part's energy is told: %+v, %v", c, ok)
	}
	if c, ok := look("6000000", told(93000)); !ok || !near(c.Joules, 5+2+90) {
		t.Errorf("all comes at once: %+v, %v", c, ok)
	}
	look("7000000", nil)
	now = now.Add(longestEstimate)
	if c, ok := look("8000000", nil); ok {
		t.Errorf("the GPU is silent for good: %+v", c)
	}
}
