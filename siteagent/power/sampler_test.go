package power

import (
	"context"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
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
		if got := s.Totals()[SourceRAPL].Joules; !near(got, 7500) {
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

func TestSamplerFallsBackToTheModelUntilThereIsACounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := &changing{}
		stat := map[string]string{"proc/stat": "cpu 100 0 0 900"}
		root.set(stat)
		s := &Sampler{Root: root, Now: time.Now, Models: []Model{{Part: Processor, Watts: 100}}}
		stop := s.Start()
		time.Sleep(10 * time.Second)
		stat["proc/stat"] = "cpu 150 0 0 950"
		root.set(stat)
		if r := stop(); r.Source != SourceModel || !near(r.Joules, 500) || !near(r.Uncertainty, 150) || r.Coverage != 0 {
			t.Errorf("model: %+v", r)
		}
		maps.Copy(stat, zoneFiles("intel-rapl:0", "package-0", "1000000", "262143328850"))
		root.set(stat)
		stop = s.Start()
		time.Sleep(10 * time.Second)
		maps.Copy(stat, zoneFiles("intel-rapl:0", "package-0", "901000000", "262143328850"))
		root.set(stat)
		if r := stop(); r.Source != SourceRAPL || !near(r.Joules, 900) || r.Coverage != 1 {
			t.Errorf("counter: %+v", r)
		}
		if got := s.Totals(); !near(got[SourceModel].Joules, 500) || !near(got[SourceRAPL].Joules, 900) {
			t.Errorf("totals: %+v", got)
		}
	})
}
