package agent

import "github.com/prometheus/client_golang/prometheus"

// metrics of one agent. Labels are federation and site only, so that their
// number does not grow with nodes, rounds or errors.
type metrics struct {
	rounds          *prometheus.CounterVec // by outcome
	steps           prometheus.Counter
	samples         prometheus.Counter
	trainingSeconds prometheus.Counter
	connected       prometheus.Gauge
	state           prometheus.Gauge
	version         prometheus.Gauge
	residualNorm    prometheus.Gauge
	clockOffset     prometheus.Gauge
	sessions        prometheus.Counter
	fullPulls       prometheus.Counter
	eventsRead      prometheus.Counter
	eventsMissed    prometheus.Counter
	eventErrors     prometheus.Counter
	eventsRefused   *prometheus.CounterVec // by reason
	firstStep       prometheus.Gauge
	startParts      *prometheus.GaugeVec // by part
	startBytes      *prometheus.GaugeVec // by kind
	linkRTT         prometheus.Gauge
	handshakeAge    prometheus.Gauge
	tunnelBytes     *prometheus.GaugeVec // by direction
}

// The outcomes of a round for this member.
const (
	outcomeAccepted = "accepted"
	outcomeStale    = "stale"
	outcomeRefused  = "refused"
	outcomeFailed   = "failed"
	outcomeEmpty    = "empty"
)

func newMetrics(reg prometheus.Registerer, federation, site string, traffic func() (received, sent uint64)) *metrics {
	labels := prometheus.Labels{"federation": federation, "site": site}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "girassol", Subsystem: "agent", Name: name, Help: help, ConstLabels: labels,
		})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "girassol", Subsystem: "agent", Name: name, Help: help, ConstLabels: labels,
		})
	}
	parts := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "girassol", Subsystem: "agent", Name: name, Help: help, ConstLabels: labels,
		}, []string{label})
	}
	m := &metrics{
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "girassol", Subsystem: "agent", Name: "rounds_total",
			Help: "Rounds taken part in, by outcome of the update.", ConstLabels: labels,
		}, []string{"outcome"}),
		steps:           counter("steps_total", "Local training steps."),
		samples:         counter("samples_total", "Samples trained on."),
		trainingSeconds: counter("training_seconds_total", "Time spent in train tasks."),
		connected:       gauge("session_connected", "1 while a session with the coordinator is up."),
		state:           gauge("member_state", "State as in the Fleet service's MemberState."),
		version:         gauge("replica_version", "Model version that the replica holds; -1 without one."),
		residualNorm:    gauge("residual_norm", "Norm of the local residual u."),
		clockOffset:     gauge("clock_offset_seconds", "Coordinator's clock minus ours."),
		sessions:        counter("sessions_total", "Sessions begun."),
		fullPulls:       counter("full_pulls_total", "Downloads of the whole model state."),
		eventsRead:      counter("events_total", "Events read from Redis."),
		eventsMissed:    counter("events_missed_total", "Events that were trimmed before they were read."),
		eventErrors:     counter("event_errors_total", "Failed reads of the event stream."),
		eventsRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "girassol", Subsystem: "agent", Name: "events_refused_total",
			Help: "Entries of the event stream without effect: not signed by this coordinator, or not new.", ConstLabels: labels,
		}, []string{"reason"}),
		firstStep:    gauge("first_step_seconds", "From the agent's start, or its admission after a drain, to its trainer's first step."),
		startParts:   parts("start_seconds", "Parts of first_step_seconds; the rest was waiting for a grant.", "part"),
		linkRTT:      gauge("link_rtt_seconds", "From a heartbeat to its reply, the least of the last minute."),
		handshakeAge: gauge("tunnel_handshake_age_seconds", "Age of the newest WireGuard handshake; -1 without one."),
		tunnelBytes:  parts("tunnel_bytes", "Bytes of the tunnel's UDP packets since its present key.", "direction"),
		startBytes:   parts("start_pulled_bytes", "Bytes downloaded before the first step: deltas, or the whole state.", "kind"),
	}
	for _, o := range []string{outcomeAccepted, outcomeStale, outcomeRefused, outcomeFailed, outcomeEmpty} {
		m.rounds.WithLabelValues(o)
	}
	for _, r := range refusals {
		m.eventsRefused.WithLabelValues(r)
	}
	m.version.Set(-1)
	for name, pick := range map[string]func(received, sent uint64) uint64{
		"received": func(received, _ uint64) uint64 { return received },
		"sent":     func(_, sent uint64) uint64 { return sent },
	} {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "girassol", Subsystem: "agent", Name: name + "_bytes_total",
			Help: "Bytes " + name + " on the sockets to the coordinator.", ConstLabels: labels,
		}, func() float64 { return float64(pick(traffic())) }))
	}
	reg.MustRegister(m.rounds, m.steps, m.samples, m.trainingSeconds, m.connected,
		m.state, m.version, m.residualNorm, m.clockOffset, m.sessions, m.fullPulls, m.eventsRead, m.eventsMissed, m.eventErrors, m.eventsRefused,
		m.firstStep, m.startParts, m.startBytes, m.linkRTT, m.handshakeAge, m.tunnelBytes)
	return m
}
