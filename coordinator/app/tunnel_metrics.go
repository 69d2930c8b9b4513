package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire/wireguard"
)

// leastRTT of members that know one.
func leastRTT(members []*coordinatorv1.MemberStatus) (least float64, ok bool) {
	for _, m := range members {
		if l := m.GetLink(); l != nil && l.RttSeconds != nil && (!ok || l.GetRttSeconds() < least) {
			least, ok = l.GetRttSeconds(), true
		}
	}
	return least, ok
}

// tunnelCollector exports what the hub has seen of its peers, summed over a site's
// keys.
type tunnelCollector struct {
	peers                     func() []wireguard.SiteStatus
	now                       func() time.Time
	keys, age, received, sent *prometheus.Desc
}

func newTunnelCollector(federation string, peers func() []wireguard.SiteStatus) *tunnelCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("girassol_tunnel_"+name, help, labels, prometheus.Labels{"federation": federation})
	}
	return &tunnelCollector{
		peers: peers, now: time.Now,
		keys:     desc("keys", "Public keys by which the site may come in.", "site"),
		age:      desc("handshake_age_seconds", "Age of the site's newest WireGuard handshake; no value before the first. A link at work makes one each two minutes.", "site"),
		received: desc("received_bytes_total", "Bytes of the site's UDP packets; starts anew when a key leaves.", "site"),
		sent:     desc("sent_bytes_total", "Bytes of UDP packets to the site; starts anew when a key leaves.", "site"),
	}
}

// Describe sends nothing: the sites are known at the scrape only.
func (c *tunnelCollector) Describe(chan<- *prometheus.Desc) {}

// Collect exports the present state.
func (c *tunnelCollector) Collect(metrics chan<- prometheus.Metric) {
	type sum struct {
		keys, received, sent float64
		newest               time.Time
	}
	sums := map[string]*sum{}
	for _, p := range c.peers() {
		s := sums[p.Site]
		if s == nil {
			s = &sum{}
			sums[p.Site] = s
		}
		s.keys++
		s.received += float64(p.Received)
		s.sent += float64(p.Sent)
		if p.Handshake.After(s.newest) {
			s.newest = p.Handshake
		}
	}
	for site, s := range sums {
		metrics <- prometheus.MustNewConstMetric(c.keys, prometheus.GaugeValue, s.keys, site)
		metrics <- prometheus.MustNewConstMetric(c.received, prometheus.CounterValue, s.received, site)
		metrics <- prometheus.MustNewConstMetric(c.sent, prometheus.CounterValue, s.sent, site)
		if !s.newest.IsZero() {
			metrics <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, c.now().Sub(s.newest).Seconds(), site)
		}
	}
}
