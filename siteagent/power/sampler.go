package power

import (
	"context"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Sampler looks at a machine in the background and at both ends of each span.
type Sampler struct {
	// Root of the file system, with sys and proc.
	Root fs.FS
	// Powercap is a tree with a powercap of its own in sys/class, for where Root's
	// is hidden, as in containers; nil: that of Root.
	Powercap fs.FS
	// GPUs of NVIDIA; nil: none are asked.
	GPUs GPUs
	// Needs are the parts without which the counter does not stand for the machine.
	Needs []Part
	// Every so often; 0: 1 s, so that what heartbeats tell is fresh.
	Every time.Duration
	// Now is time.Now but in tests.
	Now func() time.Time
	// Report is called with the faults whenever they are of other devices or have
	// other ways out than before, but not more often than reportEvery; may be nil.
	Report func([]Fault)

	meter Meter
	mu    sync.Mutex // one look at a time, and none between one and its span
	cpu   cpuTimes
	told  string
	// toldAt is when faults were reported; zero before.
	toldAt time.Time

	counting sync.Mutex
	counted  Counter // what Counter told last
}

// reportEvery bounds reports of a device that comes and goes.
const reportEvery = 30 * time.Second

// Run looks until the context ends.
func (s *Sampler) Run(ctx context.Context) error {
	every := s.Every
	if every <= 0 {
		every = time.Second
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		s.mu.Lock()
		s.look()
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// Start begins a span. The function that it returns ends it and may be called
// once.
func (s *Sampler) Start() (stop func() Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	span := s.meter.Begin(s.look())
	return func() Result {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.meter.End(span, s.look())
	}
}

// Figures as of the last look.
func (s *Sampler) Figures() Figures { return s.meter.Figures() }

// Counter is the energy of the machine since the first look.
type Counter struct {
	Energy
	// Metered joules of it, rather than modelled.
	Metered float64
	// Source names all that it rests on, joined by "+".
	Source string
}

// Counter is ok when some of it is metered and it stands for all parts that are
// needed; without one of them it would be a part's energy and be taken for the
// whole. While a device of them is not readable the counter stands still, and then
// tells all at once.
func (s *Sampler) Counter() (c Counter, ok bool) {
	s.counting.Lock()
	defer s.counting.Unlock()
	for _, p := range s.Needs {
		told, missed := s.meter.has(p)
		if !told {
			return Counter{}, false
		}
		if missed {
			return s.counted, s.counted.Metered > 0
		}
	}
	totals := s.meter.Totals()
	for source, e := range totals {
		c.Joules += e.Joules
		c.Uncertainty += e.Uncertainty
		if source != SourceModel {
			c.Metered += e.Joules
		}
	}
	c.Source = strings.Join(slices.Sorted(maps.Keys(totals)), "+")
	s.counted = c
	return c, c.Metered > 0
}

// look takes a sample and gives its time. Sampler.mu is held.
func (s *Sampler) look() time.Time {
	at := s.Now()
	sample := s.read(at)
	s.meter.Observe(sample)
	told := ""
	for _, f := range sample.Faults {
		told += f.Device + "\n" + f.WayOut + "\n" // a problem may hold a figure
	}
	if told != s.told && (s.toldAt.IsZero() || at.Sub(s.toldAt) >= reportEvery) {
		s.told, s.toldAt = told, at
		if s.Report != nil {
			s.Report(sample.Faults)
		}
	}
	return at
}

// read takes all meters, and for processors that were never metered their model.
func (s *Sampler) read(at time.Time) Sample {
	powercap := s.Powercap
	if powercap == nil {
		powercap = s.Root
	}
	out := Sample{At: at}
	keep := func(readings []Reading, faults []Fault) {
		out.Readings, out.Faults = append(out.Readings, readings...), append(out.Faults, faults...)
	}
	keep(RAPL(powercap))
	processor := len(out.Readings) > 0
	keep(AMDGPU(s.Root))
	keep(NVML(context.Background(), s.GPUs))
	if processor || s.meter.metered(Processor) {
		return out
	}
	limit := processorLimit(powercap)
	if limit == 0 {
		return out
	}
	utilisation := math.NaN()
	t, err := readCPUTimes(s.Root)
	if err != nil {
		out.Faults = append(out.Faults, Fault{Device: "processors", Problem: err.Error(), WayOut: "their utilisation counts as unknown"})
	} else {
		utilisation, s.cpu = t.since(s.cpu), t
	}
	out.Readings = append(out.Readings, limitModel(Processor, limit).reading(utilisation))
	return out
}
