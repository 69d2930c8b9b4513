package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
)

// observer counts what the status does not hold.
type observer struct {
	updates      *prometheus.CounterVec
	seconds      *prometheus.CounterVec
	rollbacks    *prometheus.CounterVec
	participants prometheus.Gauge
	// loss is a vector without labels: it has no value before the first round.
	loss *prometheus.GaugeVec
}

// Parts of a round's time.
const (
	partTraining = "training"
	partWaiting  = "waiting"
	partMerging  = "merging"
)

func newObserver(federation string, sites []v1alpha1.Site, r prometheus.Registerer) *observer {
	labels := prometheus.Labels{"federation": federation}
	o := &observer{
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_updates_total", ConstLabels: labels,
			Help: "Updates by answer: accepted, stale or refused, and why."}, []string{"site", "outcome", "reason"}),
		seconds: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_round_seconds_total", ConstLabels: labels,
			Help: "Time of committed rounds: training of the slowest member, merging, and waiting for transfers and others."}, []string{"part"}),
		rollbacks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_rollbacks_total", ConstLabels: labels,
			Help: "Returns to an older version: EvaluationWorse by the gate, RolledBack by a person."}, []string{"reason"}),
		participants: prometheus.NewGauge(prometheus.GaugeOpts{Name: "girassol_round_participants", ConstLabels: labels,
			Help: "Members whose updates are in the newest commit."}),
		loss: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "girassol_training_loss", ConstLabels: labels,
			Help: "Loss of the newest committed round by the members' own training, weighted by samples."}, nil),
	}
	for _, part := range []string{partTraining, partWaiting, partMerging} {
		o.seconds.WithLabelValues(part)
	}
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonEvaluationWorse, v1alpha1.ReasonRolledBack} {
		o.rollbacks.WithLabelValues(string(reason))
	}
	for _, s := range sites {
		o.updates.WithLabelValues(s.Name, string(engine.UpdateAccepted), string(v1alpha1.ReasonReady))
	}
	r.MustRegister(o.updates, o.seconds, o.rollbacks, o.participants, o.loss)
	return o
}

// UpdateAnswered implements engine.Observer.
func (o *observer) UpdateAnswered(site string, outcome engine.UpdateOutcome, reason v1alpha1.Reason) {
	o.updates.WithLabelValues(site, string(outcome), string(reason)).Inc()
}

// RolledBack implements engine.Observer.
func (o *observer) RolledBack(reason v1alpha1.Reason) {
	o.rollbacks.WithLabelValues(string(reason)).Inc()
}

// RoundCommitted implements engine.Observer.
func (o *observer) RoundCommitted(t engine.RoundTimes) {
	for part, d := range map[string]time.Duration{partTraining: t.Training, partWaiting: t.Waiting, partMerging: t.Merging} {
		o.seconds.WithLabelValues(part).Add(d.Seconds())
	}
	o.participants.Set(float64(t.Participants))
	if t.Loss != nil {
		o.loss.WithLabelValues().Set(*t.Loss)
	}
}
