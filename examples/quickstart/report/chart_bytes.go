package report

import (
	"fmt"
	"math"
)

// bytesChart draws the bytes per member of each round on a logarithmic scale
// against what dense fp32 would take.
func bytesChart(s Summary, width float64) string {
	type sample struct {
		round    Round
		up, down float64
	}
	var samples []sample
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, r := range s.Rounds {
		if n := float64(len(r.Members)); n > 0 {
			p := sample{r, float64(r.BytesUp) / n, float64(r.BytesDown) / n}
			samples = append(samples, p)
			for _, v := range []float64{p.up, p.down} {
				if v > 0 {
					lo, hi = min(lo, v), max(hi, v)
				}
			}
		}
	}
	if len(samples) == 0 || !finite(lo) {
		return ""
	}
	dense := float64(s.Wire.DenseBytes)
	if dense > 0 {
		lo, hi = min(lo, dense), max(hi, dense)
	}
	const left, right, top, bottom, height = 56.0, 84.0, 24.0, 42.0, 280.0
	c := newCanvas(width, height, "Bytes per member and round",
		fmt.Sprintf("Median %s up and %s down; dense fp32 would be %s each way.", byteSize(s.Wire.MedianUp), byteSize(s.Wire.MedianDown), ByteSize(dense)))
	y, yt := logarithmic(lo, hi, height-bottom, top)
	first, last := float64(samples[0].round.Version), float64(samples[len(samples)-1].round.Version)
	x := scale{lo: first, hi: max(last, first+1), from: left + 8, to: width - right}
	for _, v := range yt {
		c.line(left, y.at(v), width-right, y.at(v), "grid")
		c.text(left-6, y.at(v)+4, "end", "tick", byteTick(v))
	}
	c.text(0, top-10, "start", "label", "bytes per member and round, log scale")
	c.line(left, y.from, width-right, y.from, "axis")
	for _, v := range wholeTicks(first, last, int(width/80)) {
		c.line(x.at(v), y.from, x.at(v), y.from+4, "axis")
		c.text(x.at(v), y.from+17, "middle", "tick", tickLabel(v, 1))
	}
	c.text((left+width-right)/2, y.from+34, "middle", "label", "model version")
	if dense > 0 {
		c.line(left, y.at(dense), width-right, y.at(dense), "line-dense")
		c.text(width-right+6, y.at(dense)-1, "start", "value", "dense")
		c.text(width-right+6, y.at(dense)+12, "start", "label", ByteSize(dense))
	}
	var up, down []vertex
	for _, p := range samples {
		v := float64(p.round.Version)
		up = append(up, vertex{x.at(v), y.at(p.up)})
		down = append(down, vertex{x.at(v), y.at(p.down)})
	}
	c.path(up, "line-up")
	c.path(down, "line-down")
	for i, p := range samples {
		tip := fmt.Sprintf("version %d, %s: %s up, %s down each", p.round.Version,
			plural(len(p.round.Members), "member", "members"), ByteSize(p.up), ByteSize(p.down))
		c.dot(up[i].x, up[i].y, 2.8, "dot-up", tip)
		c.diamond(down[i].x, down[i].y, 3.6, "dot-down", tip)
	}
	endLabels(c, s, y, width-right+6)
	return c.String()
}

// endLabels names the two series at their medians, kept apart from each other.
func endLabels(c *canvas, s Summary, y scale, x float64) {
	if s.Wire.MedianUp == nil || s.Wire.MedianDown == nil {
		return
	}
	yu, yd := y.at(*s.Wire.MedianUp), y.at(*s.Wire.MedianDown)
	if math.Abs(yu-yd) < 30 {
		mid := (yu + yd) / 2
		if yu <= yd {
			yu, yd = mid-15, mid+15
		} else {
			yu, yd = mid+15, mid-15
		}
	}
	if top := y.at(max(*s.Wire.MedianUp, *s.Wire.MedianDown)); s.Wire.DenseBytes > 0 && top-y.at(float64(s.Wire.DenseBytes)) < 30 {
		yu, yd = yu+30, yd+30
	}
	c.text(x, yu-1, "start", "value value-up", "● up")
	c.text(x, yu+12, "start", "label", byteSize(s.Wire.MedianUp))
	c.text(x, yd-1, "start", "value value-down", "◆ down")
	c.text(x, yd+12, "start", "label", byteSize(s.Wire.MedianDown))
}

func wholeTicks(lo, hi float64, about int) []float64 {
	if hi <= lo {
		return []float64{lo}
	}
	step := math.Max(1, niceStep((hi-lo)/float64(max(about, 1))))
	if step == 2.5 {
		step = 5
	}
	var out []float64
	for v := math.Ceil(lo/step) * step; v <= hi; v += step {
		out = append(out, v)
	}
	return out
}

// comparisonChart places the contenders on one axis of held-out loss. Points
// on a line, not bars: the axis does not begin at zero, and says so.
func comparisonChart(s Summary, width float64) string {
	type row struct {
		name, class string
		loss        *float64
	}
	if s.Comparison == nil {
		return ""
	}
	var rows []row
	for _, a := range s.Comparison.Alone {
		rows = append(rows, row{a.Name + " alone", "dot-base", a.Loss})
	}
	rows = append(rows, row{"federation", "dot-run", s.HeldOut.Final})
	if s.Comparison.Central != nil {
		rows = append(rows, row{"central", "dot-base", s.Comparison.Central.Loss})
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, r := range rows {
		if r.loss != nil && finite(*r.loss) {
			lo, hi = min(lo, *r.loss), max(hi, *r.loss)
		}
	}
	if !finite(lo) {
		return ""
	}
	const top, rowHeight = 8.0, 26.0
	left, right := 150.0, 60.0
	if width < 420 {
		left, right = 118, 50
	}
	height := top + rowHeight*float64(len(rows)) + 40
	c := newCanvas(width, height, "Held-out loss of the federation and its alternatives", "Lower is better.")
	pad := max((hi-lo)*0.15, 0.01)
	x, ticks := linear(lo-pad, hi+pad, left, width-right, max(3, int((width-left-right)/90)))
	base := height - 36
	step := tickStep(ticks)
	for _, t := range ticks {
		c.line(x.at(t), top, x.at(t), base, "grid")
		c.text(x.at(t), base+15, "middle", "tick", tickLabel(t, step))
	}
	c.text((left+width-right)/2, base+32, "middle", "label", "nats per byte, lower is better; axis not from zero")
	for i, r := range rows {
		yc := top + rowHeight*(float64(i)+0.5)
		name := []rune(r.name)
		if most := int((left - 8) / 6.6); len(name) > most {
			name = append(name[:most-1], '…')
		}
		c.text(left-8, yc+4, "end", "name", string(name))
		c.line(left, yc, width-right, yc, "track-line")
		if r.loss == nil || !finite(*r.loss) {
			c.text(left+6, yc+4, "start", "value", unknown)
			continue
		}
		c.dot(x.at(*r.loss), yc, 6, r.class, fmt.Sprintf("%s: %.3f", r.name, *r.loss))
		c.text(x.at(*r.loss)+10, yc+4, "start", "value", fixed(r.loss, 3))
	}
	return c.String()
}
