package director

import (
	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

// metrics reads gauges from the sites at each scrape, so that an unknown value
// is absent instead of 0 and an age is the present one. Labels are federation
// and site only.
type metrics struct {
	director *Director

	value, age, window, admitted *prometheus.Desc

	sourceErrors, membershipErrors, changes *prometheus.CounterVec
}

func newMetrics(d *Director) *metrics {
	federation := prometheus.Labels{"federation": d.config.Federation}
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("girassol_signal_"+name, help, []string{"site"}, federation)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "girassol_signal_" + name, Help: help, ConstLabels: federation}, []string{"site"})
		for _, s := range d.order {
			c.WithLabelValues(s.Name)
		}
		return c
	}
	return &metrics{
		director: d,
		value:    gauge("value", "The site's signal: gCO2/kWh for an intensity. Absent while unknown."),
		age:      gauge("age_seconds", "Time since the newest point. Absent before the first."),
		window:   gauge("window", "The site's window: 1 open, 0 closed, -1 unknown."),
		admitted: gauge("admitted", "Whether the site is to take part by its electricity."),

		sourceErrors:     counter("source_errors_total", "Failed calls to the source of signals."),
		membershipErrors: counter("membership_errors_total", "Failed calls to set the membership."),
		changes:          counter("window_changes_total", "Changes of the window's state."),
	}
}

func (m *metrics) counters() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{m.sourceErrors, m.membershipErrors, m.changes}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.value, m.age, m.window, m.admitted} {
		ch <- d
	}
	for _, c := range m.counters() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.counters() {
		c.Collect(ch)
	}
	now := m.director.config.Clock.Now()
	for _, s := range m.director.order {
		s.mu.Lock()
		e := s.shown
		s.mu.Unlock()
		if e.Decided.IsZero() {
			continue
		}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.Name)
		}
		if l := e.State.Last; l != nil {
			if now.Before(signals.StaleAt(l.PointTime, l.Period)) {
				gauge(m.value, l.Value)
			}
			gauge(m.age, now.Sub(l.PointTime).Seconds())
		}
		gauge(m.window, map[v1alpha1.WindowState]float64{
			v1alpha1.WindowOpen: 1, v1alpha1.WindowClosed: 0, v1alpha1.WindowUnknown: -1}[e.Decision.Window])
		admitted := 0.0
		if e.Decision.Admit {
			admitted = 1
		}
		gauge(m.admitted, admitted)
	}
}
