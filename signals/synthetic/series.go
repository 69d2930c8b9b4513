package synthetic

import (
	"math"
	"math/rand/v2"
)

// Bounds that keep a threshold of 100 away from both sides.
const (
	highestClean = 95
	lowestDirty  = 115
)

// ramp is the part of the dirty level at one, two and three points from a
// window.
var ramp = []float64{0.8, 0.9, 0.95}

// noise is correlated, of mean 0 and deviation of about 1, and bounded.
type noise struct {
	r    *rand.Rand
	last float64
}

func (n *noise) next() float64 {
	// Four uniforms have a bell's shape; no table or logarithm whose last bit
	// could differ between machines.
	u := n.r.Float64() + n.r.Float64() + n.r.Float64() + n.r.Float64() - 2
	n.last = 0.8*n.last + 0.6*1.7320508*u
	return n.last
}

// marginal makes the series described in the package comment.
func (p profile) marginal(r *rand.Rand) []float64 {
	values := make([]float64, Points)
	inside := p.inside()
	ns := &noise{r: r}
	phase := 2 * math.Pi * r.Float64()
	var clean, dirty, edge []int
	for i := range values {
		z := ns.next()
		d := p.distance(i)
		switch {
		case inside[i]:
			clean = append(clean, i)
			values[i] = p.cleanValue(d, z)
		case d >= 1 && d <= len(ramp):
			edge = append(edge, i)
			values[i] = math.Max(lowestDirty, p.DirtyMean*(ramp[d-1]+0.03*z))
		default:
			dirty = append(dirty, i)
			wave := math.Sin(phase + 2*math.Pi*float64(i)/144)
			values[i] = math.Max(lowestDirty, p.DirtyMean*(1+0.03*z+0.03*wave))
		}
	}
	if p.zeros {
		p.settleZeros(values, clean)
	} else {
		settle(values, clean, nil, p.CleanMean, 0.5, highestClean)
	}
	settle(values, dirty, edge, p.DirtyMean, lowestDirty, math.Inf(1))
	for i := range values {
		values[i] = math.Round(values[i]*100) / 100
	}
	return values
}

// cleanValue is at the level, higher at the edges of the window.
func (p profile) cleanValue(distance int, z float64) float64 {
	v := p.CleanMean * (1 + 0.15*z)
	if distance == -1 {
		v = (v + highestClean) / 2
	}
	return math.Min(highestClean, math.Max(0.5, v))
}

// settleZeros puts all of the level into the first point of the windows.
func (p profile) settleZeros(values []float64, clean []int) {
	for _, i := range clean {
		values[i] = 0
	}
	values[clean[0]] = math.Min(highestClean, p.CleanMean*float64(len(clean)))
}

// settle moves the points in move so that they and those in keep together have
// the mean, within bounds. Bounds bite at few points, so a few turns suffice.
func settle(values []float64, move, keep []int, mean, low, high float64) {
	if len(move) == 0 {
		return
	}
	for range 30 {
		var sum float64
		for _, i := range move {
			sum += values[i]
		}
		for _, i := range keep {
			sum += values[i]
		}
		by := (mean*float64(len(move)+len(keep)) - sum) / float64(len(move))
		for _, i := range move {
			values[i] = math.Min(high, math.Max(low, values[i]+by))
		}
	}
}

// average is slower than the marginal series: it follows the share of clean
// points within an hour on both sides.
func (p profile) average(r *rand.Rand) []float64 {
	values := make([]float64, Points)
	inside := p.inside()
	ns := &noise{r: r}
	phase := 2 * math.Pi * r.Float64()
	const reach = 12
	for i := range values {
		var clean, seen float64
		for j := max(0, i-reach); j <= min(Points-1, i+reach); j++ {
			seen++
			if inside[j] {
				clean++
			}
		}
		level := p.dirtyLevel + (p.cleanLevel-p.dirtyLevel)*clean/seen
		wave := math.Sin(phase + 2*math.Pi*float64(i)/288)
		values[i] = math.Round(level*(1+0.015*ns.next()+0.04*wave)*100) / 100
	}
	return values
}

// inside says which points lie in a window.
func (p profile) inside() []bool {
	in := make([]bool, Points)
	for _, s := range p.spans {
		for i := s.from; i < s.from+s.n; i++ {
			in[i] = true
		}
	}
	return in
}

// distance is the number of points from i to the nearest window, 1 for the
// point beside it; inside a window it is negative, -1 for its first and last
// point; 0 where there is no window.
func (p profile) distance(i int) int {
	best := 0
	for _, s := range p.spans {
		first, last := s.from, s.from+s.n-1
		switch {
		case i < first:
			best = nearer(best, first-i)
		case i > last:
			best = nearer(best, i-last)
		default:
			return -1 - min(i-first, last-i)
		}
	}
	return best
}

func nearer(best, d int) int {
	if best == 0 || d < best {
		return d
	}
	return best
}
