// Package grafana checks the chart's dashboards against Grafana's own schema.
package grafana

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func TestDashboardsFollowGrafanasSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "charts", "girassol", "files", "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard.Dashboard
		if err := d.UnmarshalJSONStrict(b); err != nil && err.Error() != "" { // the library returns an empty list of errors as an error
			t.Errorf("%s: %v", filepath.Base(file), err)
			continue
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
		if current := dashboard.NewDashboard().SchemaVersion; d.SchemaVersion != current {
			t.Errorf("%s: schema version %d, Grafana's is %d", filepath.Base(file), d.SchemaVersion, current)
		}
	}
}
