package report

import (
	"fmt"
	"math"
)

// lossChart draws held-out loss, and the sites' own training loss as faint
// dots, over the tokens trained on. Empty without a single point.
func lossChart(s Summary, width float64) string {
	points := s.HeldOut.Points
	lo, hi, tokens := math.Inf(1), math.Inf(-1), 0.0
	see := func(t, loss float64) {
		lo, hi, tokens = min(lo, loss), max(hi, loss), max(tokens, t)
	}
	for _, p := range points {
		see(float64(p.Tokens), p.Loss)
	}
	for _, r := range s.Rounds {
		if r.Loss != nil {
			see(float64(r.TokensTotal), *r.Loss)
		}
	}
	if s.HeldOut.Final != nil {
		see(float64(s.Tokens), *s.HeldOut.Final)
	}
	if s.HeldOut.Untrained != nil {
		see(0, *s.HeldOut.Untrained)
	}
	if !finite(lo) || tokens == 0 {
		return ""
	}
	const left, top, bottom = 44.0, 24.0, 42.0
	right := 64.0
	height := 300.0
	c := newCanvas(width, height, "Held-out loss over tokens",
		fmt.Sprintf("From %s nats per byte untrained to %s after %s tokens.", fixed(s.HeldOut.Untrained, 3), fixed(s.HeldOut.Final, 3), Count(tokens)))
	y, yt := linear(lo, hi, height-bottom, top, 5)
	x, xt := linear(0, tokens, left, width-right, int(width/110))
	x.hi = max(tokens, x.lo+1) // the line ends at the edge, ticks beyond it are left out
	axes(c, x, y, xt, yt, "tokens (bytes of text) trained on by all sites", "nats per byte", width, left, right, countTick)

	for _, r := range s.Rounds {
		if r.Loss != nil {
			c.dot(x.at(float64(r.TokensTotal)), y.at(*r.Loss), 2, "faint-dot",
				fmt.Sprintf("version %d: training loss %s", r.Version, fixed(r.Loss, 3)))
		}
	}
	var line []vertex
	if s.HeldOut.Untrained != nil && (len(points) == 0 || points[0].Tokens > 0) {
		line = append(line, vertex{x.at(0), y.at(*s.HeldOut.Untrained)})
	}
	for _, p := range points {
		line = append(line, vertex{x.at(float64(p.Tokens)), y.at(p.Loss)})
	}
	if s.HeldOut.Final != nil && (len(points) == 0 || points[len(points)-1].Tokens < s.Tokens) {
		line = append(line, vertex{x.at(float64(s.Tokens)), y.at(*s.HeldOut.Final)})
	}
	c.path(line, "line-model")
	for _, p := range points {
		c.dot(x.at(float64(p.Tokens)), y.at(p.Loss), 2.6, "dot-model",
			fmt.Sprintf("version %d, %s tokens: held-out loss %.3f", p.Version, Count(float64(p.Tokens)), p.Loss))
	}
	if n := len(line); n > 0 {
		last := line[n-1]
		c.dot(last.x, last.y, 4, "dot-model", "")
		label := s.HeldOut.Final
		if label == nil && len(points) > 0 {
			label = &points[len(points)-1].Loss
		}
		c.text(last.x+8, last.y+4, "start", "value", fixed(label, 2))
		if s.HeldOut.Untrained != nil {
			c.text(x.at(0)+8, y.at(*s.HeldOut.Untrained)+1, "start", "value", fixed(s.HeldOut.Untrained, 2)+" untrained")
		}
	}
	legendLoss(c, width, right, top)
	return c.String()
}

func legendLoss(c *canvas, width, right, top float64) {
	xr := width - right
	c.line(xr-160, top+6, xr-142, top+6, "line-model")
	c.text(xr-136, top+10, "start", "label", "held-out text")
	c.dot(xr-151, top+24, 2, "faint-dot", "")
	c.text(xr-136, top+28, "start", "label", "sites' own training text")
}

// axes draws grid, ticks and axis titles for a plot whose x axis lies at the
// scale's bottom.
func axes(c *canvas, x, y scale, xt, yt []float64, xTitle, yTitle string, width, left, right float64, xLabel func(float64) string) {
	step := tickStep(yt)
	for _, v := range yt {
		c.line(left, y.at(v), width-right, y.at(v), "grid")
		c.text(left-6, y.at(v)+4, "end", "tick", tickLabel(v, step))
	}
	c.text(0, y.to-10, "start", "label", yTitle)
	base := y.from
	c.line(left, base, width-right, base, "axis")
	for _, v := range xt {
		if px := x.at(v); px <= width-right+0.5 {
			c.line(px, base, px, base+4, "axis")
			c.text(px, base+17, "middle", "tick", xLabel(v))
		}
	}
	c.text((left+width-right)/2, base+34, "middle", "label", xTitle)
}
