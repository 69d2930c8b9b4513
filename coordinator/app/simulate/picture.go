package simulate

import "time"

// bins of a picture, at most.
const bins = 720

// picture is the run as a drawing needs it: what the sites did and had spent at
// regular instants.
type picture struct {
	start  time.Time
	width  time.Duration
	frames []frame
	last   [][activities]float64
}

// frame is what was at and since the frame before.
type frame struct {
	at      time.Time
	seconds [][activities]float64 // by site
	// kgMarginal and kgAverage so far; nil while unknown.
	kgMarginal, kgAverage *float64
	kWh, work             float64
}

func newPicture(c Config) *picture {
	width := (c.End.Sub(c.Start) / bins).Round(time.Second)
	return &picture{start: c.Start, width: max(width, time.Second), last: make([][activities]float64, len(c.Sites))}
}

// take adds a frame; the sites are booked up to now.
func (p *picture) take(r *run) {
	f := frame{at: r.now, work: r.committed, seconds: make([][activities]float64, len(r.sites))}
	total := r.total()
	f.kWh, f.kgMarginal, f.kgAverage = total.KWh(), kilograms(total.MarginalGrams), kilograms(total.AverageGrams)
	for i, s := range r.sites {
		for a := range s.seconds {
			f.seconds[i][a] = s.seconds[a] - p.last[i][a]
		}
		p.last[i] = s.seconds
	}
	p.frames = append(p.frames, f)
}
