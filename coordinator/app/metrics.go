package app

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/signals/ledger"
)

// collector exports the status at each scrape, so that a metric can never
// disagree with what `girassol status` shows. Labels name the federation and
// the site only: nothing else is bounded.
type collector struct {
	status func(context.Context) (*coordinatorv1.FederationStatus, error)
	// socket is what the gRPC sockets have received and sent, closed ones too: a
	// counter must not fall when a member goes.
	socket    func() (in, out uint64)
	firstStep *prometheus.Desc
	// baselines in grams by site; the federation's energy at all hours alike.
	baselines func() map[string]float64
	// energies are the accounts by site.
	energies func() map[string]ledger.Account
	rising   rising

	phase, committed, void, samples, parameters, bytes, loss, heldOut, agreement                                                  *prometheus.Desc
	linkRTT, sitePhase, members, training, siteSamples, siteRounds, energy, uncertainty, emissions, signal, baseline, quarantined *prometheus.Desc
}

// scrapeTimeout bounds the wait for a busy engine.
const scrapeTimeout = 2 * time.Second

func newCollector(federation string, status func(context.Context) (*coordinatorv1.FederationStatus, error), socket func() (in, out uint64), baselines func() map[string]float64, energies func() map[string]ledger.Account) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("girassol_"+name, help, labels, prometheus.Labels{"federation": federation})
	}
	return &collector{
		status:      status,
		socket:      socket,
		baselines:   baselines,
		energies:    energies,
		phase:       desc("federation_phase", "1 for the phase the federation is in.", "phase", "reason"),
		committed:   desc("rounds_committed_total", "Rounds whose merge was committed."),
		void:        desc("rounds_void_total", "Rounds that ended without effect."),
		samples:     desc("samples_committed_total", "Samples behind all committed updates."),
		parameters:  desc("model_parameters", "Parameters of the model."),
		bytes:       desc("socket_bytes_total", "Bytes on the gRPC sockets since this coordinator started, framing included; up is to the coordinator.", "direction"),
		loss:        desc("evaluation_loss", "Newest held-out loss."),
		heldOut:     desc("evaluation_metric", "Newest held-out user metrics, weighted by samples; at most 64 names.", "name"),
		agreement:   desc("agreement_ratio", "Moving mean of the cosine of merged delta and residuals."),
		sitePhase:   desc("site_phase", "1 for the phase the site is in, with its reason.", "site", "phase", "reason"),
		firstStep:   desc("site_first_step_seconds", "From the site's last admission to the first step of one of its members.", "site"),
		members:     desc("site_members", "Members of the site with a session.", "site"),
		quarantined: desc("site_quarantined", "1 while the site's updates are refused by spec.admission, and why; no value otherwise.", "site", "reason"),
		linkRTT:     desc("site_link_rtt_seconds", "From a heartbeat to its reply as the site's agents see it, the least of the last minute and of its members.", "site"),
		training:    desc("site_training_seconds_total", "Training time behind the site's committed updates.", "site"),
		siteSamples: desc("site_samples_total", "Samples of the site's committed updates.", "site"),
		siteRounds:  desc("site_rounds_total", "Committed rounds with an update of the site.", "site"),
		energy:      desc("energy_joules_total", "Energy, PUE included, by what tells it: measured by counters or modelled.", "site", "source"),
		uncertainty: desc("energy_uncertainty_joules_total", "By how much energy_joules_total of both sources may be wrong, either way.", "site"),
		emissions:   desc("emissions_grams_total", "CO2 by ledger; the two are never added.", "site", "accounting"),
		baseline:    desc("baseline_emissions_grams", "CO2 by the marginal ledger that the federation's energy so far would have emitted at the site's mean intensity so far.", "site"),
		signal:      desc("site_signal_value", "Reading behind the present energy decision.", "site", "kind", "unit"),
	}
}

// Describe sends nothing: the set of sites is known at the scrape only.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect exports the present status.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	st, err := c.status(ctx)
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(c.phase, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(c.phase, 1, st.GetPhase(), st.GetReason())
	count(c.committed, float64(st.GetRoundsCommitted()))
	count(c.void, float64(st.GetRoundsVoid()))
	count(c.samples, float64(st.GetCommittedSamples()))
	gauge(c.parameters, float64(st.GetParameters()))
	in, out := c.socket()
	count(c.bytes, float64(in), "up")
	count(c.bytes, float64(out), "down")
	c.evaluation(st.GetEvaluation(), gauge)
	if st.Agreement != nil {
		gauge(c.agreement, st.GetAgreement())
	}
	for site, grams := range c.baselines() {
		gauge(c.baseline, grams, site)
	}
	for site, a := range c.energies() {
		count(c.energy, a.MeasuredJoules, site, "measured")
		count(c.energy, c.rising.at(site, a.Joules-a.MeasuredJoules), site, "model")
		count(c.uncertainty, a.UncertaintyJoules, site)
	}
	for _, s := range st.GetSites() {
		c.site(s, gauge, count)
	}
}

func (c *collector) site(s *coordinatorv1.SiteStatus, gauge, count func(*prometheus.Desc, float64, ...string)) {
	name := s.GetName()
	gauge(c.sitePhase, 1, name, s.GetPhase(), s.GetReason())
	gauge(c.members, float64(len(s.GetMembers())), name)
	if rtt, ok := leastRTT(s.GetMembers()); ok {
		gauge(c.linkRTT, rtt, name)
	}
	if q := s.GetQuarantine(); q != nil {
		gauge(c.quarantined, 1, name, q.GetReason())
	}
	if s.FirstStepSeconds != nil {
		gauge(c.firstStep, s.GetFirstStepSeconds(), name)
	}
	count(c.training, s.GetTrainingSeconds(), name)
	count(c.siteSamples, float64(s.GetSamples()), name)
	count(c.siteRounds, float64(s.GetRoundsContributed()), name)
	if l := s.GetLedger(); l != nil {
		if l.MarginalKgco2E != nil {
			count(c.emissions, l.GetMarginalKgco2E()*1000, name, "marginal")
		}
		if l.AverageKgco2E != nil {
			count(c.emissions, l.GetAverageKgco2E()*1000, name, "average")
		}
	}
	if sig := s.GetSignal(); sig != nil && sig.Value != nil {
		gauge(c.signal, sig.GetValue(), name, sig.GetKind(), sig.GetUnit())
	}
}

// rising keeps counters that are differences of sums from falling by what rounding
// takes from them: a fall would be read as a restart.
type rising struct {
	mu   sync.Mutex
	most map[string]float64
}

func (r *rising) at(key string, v float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most == nil {
		r.most = map[string]float64{}
	}
	r.most[key] = max(r.most[key], v)
	return r.most[key]
}
