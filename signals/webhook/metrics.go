package webhook

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/api/signalpush"
)

// metrics have the configured sources as labels, never what a request says.
type metrics struct {
	requests, messages, ignored, keyErrors *prometheus.CounterVec
}

// nobody is the source of requests whose sender is not known.
const nobody = "unknown"

func newMetrics(federation string, senders []*sender) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_webhook_" + name, Help: help,
			ConstLabels: prometheus.Labels{"federation": federation}}, labels)
	}
	m := &metrics{
		requests:  counter("requests_total", "Requests that were answered, by status code. Source unknown: not authenticated.", "source", "code"),
		messages:  counter("messages_total", "Messages that were stored.", "source", "type"),
		ignored:   counter("ignored_total", "Messages that were ignored: duplicate, superseded or expired.", "source", "result"),
		keyErrors: counter("key_errors_total", "Times that a file of secrets began to fail.", "source"),
	}
	for _, s := range senders {
		for _, t := range []Type{TypeObserved, TypeForecast, TypeCurtailment, TypeOverride} {
			m.messages.WithLabelValues(s.Name, string(t))
		}
		for _, r := range []signalpush.Result{signalpush.Duplicate, signalpush.Superseded, signalpush.Expired} {
			m.ignored.WithLabelValues(s.Name, string(r))
		}
		m.keyErrors.WithLabelValues(s.Name)
	}
	return m
}

func (m *metrics) all() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{m.requests, m.messages, m.ignored, m.keyErrors}
}

func (m *metrics) register(r prometheus.Registerer) error {
	for i, c := range m.all() {
		if err := r.Register(c); err != nil {
			for _, done := range m.all()[:i] {
				r.Unregister(done)
			}
			return err
		}
	}
	return nil
}

func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.all() {
		r.Unregister(c)
	}
}

func (m *metrics) answered(source string, status int) {
	m.requests.WithLabelValues(source, strconv.Itoa(status)).Inc()
}
