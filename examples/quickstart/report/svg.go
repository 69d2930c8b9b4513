package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"time"
)

// canvas collects an SVG picture. Coordinates that are not finite are never
// written: what has no place is not drawn.
type canvas struct {
	b             strings.Builder
	width, height float64
	title, desc   string
}

func newCanvas(width, height float64, title, desc string) *canvas {
	return &canvas{width: width, height: height, title: title, desc: desc}
}

// String closes the picture.
func (c *canvas) String() string {
	return fmt.Sprintf(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s"><title>%s</title><desc>%s</desc>%s</svg>`,
		px(c.width), px(c.height), html.EscapeString(c.title), html.EscapeString(c.title), html.EscapeString(c.desc), c.b.String())
}

func px(x float64) string {
	return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64)
}

func placed(xs ...float64) bool {
	for _, x := range xs {
		if !finite(x) {
			return false
		}
	}
	return true
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	if placed(x1, y1, x2, y2) {
		fmt.Fprintf(&c.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`, class, px(x1), px(y1), px(x2), px(y2))
	}
}

func (c *canvas) rect(x, y, w, h float64, class, tip string) {
	if !placed(x, y, w, h) || w < 0 || h < 0 {
		return
	}
	fmt.Fprintf(&c.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"%s`, class, px(x), px(y), px(w), px(h), tipped(tip, "rect"))
}

func (c *canvas) dot(x, y, r float64, class, tip string) {
	if placed(x, y) {
		fmt.Fprintf(&c.b, `<circle class="%s" cx="%s" cy="%s" r="%s"%s`, class, px(x), px(y), px(r), tipped(tip, "circle"))
	}
}

// diamond is the second marker, so that series differ by shape and not by
// colour alone.
func (c *canvas) diamond(x, y, r float64, class, tip string) {
	if placed(x, y) {
		fmt.Fprintf(&c.b, `<path class="%s" d="M%s %sl%s %sl%s %sl%s %sz"%s`, class,
			px(x), px(y-r), px(r), px(r), px(-r), px(r), px(-r), px(-r), tipped(tip, "path"))
	}
}

func tipped(tip, element string) string {
	if tip == "" {
		return "/>"
	}
	return "><title>" + html.EscapeString(tip) + "</title></" + element + ">"
}

// text writes at a baseline; anchor is start, middle or end.
func (c *canvas) text(x, y float64, anchor, class, s string) {
	if placed(x, y) {
		fmt.Fprintf(&c.b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`, class, px(x), px(y), anchor, html.EscapeString(s))
	}
}

type vertex struct{ x, y float64 }

// path joins vertices; one that is not finite breaks the line.
func (c *canvas) path(v []vertex, class string) {
	var d strings.Builder
	pen := "M"
	for _, p := range v {
		if !placed(p.x, p.y) {
			pen = "M"
			continue
		}
		d.WriteString(pen + px(p.x) + " " + px(p.y))
		pen = "L"
	}
	if d.Len() > 0 {
		fmt.Fprintf(&c.b, `<path class="%s" d="%s"/>`, class, d.String())
	}
}

// scale maps [lo, hi] to [from, to].
type scale struct {
	lo, hi, from, to float64
	log              bool
}

func (s scale) at(x float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		if x <= 0 {
			return math.NaN()
		}
		x, lo, hi = math.Log10(x), math.Log10(lo), math.Log10(hi)
	}
	if hi == lo {
		return (s.from + s.to) / 2
	}
	return s.from + (x-lo)/(hi-lo)*(s.to-s.from)
}

// linear returns a scale that begins and ends on ticks, and the ticks. Limits
// that are not finite or empty become 0 to 1.
func linear(lo, hi, from, to float64, about int) (scale, []float64) {
	if !finite(lo) || !finite(hi) || hi < lo {
		lo, hi = 0, 1
	}
	if hi == lo {
		hi, lo = hi+math.Max(math.Abs(hi)*0.1, 0.5), lo-math.Max(math.Abs(lo)*0.1, 0.5)
	}
	step := niceStep((hi - lo) / float64(about))
	first, last := math.Floor(lo/step+1e-9), math.Ceil(hi/step-1e-9)
	var ticks []float64
	for i := first; i <= last; i++ {
		ticks = append(ticks, i*step)
	}
	return scale{lo: first * step, hi: last * step, from: from, to: to}, ticks
}

func niceStep(raw float64) float64 {
	mag := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if raw <= m*mag*1.0001 {
			return m * mag
		}
	}
	return 10 * mag
}

// logarithmic returns a scale over whole decades and a tick at 1, 2 and 5 of
// each, or at the decades alone when there are many.
func logarithmic(lo, hi, from, to float64) (scale, []float64) {
	if !finite(lo) || !finite(hi) || lo <= 0 || hi < lo {
		lo, hi = 1, 10
	}
	first, last := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	if last == first {
		last++
	}
	steps := []float64{1}
	if last-first <= 2 {
		steps = []float64{1, 2, 5}
	}
	var ticks []float64
	for d := first; d <= last; d++ {
		for _, m := range steps {
			if v := m * math.Pow(10, d); v <= math.Pow(10, last)*1.001 {
				ticks = append(ticks, v)
			}
		}
	}
	return scale{lo: math.Pow(10, first), hi: math.Pow(10, last), from: from, to: to, log: true}, ticks
}

// tickLabel prints a tick with the digits that its step needs.
func tickLabel(x, step float64) string {
	decimals := 0
	for decimals < 6 && math.Abs(step-math.Round(step*math.Pow10(decimals))/math.Pow10(decimals)) > math.Abs(step)*1e-6 {
		decimals++
	}
	return group(strconv.FormatFloat(x+0, 'f', decimals, 64))
}

// hourTicks are whole hours at a step that a clock would use.
func hourTicks(hours float64, about int) []float64 {
	step := 24.0
	for _, s := range []float64{0.5, 1, 2, 3, 6, 12} {
		if hours/s <= float64(about) {
			step = s
			break
		}
	}
	var out []float64
	for t := 0.0; t <= hours+1e-9; t += step {
		out = append(out, t)
	}
	return out
}

func tickStep(ticks []float64) float64 {
	if len(ticks) < 2 {
		return 1
	}
	return ticks[1] - ticks[0]
}

// since is the virtual hours after the start.
func since(start, t time.Time) float64 { return t.Sub(start).Hours() }
