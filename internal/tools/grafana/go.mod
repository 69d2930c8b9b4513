// Checks the dashboards against Grafana's own schema. A module of its own, so
// that the product's go.mod stays free of it.
module girassol.dev/internal/tools/grafana

go 1.26.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
