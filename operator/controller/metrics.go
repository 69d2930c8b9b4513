package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Metrics of both controllers. Values of a label come from the objects' names and
// the closed sets of package v1alpha1.
type Metrics struct {
	// SitePhase is 1 for the present phase and reason of a site.
	SitePhase *prometheus.GaugeVec
	// CapacityWait is from a wish for capacity to its outcome (ready, failed), seconds.
	CapacityWait *prometheus.HistogramVec
	Failovers    *prometheus.CounterVec
	// Drains by outcome: Drained or DrainTimeout.
	Drains *prometheus.CounterVec
	// Applies are objects that differed from what they should be and were written.
	Applies *prometheus.CounterVec
	// ClusterReachable and CoordinatorReachable are 1 or 0; absent while unknown.
	ClusterReachable     *prometheus.GaugeVec
	CoordinatorReachable *prometheus.GaugeVec
}

// NewMetrics registers them; nil registers nowhere.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		SitePhase: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "girassol_operator_site_phase", Help: "1 for the present phase of a site and its reason.",
		}, []string{"namespace", "federation", "site", "phase", "reason"}),
		CapacityWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "girassol_operator_capacity_wait_seconds", Help: "Time from the wish for a site's capacity to its outcome.",
			Buckets: []float64{1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200},
		}, []string{"namespace", "site", "outcome"}),
		Failovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "girassol_operator_failovers_total", Help: "Sites that had no capacity by their deadline and gave their place to the next.",
		}, []string{"namespace", "federation", "site", "reason"}),
		Drains: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "girassol_operator_drains_total", Help: "Sites that left, by how it ended.",
		}, []string{"namespace", "federation", "site", "outcome"}),
		Applies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "girassol_operator_applies_total", Help: "Objects that differed from what they should be and were written, by kind.",
		}, []string{"kind"}),
		ClusterReachable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "girassol_operator_cluster_reachable", Help: "Whether the cluster of a site answers; absent while unknown.",
		}, []string{"namespace", "site"}),
		CoordinatorReachable: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "girassol_operator_coordinator_reachable", Help: "Whether the coordinator of a federation answers; absent while unknown.",
		}, []string{"namespace", "federation"}),
	}
	if r != nil {
		r.MustRegister(m.SitePhase, m.CapacityWait, m.Failovers, m.Drains, m.Applies, m.ClusterReachable, m.CoordinatorReachable)
	}
	return m
}

// forgetFederation takes all that was counted for a federation that is gone away,
// though its sites live on. A site's phase is the site controller's to change.
func (m *Metrics) forgetFederation(key types.NamespacedName) {
	of := prometheus.Labels{"namespace": key.Namespace, "federation": key.Name}
	m.Failovers.DeletePartialMatch(of)
	m.Drains.DeletePartialMatch(of)
	m.CoordinatorReachable.DeletePartialMatch(of)
}

// forgetSite takes all that was measured of a site that is gone away, so that
// sites that come and go leave nothing behind.
func (m *Metrics) forgetSite(key types.NamespacedName) {
	of := prometheus.Labels{"namespace": key.Namespace, "site": key.Name}
	m.SitePhase.DeletePartialMatch(of)
	m.CapacityWait.DeletePartialMatch(of)
	m.Failovers.DeletePartialMatch(of)
	m.Drains.DeletePartialMatch(of)
	m.ClusterReachable.DeletePartialMatch(of)
}
