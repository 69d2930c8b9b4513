package simulate

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// canvas collects an SVG picture that stands alone: its colours are in it.
// Coordinates that are not finite are never written.
type canvas struct {
	b             strings.Builder
	width, height float64
	title, desc   string
}

// style of all pictures. Activities differ in lightness as well as in hue.
const style = `text{font:12px system-ui,sans-serif;fill:#222}.s{font-size:10px;fill:#555}.h{font-weight:600}` +
	`.axis{stroke:#999;stroke-width:1}.grid{stroke:#e4e4e4;stroke-width:1}.limit{stroke:#b3261e;stroke-width:1;stroke-dasharray:4 3}` +
	`.line{fill:none;stroke:#30475e;stroke-width:1.2}.second{fill:none;stroke:#9a6a00;stroke-width:1.6;stroke-dasharray:5 3}` +
	`.first{fill:none;stroke:#14633c;stroke-width:2}.clean{fill:#dff2e3}.off{fill:#ececec}.training{fill:#14633c}` +
	`.provisioning{fill:#e8a317}.idle{fill:#a9bfdc}.syncing{fill:#5a7fb5}.base{fill:#b8b8b8}.bound{fill:#5a7fb5}.paper{fill:#fff}`

func newCanvas(width, height float64, title, desc string) *canvas {
	c := &canvas{width: width, height: height, title: title, desc: desc}
	c.rect(0, 0, width, height, "paper", "")
	return c
}

func (c *canvas) String() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" role="img" aria-label="%s"><title>%s</title><desc>%s</desc><style>%s</style>%s</svg>`,
		px(c.width), px(c.height), html.EscapeString(c.title), html.EscapeString(c.title), html.EscapeString(c.desc), style, c.b.String())
}

func px(x float64) string { return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) }

func placed(xs ...float64) bool {
	for _, x := range xs {
		if math.IsNaN(x) || math.IsInf(x, 0) {
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
	fmt.Fprintf(&c.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"`, class, px(x), px(y), px(w), px(h))
	if tip == "" {
		c.b.WriteString("/>")
		return
	}
	c.b.WriteString("><title>" + html.EscapeString(tip) + "</title></rect>")
}

func (c *canvas) text(x, y float64, anchor, class, s string) {
	if placed(x, y) {
		fmt.Fprintf(&c.b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`, class, px(x), px(y), anchor, html.EscapeString(s))
	}
}

// path joins vertices; one that is not finite breaks the line.
func (c *canvas) path(v [][2]float64, class string) {
	var d strings.Builder
	pen := "M"
	for _, p := range v {
		if !placed(p[0], p[1]) {
			pen = "M"
			continue
		}
		d.WriteString(pen + px(p[0]) + " " + px(p[1]))
		pen = "L"
	}
	if d.Len() > 0 {
		fmt.Fprintf(&c.b, `<path class="%s" d="%s"/>`, class, d.String())
	}
}

// ticks from 0 to at least hi in round steps.
func ticks(hi float64, about int) []float64 {
	if !placed(hi) || hi <= 0 {
		hi = 1
	}
	raw := hi / float64(about)
	mag := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * mag
	for _, m := range []float64{1, 2, 2.5, 5} {
		if raw <= m*mag*1.0001 {
			step = m * mag
			break
		}
	}
	var out []float64
	for i := 0.0; ; i++ {
		out = append(out, i*step)
		if i*step >= hi*(1-1e-9) {
			return out
		}
	}
}
