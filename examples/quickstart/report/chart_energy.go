package report

import (
	"fmt"
	"math"
)

// windowsChart draws, site below site on one time axis, the marginal intensity,
// the thresholds, the open windows and when the site trained.
func windowsChart(s Summary, width float64) string {
	hoursTotal := since(s.Start, s.End)
	if len(s.Sites) == 0 || hoursTotal <= 0 {
		return ""
	}
	const left, right, top, panel, lane, gap = 44.0, 10.0, 22.0, 84.0, 9.0, 34.0
	row := panel + 2*lane + 13 + gap
	height := top + row*float64(len(s.Sites)) + 22
	c := newCanvas(width, height, "Electricity and training of each site",
		"One panel per site over the same virtual hours: marginal carbon intensity, thresholds, open windows and training.")
	hi := 0.0
	for _, site := range s.Sites {
		for _, p := range site.Trace.Marginal {
			if p.Value != nil && finite(*p.Value) {
				hi = max(hi, *p.Value)
			}
		}
		for _, t := range []*float64{site.EnterBelow, site.LeaveAbove} {
			if t != nil {
				hi = max(hi, *t*1.2)
			}
		}
	}
	about := max(3, int(width/90))
	x := scale{lo: 0, hi: hoursTotal, from: left, to: width - right}
	ticks := hourTicks(hoursTotal, about+1)
	for i, site := range s.Sites {
		y0 := top + row*float64(i)
		sitePanel(c, s, site, x, ticks, y0, panel, lane, hi, width)
	}
	base := top + row*float64(len(s.Sites)) - gap + 4
	step := tickStep(ticks)
	for _, t := range ticks {
		if t <= hoursTotal+1e-9 {
			c.text(x.at(t), base+14, "middle", "tick", tickLabel(t, step))
		}
	}
	c.text((left+width-right)/2, base+32, "middle", "label", "virtual hours since "+s.Start.UTC().Format("Mon 15:04 UTC"))
	return c.String()
}

func sitePanel(c *canvas, s Summary, site Site, x scale, ticks []float64, y0, panel, lane, hi, width float64) {
	y, yt := linear(0, max(hi, 1), y0+panel, y0, 2)
	for _, w := range site.Windows {
		a, b := x.at(since(s.Start, w.From)), x.at(min(since(s.Start, w.To), x.hi))
		c.rect(a, y0, max(b-a, 0), panel, "window", fmt.Sprintf("window open from %s to %s",
			clockHours(since(s.Start, w.From)), clockHours(since(s.Start, w.To))))
	}
	step := tickStep(yt)
	for _, v := range yt {
		c.line(x.from, y.at(v), x.to, y.at(v), "grid")
		c.text(x.from-6, y.at(v)+4, "end", "tick", tickLabel(v, step))
	}
	for _, t := range ticks {
		if t <= x.hi+1e-9 {
			c.line(x.at(t), y0, x.at(t), y0+panel+2*lane+11, "grid")
		}
	}
	c.text(0, y0-8, "start", "panel", site.Name)
	c.text(width-10, y0-8, "end", "label", fmt.Sprintf("window %s h, trained %s h", hours(site.WindowHours), hours(site.TrainingHours)))
	thresholds(c, site, x, y)
	c.path(steps(s, site.Trace.Marginal, x, y), "line-intensity")
	if !s.RanUntil.IsZero() && s.RanUntil.Before(s.End) {
		a := x.at(max(0, since(s.Start, s.RanUntil)))
		c.rect(a, y0, max(x.to-a, 0), panel+2*lane+11, "after", "the run had stopped")
	}
	l1, l2 := y0+panel+9, y0+panel+9+lane+2
	c.text(x.from-6, l1+7.5, "end", "lane", "open")
	c.text(x.from-6, l2+7.5, "end", "lane", "trains")
	c.rect(x.from, l1, x.to-x.from, lane-1, "track", "")
	c.rect(x.from, l2, x.to-x.from, lane-1, "track", "")
	for _, w := range site.Windows {
		a, b := x.at(since(s.Start, w.From)), x.at(min(since(s.Start, w.To), x.hi))
		c.rect(a, l1, max(b-a, 0), lane-1, "lane-window", "")
	}
	for _, t := range site.Training {
		a, b := x.at(since(s.Start, t.From)), x.at(min(since(s.Start, t.To), x.hi))
		c.rect(a, l2, max(b-a, 0.6), lane-1, "lane-train", "")
	}
}

func thresholds(c *canvas, site Site, x, y scale) {
	if site.LeaveAbove != nil {
		c.line(x.from, y.at(*site.LeaveAbove), x.to, y.at(*site.LeaveAbove), "threshold")
	}
	if site.EnterBelow != nil {
		c.line(x.from, y.at(*site.EnterBelow), x.to, y.at(*site.EnterBelow), "threshold")
	}
}

// steps is a trace as it holds: level until the next point, gaps left open.
func steps(s Summary, trace []Point, x, y scale) []vertex {
	var v []vertex
	for i, p := range trace {
		t := since(s.Start, p.Time)
		if t > x.hi+1e-9 || p.Value == nil {
			v = append(v, vertex{math.NaN(), math.NaN()})
			continue
		}
		next := x.hi
		if i+1 < len(trace) {
			next = min(next, since(s.Start, trace[i+1].Time))
		}
		v = append(v, vertex{x.at(max(t, 0)), y.at(*p.Value)}, vertex{x.at(max(next, 0)), y.at(*p.Value)})
	}
	return v
}

// bar is one row of a bar chart.
type bar struct {
	label, value, class string
	size                *float64
	gapBefore           bool
}

// barChart draws horizontal bars from zero with their values at the end. Rows
// without a size keep their label and say unknown.
func barChart(title, unit string, bars []bar, width float64) string {
	hi := 0.0
	for _, b := range bars {
		if b.size != nil && finite(*b.size) {
			hi = max(hi, *b.size)
		}
	}
	if len(bars) == 0 || hi <= 0 {
		return ""
	}
	const rowHeight, thick, top = 25.0, 14.0, 8.0
	left, right := 150.0, 96.0
	if width < 420 {
		left, right = 112, 78
	}
	height := top + 40
	for _, b := range bars {
		height += rowHeight
		if b.gapBefore {
			height += 10
		}
	}
	c := newCanvas(width, height, title, title+" in "+unit)
	x, ticks := linear(0, hi, left, width-right, max(2, int((width-left-right)/70)))
	step := tickStep(ticks)
	base := height - 36
	x.hi = hi // the longest bar ends at the edge
	for _, t := range ticks {
		if t > hi*1.0001 {
			continue
		}
		c.line(x.at(t), top, x.at(t), base, "grid")
		c.text(x.at(t), base+15, "middle", "tick", tickLabel(t, step))
	}
	c.text((left+width-right)/2, base+32, "middle", "label", unit)
	y := top
	for _, b := range bars {
		if b.gapBefore {
			y += 10
		}
		c.text(left-8, y+16, "end", "name", b.label)
		end := left
		if b.size != nil && finite(*b.size) && *b.size >= 0 {
			end = x.at(*b.size)
			c.rect(left, y+4, max(end-left, 0.8), thick, b.class, b.label+": "+b.value)
		}
		c.text(end+6, y+16, "start", "value", b.value)
		y += rowHeight
	}
	c.line(left, top, left, base, "axis")
	return c.String()
}

// emissionsChart is kilograms of the run, of each site in it, and of the
// always-on baselines, by the marginal ledger.
func emissionsChart(s Summary, width float64) string {
	var bars []bar
	for _, site := range s.Sites {
		bars = append(bars, bar{label: site.Name, value: kilograms(site.MarginalKg), size: site.MarginalKg, class: "bar-site"})
	}
	bars = append(bars, bar{label: "all sites", value: kilograms(s.Energy.MarginalKg), size: s.Energy.MarginalKg, class: "bar-run"})
	for i, b := range s.Energy.Baselines {
		value := kilograms(b.MarginalKg)
		bars = append(bars, bar{label: b.Site + " always on", value: value, size: b.MarginalKg, class: "bar-base", gapBefore: i == 0})
	}
	return barChart("Marginal emissions", "kg CO2, marginal", shorten(bars, width), width)
}

// energyChart is the same rows in kWh.
func energyChart(s Summary, width float64) string {
	var bars []bar
	kwh := func(x float64) string { return sig(x) + " kWh" }
	for _, site := range s.Sites {
		e := site.EnergyKWh
		bars = append(bars, bar{label: site.Name, value: kwh(e), size: &e, class: "bar-site"})
	}
	total := s.Energy.KWh
	bars = append(bars, bar{label: "all sites", value: kwh(total), size: &total, class: "bar-run"})
	for i, b := range s.Energy.Baselines {
		e := b.KWh
		bars = append(bars, bar{label: b.Site + " always on", value: kwh(e), size: &e, class: "bar-base", gapBefore: i == 0})
	}
	return barChart("Energy", "kWh", shorten(bars, width), width)
}

// shorten cuts labels to what fits left of the bars.
func shorten(bars []bar, width float64) []bar {
	most := 24
	if width < 420 {
		most = 17
	}
	for i := range bars {
		if r := []rune(bars[i].label); len(r) > most {
			bars[i].label = string(r[:most-1]) + "…"
		}
	}
	return bars
}
