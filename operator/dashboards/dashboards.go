// Package dashboards makes the Grafana dashboards that the chart ships: what
// they show, in which order, by which queries.
//
// It owns panels and queries and must not know how a dashboard reaches Grafana.
// The JSON below charts/girassol/files/dashboards is made from it; a test fails
// when the two differ and writes it anew with -update. No data source is wired
// in: each dashboard asks for one.
package dashboards

import (
	"encoding/json"
	"fmt"
)

// SchemaVersion of the JSON: Grafana's newest for dashboards of this form; older
// ones ignore what they do not know.
const SchemaVersion = 42

// Dashboard of one subject.
type Dashboard struct {
	// UID is kept over upgrades, so that links stay good.
	UID, Title, Description string
	// PerSite adds a variable for the site.
	PerSite bool
	Rows    []Row
}

// Row of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Kind of panel, by Grafana's name.
type Kind string

// Kinds.
const (
	Stat          Kind = "stat"
	TimeSeries    Kind = "timeseries"
	StateTimeline Kind = "state-timeline"
	BarGauge      Kind = "bargauge"
)

// Panel is one picture.
type Panel struct {
	Title, Description string
	Kind               Kind
	// Unit by Grafana's name, such as "s", "Bps", "watt"; empty is a plain number.
	Unit    string
	Queries []Query
	// Width of 24; 0 shares the row.
	Width int
	// Stack the series of a TimeSeries.
	Stack bool
	// States maps values to words, for a StateTimeline.
	States []State
	// Step draws values that hold until the next.
	Step bool
}

// Query in PromQL. $federation, $site and $__rate_interval are replaced by
// Grafana.
type Query struct {
	Expr, Legend string
	// Instant asks for the newest value only.
	Instant bool
}

// State is a word and colour for a value.
type State struct {
	Value       float64
	Text, Color string
}

// Files are the dashboards' JSON by file name.
func Files() (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, d := range All() {
		b, err := d.JSON()
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", d.Title, err)
		}
		out[d.UID+".json"] = b
	}
	return out, nil
}

type object = map[string]any

// JSON of the dashboard as Grafana's file provisioning and sidecar read it.
func (d Dashboard) JSON() ([]byte, error) {
	variables := []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0, "refresh": 1, "regex": "", "multi": false, "includeAll": false, "options": []object{}},
		queryVariable("federation", "Federation", "label_values(girassol_federation_phase, federation)"),
	}
	if d.PerSite {
		variables = append(variables, queryVariable("site", "Site", `label_values(girassol_site_phase{federation=~"$federation"}, site)`))
	}
	b, err := json.MarshalIndent(object{
		"uid": d.UID, "title": d.Title, "description": d.Description, "tags": []string{"girassol"}, "schemaVersion": SchemaVersion,
		"editable": true, "graphTooltip": 1, "fiscalYearStartMonth": 0, "timezone": "browser", "weekStart": "", "refresh": "30s", "version": 1,
		"time": object{"from": "now-24h", "to": "now"}, "timepicker": object{}, "links": []object{},
		"templating": object{"list": variables}, "annotations": object{"list": []object{}}, "panels": d.panels(),
	}, "", "  ")
	return append(b, '\n'), err
}

func queryVariable(name, label, query string) object {
	return object{
		"name": name, "label": label, "type": "query", "datasource": source(), "definition": query,
		"query":   object{"query": query, "refId": "StandardVariableQuery", "qryType": 1},
		"refresh": 2, "regex": "", "sort": 1, "multi": true, "includeAll": true, "allValue": ".*", "hide": 0, "options": []object{},
		"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}},
	}
}

func source() object { return object{"type": "prometheus", "uid": "${datasource}"} }

const (
	width  = 24
	height = 8
	small  = 4
)

func (d Dashboard) panels() []object {
	var out []object
	id, y := 1, 0
	for _, r := range d.Rows {
		out = append(out, object{"id": id, "type": "row", "title": r.Title, "collapsed": false, "panels": []object{}, "gridPos": object{"x": 0, "y": y, "w": width, "h": 1}})
		id, y = id+1, y+1
		x, tall := 0, 0
		for _, p := range r.Panels {
			w, h := p.Width, height
			if w == 0 {
				w = width / len(r.Panels)
			}
			if p.Kind == Stat {
				h = small
			}
			if x+w > width {
				x, y, tall = 0, y+tall, 0
			}
			panel := p.json()
			panel["id"], panel["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
			out = append(out, panel)
			id, x, tall = id+1, x+w, max(tall, h)
		}
		y += tall
	}
	return out
}

func (p Panel) json() object {
	var targets []object
	for i, q := range p.Queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source(), "expr": q.Expr, "legendFormat": q.Legend,
			"instant": q.Instant, "range": !q.Instant, "editorMode": "code",
		})
	}
	defaults := object{"unit": p.Unit, "mappings": p.mappings(), "custom": p.custom(), "color": object{"mode": "palette-classic"}}
	if p.Kind == Stat || p.Kind == BarGauge {
		delete(defaults, "custom")
	}
	return object{
		"type": string(p.Kind), "title": p.Title, "description": p.Description, "datasource": source(), "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []object{}}, "options": p.options(), "transparent": false,
	}
}

func (p Panel) custom() object {
	switch p.Kind {
	case TimeSeries:
		c := object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": false, "lineInterpolation": "linear"}
		if p.Step {
			c["lineInterpolation"] = "stepAfter"
		}
		if p.Stack {
			c["stacking"], c["fillOpacity"] = object{"mode": "normal", "group": "A"}, 40
		}
		return c
	case StateTimeline:
		return object{"fillOpacity": 80, "lineWidth": 0}
	}
	return object{}
}

func (p Panel) mappings() []object {
	if len(p.States) == 0 {
		return []object{}
	}
	words := object{}
	for i, s := range p.States {
		words[fmt.Sprint(s.Value)] = object{"text": s.Text, "color": s.Color, "index": i}
	}
	return []object{{"type": "value", "options": words}}
}

func (p Panel) options() object {
	switch p.Kind {
	case Stat:
		o := object{"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}, "colorMode": "value", "graphMode": "none",
			"justifyMode": "auto", "orientation": "auto", "textMode": "auto", "wideLayout": true, "showPercentChange": false, "percentChangeColorMode": "standard"}
		if p.Queries[0].Legend != "" {
			o["textMode"] = "name" // the words are in the labels
		}
		return o
	case BarGauge:
		return object{"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}, "displayMode": "basic", "orientation": "horizontal",
			"showUnfilled": true, "valueMode": "color", "namePlacement": "auto", "sizing": "auto", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 300, "legend": legend(false)}
	case StateTimeline:
		return object{"mergeValues": true, "showValue": "never", "rowHeight": 0.9, "alignValue": "left",
			"legend": legend(true), "tooltip": object{"mode": "single", "sort": "none"}}
	}
	return object{"legend": legend(true), "tooltip": object{"mode": "multi", "sort": "desc"}}
}

func legend(show bool) object {
	return object{"displayMode": "list", "placement": "bottom", "showLegend": show, "calcs": []string{}}
}
