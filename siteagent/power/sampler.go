package power

import (
	"context"
	"io/fs"
	"sync"
	"time"
)

// Sampler looks at a machine in the background and at both ends of each span.
type Sampler struct {
	// Root of the file system, with sys and proc.
	Root fs.FS
	// Models for parts without a meter; may be empty.
	Models []Model
	// Every so often; 0: 10 s, in which no counter wraps twice.
	Every time.Duration
	// Now is time.Now but in tests.
	Now func() time.Time
	// Report is called with the faults whenever they are others than before; may
	// be nil.
	Report func([]Fault)

	meter Meter
	mu    sync.Mutex // one look at a time, and none between one and its span
	cpu   cpuTimes
	told  string
}

// Run looks until the context ends.
func (s *Sampler) Run(ctx context.Context) error {
	every := s.Every
	if every <= 0 {
		every = 10 * time.Second
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

// Totals are the energy since the first look, by source; they never fall.
func (s *Sampler) Totals() map[string]Energy { return s.meter.Totals() }

// look takes a sample and gives its time. Sampler.mu is held.
func (s *Sampler) look() time.Time {
	at := s.Now()
	var sample Sample
	sample, s.cpu = sampleOf(s.Root, at, s.models(), s.cpu)
	s.meter.Observe(sample)
	told := ""
	for _, f := range sample.Faults {
		told += f.String() + "\n"
	}
	if told != s.told && s.Report != nil {
		s.Report(sample.Faults)
	}
	s.told = told
	return at
}

// models of the parts that were never metered.
func (s *Sampler) models() []Model {
	var out []Model
	for _, m := range s.Models {
		if !s.meter.metered(m.Part) {
			out = append(out, m)
		}
	}
	return out
}

// sampleOf reads all meters below root, and for parts without a reading the models.
// before are the processors' times that the look before has given, and the zero
// value at the first.
func sampleOf(root fs.FS, at time.Time, models []Model, before cpuTimes) (Sample, cpuTimes) {
	s := Sample{At: at}
	metered := map[Part]bool{}
	for _, read := range []func(fs.FS) ([]Reading, []Fault){RAPL, AMDGPU} {
		readings, faults := read(root)
		s.Readings, s.Faults = append(s.Readings, readings...), append(s.Faults, faults...)
		for _, r := range readings {
			metered[r.Part] = true
		}
	}
	var now cpuTimes
	for _, m := range models {
		if metered[m.Part] {
			continue
		}
		utilisation := cpuTimes{}.since(cpuTimes{}) // unknown
		if m.Part == Processor {
			t, err := readCPUTimes(root)
			if err != nil {
				s.Faults = append(s.Faults, Fault{Device: "model of " + string(m.Part), Problem: err.Error(), WayOut: "its utilisation counts as unknown"})
			} else {
				utilisation, now = t.since(before), t
			}
		}
		s.Readings = append(s.Readings, m.reading(utilisation))
	}
	return s, now
}
