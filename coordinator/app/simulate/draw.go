package simulate

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/window"
)

// mostLanes of a timeline; further sites are in the tables.
const mostLanes = 24

// The layout of the pictures in pixels.
const (
	drawWidth = 900.0
	drawLeft  = 130.0
	drawRight = 20.0
	laneTall  = 78.0
	curveTall = 44.0
)

var activityNames = [activities]string{"off", "provisioning", "idle", "training", "syncing"}

// WriteTimeline draws every site's electricity and what the site did.
func (r *Result) WriteTimeline(w io.Writer) error {
	_, err := io.WriteString(w, r.timeline())
	return err
}

// WriteEmissions draws the emissions over the run and beside the baselines.
func (r *Result) WriteEmissions(w io.Writer) error {
	_, err := io.WriteString(w, r.emissions())
	return err
}

// x places a time on the axis of the whole traces.
func (r *Result) x(t time.Time) float64 {
	part := float64(t.Sub(r.config.Start)) / float64(r.config.End.Sub(r.config.Start))
	return drawLeft + part*(drawWidth-drawLeft-drawRight)
}

func (r *Result) timeline() string {
	sites := r.config.Sites[:min(len(r.config.Sites), mostLanes)]
	c := newCanvas(drawWidth, 46+laneTall*float64(len(sites))+34, "What the sites did",
		"One lane for each site: the signal as a line, its threshold dashed, spans below it shaded, and below the line what the machines did.")
	c.text(drawLeft, 18, "start", "h", r.Federation+": "+number(r.Hours, 2)+" h, "+optional(r.KgCO2e.Marginal, 3)+" kg marginal")
	x := drawLeft
	for _, a := range []activity{training, syncing, idle, provisioning, out} {
		c.rect(x, 27, 10, 10, activityNames[a], "")
		c.text(x+14, 36, "start", "s", activityNames[a])
		x += 26 + 6.2*float64(len(activityNames[a]))
	}
	c.rect(x, 27, 10, 10, "clean", "")
	c.text(x+14, 36, "start", "s", "electricity below the threshold")
	for i, s := range sites {
		r.lane(c, i, s, 46+laneTall*float64(i))
	}
	r.axis(c, 46+laneTall*float64(len(sites)))
	return c.String()
}

// lane draws one site.
func (r *Result) lane(c *canvas, index int, s Site, top float64) {
	low := top + curveTall + 8
	c.text(drawLeft-8, top+16, "end", "h", short(s.Name))
	c.text(drawLeft-8, top+30, "end", "s", plural(r.Sites[s.Name].Starts, "start"))
	c.text(drawLeft-8, top+42, "end", "s", number(r.Sites[s.Name].Energy, 1)+" kWh")
	values, highest := r.values(s)
	y := func(v float64) float64 { return low - v/highest*curveTall }
	limit := math.NaN()
	if s.Signal != nil && (s.Policy.Mode == window.Grams && s.Signal.Unit != signals.PercentileOf ||
		s.Policy.Mode == window.Percentile && s.Signal.Unit == signals.PercentileOf) {
		limit = s.Policy.Enter
	}
	var curve [][2]float64
	begun := -1 // of a clean span
	for i := range len(values) + 1 {
		if clean := i < len(values) && values[i] < limit; clean && begun < 0 {
			begun = i
		} else if !clean && begun >= 0 {
			c.rect(r.x(r.bin(begun)), top+4, r.x(r.bin(i))-r.x(r.bin(begun)), curveTall+4, "clean", "")
			begun = -1
		}
	}
	for i, v := range values {
		from := r.bin(i)
		curve = append(curve, [2]float64{r.x(from), y(v)})
	}
	c.path(curve, "line")
	if limit <= highest {
		c.line(drawLeft, y(limit), drawWidth-drawRight, y(limit), "limit")
	}
	c.line(drawLeft, low, drawWidth-drawRight, low, "axis")
	if s.Signal != nil {
		c.text(drawLeft-8, top+54, "end", "s", "up to "+number(highest, 0)+" "+unitOf(s))
	}
	r.strip(c, index, low+3)
}

// bin is the beginning of a span of the picture.
func (r *Result) bin(i int) time.Time { return r.config.Start.Add(time.Duration(i) * r.picture.width) }

// unitOf the curve: intensities are drawn in gCO2/kWh.
func unitOf(s Site) string {
	if s.Signal.Unit == signals.PoundsPerMWh {
		return string(signals.GramsPerKWh)
	}
	return string(s.Signal.Unit)
}

// short cuts a name to the margin.
func short(name string) string {
	const most = 17
	if len(name) > most {
		return name[:most-1] + "…"
	}
	return name
}

func plural(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return strconv.Itoa(n) + " " + word
}

// strip draws what the machines did most in each span.
func (r *Result) strip(c *canvas, index int, top float64) {
	from, doing := r.config.Start, activities
	flush := func(until time.Time) {
		if doing < activities && until.After(from) {
			c.rect(r.x(from), top, r.x(until)-r.x(from), 12, activityNames[doing],
				fmt.Sprintf("%s from %s to %s", activityNames[doing], stamp(from), stamp(until)))
		}
	}
	before := r.config.Start
	for _, f := range r.picture.frames {
		most := out
		for a := range activities {
			if f.seconds[index][a] > f.seconds[index][most] {
				most = a
			}
		}
		if most != doing {
			flush(before)
			from, doing = before, most
		}
		before = f.at
	}
	flush(before)
}

// values of the signal in the spans of the picture, NaN where there is none.
func (r *Result) values(s Site) (values []float64, highest float64) {
	highest = 1
	if s.Signal == nil {
		return nil, highest
	}
	series := s.Signal
	if g, err := series.Grams(); err == nil {
		series = g
	}
	const samples = 4
	for from := r.config.Start; from.Before(r.config.End); from = from.Add(r.picture.width) {
		sum, n := 0.0, 0
		for i := range samples {
			if v := series.At(from.Add(r.picture.width * time.Duration(i) / samples)).Value; v != nil {
				sum += *v
				n++
			}
		}
		v := math.NaN()
		if n > 0 {
			v = sum / float64(n)
			highest = math.Max(highest, v)
		}
		values = append(values, v)
	}
	return values, highest
}

// axis of hours or days.
func (r *Result) axis(c *canvas, top float64) {
	total := r.config.End.Sub(r.config.Start).Hours()
	unit, name := 1.0, "hours after "
	if total > 96 {
		unit, name = 24, "days after "
	}
	step := 0.25
	for _, s := range []float64{0.25, 0.5, 1, 2, 3, 6, 12, 24, 30, 60, 90, 180, 365} {
		if step = s; total/unit/s <= 12 {
			break
		}
	}
	for t := 0.0; t*unit <= total; t += step {
		x := r.x(r.config.Start.Add(time.Duration(t * unit * float64(time.Hour))))
		c.line(x, top, x, top+4, "axis")
		c.text(x, top+15, "middle", "s", strconv.FormatFloat(t, 'f', -1, 64))
	}
	c.text(drawWidth-drawRight, top+28, "end", "s", name+stamp(r.config.Start))
}

func (r *Result) emissions() string {
	names := slices.Sorted(maps.Keys(r.Baselines))
	const plot, bar = 190.0, 20.0
	rows := float64(len(names) + 2)
	c := newCanvas(drawWidth, 40+plot+60+rows*bar+24, "Emissions",
		"Above, the run's emissions so far by hour in the marginal and the average ledger; below, the run beside the clairvoyant bound and the same work always on in one region.")
	c.text(drawLeft, 18, "start", "h", "kgCO2e so far: marginal ledger (solid), average ledger (dashed)")
	highest := 0.0
	for _, f := range r.picture.frames {
		highest = math.Max(highest, math.Max(value(f.kgMarginal), value(f.kgAverage)))
	}
	scale := ticks(highest, 4)
	top, bottom := 32.0, 32+plot
	y := func(v float64) float64 { return bottom - v/scale[len(scale)-1]*plot }
	for _, t := range scale {
		c.line(drawLeft, y(t), drawWidth-drawRight, y(t), "grid")
		c.text(drawLeft-6, y(t)+4, "end", "s", strconv.FormatFloat(t, 'g', 4, 64))
	}
	var marginal, average [][2]float64
	for _, f := range r.picture.frames {
		marginal = append(marginal, [2]float64{r.x(f.at), y(orNaN(f.kgMarginal))})
		average = append(average, [2]float64{r.x(f.at), y(orNaN(f.kgAverage))})
	}
	c.path(average, "second")
	c.path(marginal, "first")
	c.line(drawLeft, top, drawLeft, bottom, "axis")
	r.axis(c, bottom)
	r.bars(c, names, bottom+56, bar)
	return c.String()
}

// bars compare the marginal emissions of the same work.
func (r *Result) bars(c *canvas, names []string, top, bar float64) {
	c.text(drawLeft, top-6, "start", "h", "kgCO2e for the same work, marginal ledger")
	type entry struct {
		name, class string
		kg          *float64
	}
	entries := []entry{{"this run", "training", r.KgCO2e.Marginal}}
	if r.Bound != nil {
		entries = append(entries, entry{"bound", "bound", &r.Bound.KgCO2e})
	}
	for _, name := range names {
		entries = append(entries, entry{"only " + short(name), "base", r.Baselines[name].KgCO2e})
	}
	most := 0.0
	for _, e := range entries {
		most = math.Max(most, value(e.kg))
	}
	if most == 0 {
		most = 1
	}
	for i, e := range entries {
		y := top + float64(i)*bar
		c.text(drawLeft-6, y+13, "end", "s", e.name)
		if e.kg == nil {
			c.text(drawLeft+4, y+13, "start", "s", "not known")
			continue
		}
		long := *e.kg / most * (drawWidth - drawLeft - drawRight - 60)
		c.rect(drawLeft, y+2, long, bar-5, e.class, "")
		c.text(drawLeft+long+5, y+13, "start", "s", number(*e.kg, 3))
	}
}

func value(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

func orNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
