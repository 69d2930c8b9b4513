package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// dataCollector exports the data ledger from the status, where one is kept.
type dataCollector struct {
	status                          func(context.Context) (*coordinatorv1.FederationStatus, error)
	pass, samples, consumed, leased *prometheus.Desc
}

func newDataCollector(federation string, status func(context.Context) (*coordinatorv1.FederationStatus, error)) *dataCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("girassol_data_"+name, help, nil, prometheus.Labels{"federation": federation})
	}
	return &dataCollector{
		status:   status,
		pass:     desc("pass", "Pass over the shared corpus that is at work, from 0."),
		samples:  desc("samples", "Samples of the shared corpus."),
		consumed: desc("consumed_samples", "Samples of the pass at work that commits have consumed; a rollback gives some back."),
		leased:   desc("leased_samples", "Samples of the pass at work that are leased to members in this round."),
	}
}

// Describe sends nothing, as the status' collector does.
func (c *dataCollector) Describe(chan<- *prometheus.Desc) {}

// Collect exports the present status; the other collector tells when there is none.
func (c *dataCollector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	st, err := c.status(ctx)
	if err != nil || st.GetData() == nil {
		return
	}
	d := st.GetData()
	for _, m := range []struct {
		desc  *prometheus.Desc
		value uint64
	}{{c.pass, d.GetPass()}, {c.samples, d.GetSamples()}, {c.consumed, d.GetConsumed()}, {c.leased, d.GetLeased()}} {
		metrics <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(m.value))
	}
}
