// Package synthetic generates electricity traces from a seed. None of its
// numbers was measured: the three regions are twins of a published field study's
// in the facts that matter to a schedule, which are the windows below
// 100 gCO2/kWh and the mean intensity within and outside them.
//
// It owns the shapes. It must not know what a trace is used for.
//
// How a marginal series is made, per region and from the seed and the region's
// name alone: points inside a window lie at the window's level with correlated
// noise and rise towards 95 g at its edges; points outside lie at the dirty
// level with correlated noise and a slow wave, and start at four fifths of it
// over the first three points beside a window: marginal intensity jumps when
// another plant answers. Both sets are then moved to the region's mean, and all values
// are rounded to 0.01 g. Inside a window all stay at or below 95, outside all at
// or above 115, so that a threshold of 100 finds exactly the windows.
//
// The average series is invented to be plausible beside it: slower, lower where
// a window is near, never as low as the marginal one in a window nor as high
// outside.
package synthetic

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/replay"
)

// The shape of every trace: 217 points, every five minutes, 18 hours from the
// first to the last.
const (
	Points  = 217
	Step    = 5 * time.Minute
	MaxSite = 16
)

// Start is the default time of the first point.
var Start = time.Date(2026, time.May, 4, 17, 0, 0, 0, time.UTC)

// Window is a span below 100 gCO2/kWh: from From after the start for Length.
type Window struct {
	From, Length time.Duration
}

// Region is one grid and what its trace was made to be.
type Region struct {
	Name    string
	Windows []Window
	// CleanMean and DirtyMean are the mean marginal intensities in gCO2/kWh
	// within and outside the windows.
	CleanMean, DirtyMean float64
}

// Traces are the generated series. Both traces have a column for each region.
type Traces struct {
	Marginal, Average *replay.Trace
	// Sites are the regions with windows; Baselines those that are always dirty
	// and serve for comparison only.
	Sites, Baselines []Region
}

// Config of a generation. The zero value of a field takes its default.
type Config struct {
	Seed uint64
	// Sites is the number of regions with windows, 1 to 16. Default 3: the twins.
	// Region n of a seed is the same whatever their number.
	Sites int
	// Start is the time of the first point.
	Start time.Time
}

// profile is what makes a region.
type profile struct {
	Region
	spans []span
	// zeros: the windows are at 0 but for one point each, as where nothing but
	// curtailed generation responds.
	zeros bool
	// cleanLevel and dirtyLevel of the average series.
	cleanLevel, dirtyLevel float64
}

// span is points [from, from+n).
type span struct{ from, n int }

// The field study's regions (windows in points of five minutes) and the one that
// never has a window.
var (
	twins = []profile{
		{Region: Region{Name: "ca-north", CleanMean: 73.5, DirtyMean: 443},
			spans: []span{{1, 24}, {28, 49}}, cleanLevel: 140, dirtyLevel: 290},
		{Region: Region{Name: "us-plains", CleanMean: 22.1, DirtyMean: 642},
			spans: []span{{121, 2}, {124, 73}, {198, 7}}, cleanLevel: 230, dirtyLevel: 430},
		{Region: Region{Name: "au-south", CleanMean: 0.4, DirtyMean: 835}, zeros: true,
			spans: []span{{56, 126}}, cleanLevel: 60, dirtyLevel: 330},
	}
	alwaysDirty = profile{Region: Region{Name: "de", DirtyMean: 752}, dirtyLevel: 390}
	further     = []string{"gb-north", "es-centre", "se-south", "br-northeast", "cl-norte", "in-south", "za-cape",
		"jp-kyushu", "ke-rift", "pt-coast", "pl-east", "nz-south", "ma-atlas"}
)

// Twin generates the three twins and "de".
func Twin(seed uint64) Traces {
	t, err := Generate(Config{Seed: seed})
	if err != nil {
		panic(err) // the defaults are valid: a test generates them
	}
	return t
}

// Generate makes the traces of c.
func Generate(c Config) (Traces, error) {
	if c.Sites == 0 {
		c.Sites = len(twins)
	}
	if c.Sites < 1 || c.Sites > MaxSite {
		return Traces{}, fmt.Errorf("synthetic: %d sites, want 1 to %d", c.Sites, MaxSite)
	}
	if c.Start.IsZero() {
		c.Start = Start
	}
	profiles := slices.Clone(twins[:min(c.Sites, len(twins))])
	for i := len(profiles); i < c.Sites; i++ {
		name := further[i-len(twins)]
		profiles = append(profiles, invent(name, random(c.Seed, name, "shape")))
	}
	profiles = append(profiles, alwaysDirty)

	times := make([]time.Time, Points)
	for i := range times {
		times[i] = c.Start.Add(time.Duration(i) * Step)
	}
	var out Traces
	var names []string
	var marginal, average [][]*float64
	for _, p := range profiles {
		for _, s := range p.spans {
			p.Windows = append(p.Windows, Window{time.Duration(s.from) * Step, time.Duration(s.n) * Step})
		}
		if len(p.spans) > 0 {
			out.Sites = append(out.Sites, p.Region)
		} else {
			out.Baselines = append(out.Baselines, p.Region)
		}
		names = append(names, p.Name)
		marginal = append(marginal, pointers(p.marginal(random(c.Seed, p.Name, "marginal"))))
		average = append(average, pointers(p.average(random(c.Seed, p.Name, "average"))))
	}
	name := fmt.Sprintf("synthetic-%d", c.Seed)
	var err error
	if out.Marginal, err = replay.NewTrace(name, signals.Marginal, signals.GramsPerKWh, times, names, marginal); err != nil {
		return Traces{}, err
	}
	if out.Average, err = replay.NewTrace(name+"-average", signals.Average, signals.GramsPerKWh, times, names, average); err != nil {
		return Traces{}, err
	}
	return out, nil
}

// random gives each region and use its own stream, so that one never moves
// another.
func random(seed uint64, name, use string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(use + "/" + name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// invent draws a further region: one to three windows over a quarter to three
// fifths of the trace, of at least half an hour and as far apart.
func invent(name string, r *rand.Rand) profile {
	const shortest = 6
	windows := 1 + r.IntN(3)
	open := Points/4 + r.IntN(Points*3/5-Points/4)
	lengths := divide(r, open, windows, shortest)
	gaps := divide(r, Points-open, windows+1, shortest)
	dirty := 400 + float64(r.IntN(450))
	p := profile{
		Region:     Region{Name: name, CleanMean: 15 + float64(r.IntN(60)), DirtyMean: dirty},
		cleanLevel: 0.35 * dirty, dirtyLevel: 0.65 * dirty,
	}
	at := 0
	for i, n := range lengths {
		at += gaps[i]
		p.spans = append(p.spans, span{at, n})
		at += n
	}
	return p
}

// divide cuts n into parts of at least least.
func divide(r *rand.Rand, n, parts, least int) []int {
	out := make([]int, parts)
	weights := make([]float64, parts)
	var sum float64
	for i := range weights {
		weights[i] = 0.3 + r.Float64()
		sum += weights[i]
	}
	left, free := n, n-parts*least
	for i := range out {
		out[i] = least + int(float64(free)*weights[i]/sum)
		left -= out[i]
	}
	out[parts-1] += left
	return out
}

func pointers(values []float64) []*float64 {
	out := make([]*float64, len(values))
	for i := range values {
		out[i] = &values[i]
	}
	return out
}
