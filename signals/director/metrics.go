package director

import (
	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
)

// metrics reads gauges from the sites at each scrape, so that an unknown value
// is absent instead of 0 and an age is the present one. Labels are federation
// and site, and words of a fixed set where a site has what they are about.
type metrics struct {
	director *Director

	value, age, window, admitted *prometheus.Desc

	forecastAge, override, curtailed, chosen, cost *prometheus.Desc

	sourceErrors, membershipErrors, changes *prometheus.CounterVec

	// These have a second label: the class of a verdict, and which source.
	verdicts, evidenceErrors *prometheus.CounterVec
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
	labelled := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "girassol_signal_" + name, Help: help, ConstLabels: federation}, []string{"site", label})
	}
	m := &metrics{
		director: d,
		value:    gauge("value", "The site's signal: gCO2/kWh for an intensity. Absent while unknown."),
		age:      gauge("age_seconds", "Time since the newest point. Absent before the first."),
		window:   gauge("window", "The site's window: 1 open, 0 closed, -1 unknown."),
		admitted: gauge("admitted", "Whether the site is to take part by its electricity."),

		sourceErrors:     counter("source_errors_total", "Failed calls to the source of signals."),
		membershipErrors: counter("membership_errors_total", "Failed calls to set the membership."),
		changes:          counter("window_changes_total", "Changes of the window's state."),

		forecastAge: gauge("forecast_age_seconds", "Time since the forecast in use was issued. Absent without one."),
		override:    gauge("override", "A person's override: 1 in, 0 out. Absent without one."),
		curtailed:   gauge("curtailed", "Whether demand response keeps the site out."),
		chosen:      gauge("chosen", "Whether the planner chose the site. Absent without a plan."),
		cost:        gauge("plan_grams_per_token", "gCO2 of a token by the plan. Absent while not known."),

		verdicts:       labelled("verdicts_total", "Points by the verdict on them.", "class"),
		evidenceErrors: labelled("evidence_errors_total", "Failed calls to the sources beside the signal.", "source"),
	}
	for _, s := range d.order {
		if s.Sanity != nil {
			for _, c := range []sanity.Class{sanity.Good, sanity.Held, sanity.Suspect, sanity.Missing, sanity.Stale} {
				m.verdicts.WithLabelValues(s.Name, string(c))
			}
		}
		for _, e := range s.asked {
			m.evidenceErrors.WithLabelValues(s.Name, e.called())
		}
	}
	return m
}

func (m *metrics) counters() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{m.sourceErrors, m.membershipErrors, m.changes, m.verdicts, m.evidenceErrors}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.value, m.age, m.window, m.admitted, m.forecastAge, m.override, m.curtailed, m.chosen, m.cost} {
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
		gauge(m.admitted, number(e.Decision.Admit))
		if f := e.State.Forecast; f != nil {
			gauge(m.forecastAge, now.Sub(f.GeneratedAt).Seconds())
		}
		if o := s.overridden(now); o != nil {
			gauge(m.override, number(o.Admit))
		}
		gauge(m.curtailed, number(e.judged.block != nil))
		if m.director.plans == nil {
			continue
		}
		if plan := m.director.plans.view(s.Name); plan != nil {
			gauge(m.chosen, number(plan.Chosen))
			if plan.GramsPerToken != nil {
				gauge(m.cost, *plan.GramsPerToken)
			}
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
