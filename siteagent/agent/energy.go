package agent

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/siteagent/power"
)

// EnergyMeter measures the energy of the machine.
type EnergyMeter interface {
	// Start begins a span; what it returns ends it and is called once.
	Start() (stop func() power.Result)
	// Totals by source, which never fall.
	Totals() map[string]power.Energy
}

// roundEnergy is the energy of a round, from its sync to its update being on disk;
// the upload is left out, because the update's header already tells it.
type roundEnergy struct{ end func() power.Result }

func (a *Agent) measureEnergy() *roundEnergy {
	if a.cfg.Energy == nil {
		return &roundEnergy{}
	}
	return &roundEnergy{a.cfg.Energy.Start()}
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
	if e.end == nil {
		return power.Result{}
	}
	r := e.end()
	e.end = nil
	return r
}

// energyCollector shows a meter's totals. Their number does not grow: there are
// a handful of sources.
type energyCollector struct {
	meter               EnergyMeter
	joules, uncertainty *prometheus.Desc
}

func newEnergyCollector(meter EnergyMeter, federation, site string) *energyCollector {
	labels := prometheus.Labels{"federation": federation, "site": site}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("girassol", "agent", name), help, []string{"source"}, labels)
	}
	return &energyCollector{
		meter:       meter,
		joules:      desc("energy_joules_total", "Energy of the machine, by what measured it."),
		uncertainty: desc("energy_uncertainty_joules_total", "By how much energy_joules_total may be wrong, either way."),
	}
}

func (c *energyCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.joules
	out <- c.uncertainty
}

func (c *energyCollector) Collect(out chan<- prometheus.Metric) {
	for source, e := range c.meter.Totals() {
		out <- prometheus.MustNewConstMetric(c.joules, prometheus.CounterValue, e.Joules, source)
		out <- prometheus.MustNewConstMetric(c.uncertainty, prometheus.CounterValue, e.Uncertainty, source)
	}
}
