package app

import (
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/wire"
)

// refusedLog is how often refused connections are told of: who floods the port must
// not fill the disk with the news of it.
const refusedLog = 10 * time.Second

// scrapers are few; the port is open to whoever reaches it.
var scrapers = wire.Limits{Connections: 256, PerAddress: 64, Handshakes: 64}

// refusedConnections counts the connections that were closed unheard, and tells of
// some.
func refusedConnections(federation string, r prometheus.Registerer, log *slog.Logger) func(net.Addr, string) {
	refused := prometheus.NewCounter(prometheus.CounterOpts{Name: "girassol_connections_refused_total", ConstLabels: prometheus.Labels{"federation": federation},
		Help: "Connections closed for their number, in all, of an address, or at an unfinished handshake."})
	r.MustRegister(refused)
	var gate wire.Gate
	return func(remote net.Addr, why string) {
		refused.Inc()
		if missed, ok := gate.Open(time.Now(), refusedLog); ok {
			log.Warn("connection refused", "reason", v1alpha1.ReasonTooManyConnections, "remote", remote.String(), "why", why, "moreSinceTheLast", missed)
		}
	}
}
