package agent

import (
	"crypto/rand"
	"encoding/binary"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/siteagent/power"
)

// EnergyMeter measures the energy of the machine. None of it may take long.
type EnergyMeter interface {
	// Start begins a span; what it returns ends it and is called once.
	Start() (stop func() power.Result)
	// Counter since the meter's begin; ok if it is measured and stands for the whole
	// machine.
	Counter() (c power.Counter, ok bool)
	Figures() power.Figures
}

// PowerCap limits the power of the GPUs while a round is at work.
type PowerCap interface {
	Hold() (release func())
	// InForce is the cap in watts, 0 while there is none.
	InForce() float64
}

// newBoot is a number that no other process of this member has.
func newBoot() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// energy is what heartbeats tell of the machine; nil without a counter.
func (a *Agent) energy() *coordinatorv1.Energy {
	if a.cfg.Energy == nil {
		return nil
	}
	c, ok := a.cfg.Energy.Counter()
	if !ok {
		return nil
	}
	return &coordinatorv1.Energy{
		Joules: c.Joules, UncertaintyJoules: c.Uncertainty, MeteredJoules: c.Metered, Source: c.Source, Boot: a.boot,
	}
}

// roundEnergy is the energy of a round, from its sync to its update being on disk;
// the upload is left out, because the update's header already tells it. So long the
// GPUs' power is capped.
type roundEnergy struct {
	end     func() power.Result
	release func()
}

func (a *Agent) measureEnergy() *roundEnergy {
	e := &roundEnergy{}
	if a.cfg.PowerCap != nil {
		e.release = a.cfg.PowerCap.Hold()
	}
	if a.cfg.Energy != nil {
		e.end = a.cfg.Energy.Start()
	}
	return e
}

// read ends the span. A figure of which no meter has seen anything is none.
func (e *roundEnergy) read(log *slog.Logger) (joules float64, source string) {
	r := e.stop()
	if r.Source == "" || r.Coverage == 0 {
		return 0, ""
	}
	log.Info("energy of the round", "joules", r.Joules, "uncertainty", r.Uncertainty,
		"source", r.Source, "coverage", r.Coverage, "notes", r.Notes)
	return r.Joules, r.Source
}

// stop may be called again, for nothing.
func (e *roundEnergy) stop() power.Result {
	if e.release != nil {
		e.release()
		e.release = nil
	}
	if e.end == nil {
		return power.Result{}
	}
	r := e.end()
	e.end = nil
	return r
}

// energyCollector shows a meter's figures and the cap. Their number does not grow:
// there are a handful of sources and events.
type energyCollector struct {
	meter EnergyMeter // may be nil
	cap   PowerCap    // may be nil

	joules, uncertainty, watts, events, capped *prometheus.Desc
}

func newEnergyCollector(meter EnergyMeter, limiter PowerCap, federation, site string) *energyCollector {
	labels := prometheus.Labels{"federation": federation, "site": site}
	desc := func(name, help string, by ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("girassol", "agent", name), help, by, labels)
	}
	return &energyCollector{
		meter: meter, cap: limiter,
		joules:      desc("energy_joules_total", "Energy of the machine, by what tells it.", "source"),
		uncertainty: desc("energy_uncertainty_joules_total", "By how much energy_joules_total may be wrong, either way.", "source"),
		watts:       desc("power_watts", "Power of the machine when it was last read, by what tells it.", "source"),
		events:      desc("energy_events_total", "What made energy less than sure: counters that wrapped or began anew, gaps, figures that are not believed.", "event"),
		capped:      desc("power_cap_watts", "Cap of each GPU's power while it is in force, else 0."),
	}
}

func (c *energyCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.joules, c.uncertainty, c.watts, c.events, c.capped} {
		out <- d
	}
}

func (c *energyCollector) Collect(out chan<- prometheus.Metric) {
	show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, by ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, by...)
	}
	if c.cap != nil {
		show(c.capped, prometheus.GaugeValue, c.cap.InForce())
	}
	if c.meter == nil {
		return
	}
	f := c.meter.Figures()
	for source, e := range f.Totals {
		show(c.joules, prometheus.CounterValue, e.Joules, source)
		show(c.uncertainty, prometheus.CounterValue, e.Uncertainty, source)
	}
	for source, watts := range f.Watts {
		show(c.watts, prometheus.GaugeValue, watts, source)
	}
	for event, n := range f.Events {
		show(c.events, prometheus.CounterValue, float64(n), string(event))
	}
}
