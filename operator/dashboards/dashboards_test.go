package dashboards

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the chart's dashboards anew")

var folder = filepath.Join("..", "..", "charts", "girassol", "files", "dashboards")

func TestChartHasTheDashboardsOfThisPackage(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, b := range files {
			if err := os.WriteFile(filepath.Join(folder, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if want, ok := files[e.Name()]; !ok || !bytes.Equal(got, want) {
			t.Errorf("%s is not what this package makes: run go test ./operator/dashboards -update", e.Name())
		}
		delete(files, e.Name())
	}
	for name := range files {
		t.Errorf("the chart lacks %s: run go test ./operator/dashboards -update", name)
	}
}

var metric = regexp.MustCompile(`girassol_[a-z_]+`)

func TestPanelsAreCompleteDoNotOverlapAndWireNoDataSource(t *testing.T) {
	for _, d := range All() {
		b, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		var model struct {
			Panels []struct {
				ID         int
				Title      string
				Datasource *struct{ UID string }
				GridPos    struct{ X, Y, W, H int }
				Targets    []struct {
					Expr       string
					Datasource struct{ UID string }
				}
				Type string
			}
		}
		if err := json.Unmarshal(b, &model); err != nil {
			t.Fatal(err)
		}
		ids, cells := map[int]bool{}, map[[2]int]string{}
		for _, p := range model.Panels {
			if ids[p.ID] {
				t.Errorf("%s: panel id %d is there twice", d.Title, p.ID)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
						t.Fatalf("%s: %q lies on %q or outside", d.Title, p.Title, other)
					}
					cells[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Datasource == nil || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 || p.Title == "" {
				t.Errorf("%s: panel %q lacks a title, a query or the data source's variable", d.Title, p.Title)
			}
			for _, q := range p.Targets {
				if q.Datasource.UID != "${datasource}" || !metric.MatchString(q.Expr) {
					t.Errorf("%s: %q: query %q", d.Title, p.Title, q.Expr)
				}
				if !strings.Contains(q.Expr, "$federation") && !strings.Contains(q.Expr, "$site") {
					t.Errorf("%s: %q is not limited to the federation or site that was chosen: %s", d.Title, p.Title, q.Expr)
				}
			}
		}
	}
}
