package codec

import (
	"math"
)

// Agreement is the cosine of the merged delta D and a site's residual u over
// those coefficients of compressed tensors that the delta has and the site's
// own update of that round has not. own is nil when the site sent nothing. ok
// is false when there is no such coefficient, when either side is zero there,
// or when bytes cannot be read.
func Agreement(d *Domain, delta, own *Payload, u []float32) (cos float64, ok bool) {
	if !delta.d.Equal(d) || own != nil && !own.d.Equal(d) || len(u) != d.n {
		return 0, false
	}
	var dot, dd, uu float64
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	g := groups.Get().(*group)
	defer groups.Put(g)
	half := len(s.raw) / 2
	fromDelta := window{r: delta.r, size: delta.size, buf: s.raw[:half]}
	var fromOwn window
	if own != nil {
		fromOwn = window{r: own.r, size: own.size, buf: s.raw[half:]}
	}
	sent := make([]bool, BlockSize)
	x := make([]float32, BlockSize)
	for _, b := range d.blocks {
		if !b.Compressed {
			continue
		}
		x := x[:b.Len()]
		if own != nil && own.f.keep == 1 {
			continue // the site sent all there is
		}
		clear(sent)
		if own != nil {
			err := own.eachGroup(b, &fromOwn, g, func(lo, n int) {
				for _, i := range g.idx {
					sent[lo+int(i)] = true
				}
			})
			if err != nil {
				return 0, false
			}
		}
		clear(x)
		if delta.addBlock(x, b, 1, &fromDelta, s, g) != nil {
			return 0, false
		}
		// Zeros of the delta count on neither side.
		for i, v := range x {
			if v == 0 || sent[i] {
				continue
			}
			r := float64(u[b.Lo+i])
			dot += float64(float64(v) * r)
			dd += float64(float64(v) * float64(v))
			uu += float64(r * r)
		}
	}
	cos = dot / (math.Sqrt(dd) * math.Sqrt(uu))
	if math.IsNaN(cos) || math.IsInf(cos, 0) {
		return 0, false
	}
	return max(-1, min(1, cos)), true
}
