package simulate

import (
	"fmt"
	"html"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>%s: simulated</title>
<style>body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}td,th{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
td:first-child,th:first-child{text-align:left}svg{width:100%%;height:auto;margin:1rem 0}td.text{text-align:left;white-space:normal}</style>
<h1>%s: simulated</h1>
<p>%s</p>
`

// WriteHTML writes a page that needs nothing else: figures and pictures.
func (r *Result) WriteHTML(w io.Writer) error {
	var b strings.Builder
	name := html.EscapeString(r.Federation)
	fmt.Fprintf(&b, page, name, name, html.EscapeString(fmt.Sprintf("%s h from %s to %s: %s. Seed %d.",
		number(r.Hours, 2), stamp(r.Start), stamp(r.End), r.Ended, r.Seed)))
	var rows [][]string
	for _, line := range r.summary() {
		rows = append(rows, []string{line[0], line[1]})
	}
	table(&b, nil, rows)
	b.WriteString("<h2>What the sites did</h2>\n" + r.timeline() + "\n")
	if left := len(r.config.Sites) - mostLanes; left > 0 {
		fmt.Fprintf(&b, "<p>%d more sites are in the table below.</p>\n", left)
	}
	b.WriteString("<h2>Emissions</h2>\n" + r.emissions() + "\n<h2>Sites</h2>\n")
	rows = nil
	for _, name := range r.names {
		s := r.Sites[name]
		rows = append(rows, []string{name, s.Region, strconv.Itoa(s.Starts), number(s.OpenHours, 2), percent(s.WindowUse), percent(s.TrainingUse),
			number(s.Energy, 2), optional(s.KgCO2e.Marginal, 3), optional(s.KgCO2e.Average, 3), percent(s.CleanShare),
			number(s.TrainingHours, 2), number(s.SyncHours, 2), number(s.IdleHours, 2), number(s.ProvisioningHours, 2)})
	}
	table(&b, []string{"site", "region", "starts", "open h", "of it in", "of it trained", "kWh", "kg marginal", "kg average", "clean",
		"training h", "sync h", "idle h", "starting h"}, rows)
	b.WriteString("<h2>Out, hours by reason</h2>\n")
	rows = nil
	for _, name := range r.names {
		rows = append(rows, []string{name, outHours(r.Sites[name].OutHours)})
	}
	table(&b, []string{"site", "hours"}, rows)
	b.WriteString("<h2>The same work</h2>\n")
	rows = nil
	for _, name := range slices.Sorted(maps.Keys(r.Baselines)) {
		base := r.Baselines[name]
		label := "always on in " + name
		if base.Repeated {
			label += " (its trace begun anew)"
		}
		rows = append(rows, []string{label, number(base.Hours, 2), number(base.KWh, 2), optional(base.KgCO2e, 3), percent(base.Ratio)})
	}
	if r.Bound != nil {
		rows = append(rows, []string{"clairvoyant bound", number(r.Bound.DeadlineHours, 2), number(r.Bound.KWh, 2),
			number(r.Bound.KgCO2e, 3), percent(ratio(r.KgCO2e.Marginal, &r.Bound.KgCO2e))})
	}
	table(&b, []string{"compared with", "hours", "kWh", "kg marginal", "this run is"}, rows)
	b.WriteString("</html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func table(b *strings.Builder, head []string, rows [][]string) {
	b.WriteString(`<div class="wide"><table>`)
	if head != nil {
		b.WriteString("<tr>")
		for _, cell := range head {
			b.WriteString("<th>" + html.EscapeString(cell) + "</th>")
		}
		b.WriteString("</tr>")
	}
	for _, row := range rows {
		b.WriteString("<tr>")
		for i, cell := range row {
			class := ""
			if i > 0 && len(row) == 2 {
				class = ` class="text"`
			}
			b.WriteString("<td" + class + ">" + html.EscapeString(cell) + "</td>")
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</table></div>\n")
}
