package merge

import (
	"fmt"
	"math"
	"slices"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
)

// NewRobustMean is NewMean with bounds on what single members can do to the
// parameters:
//
//	c_i = min(1, clipFactor*median_j |x_j| / |x_i|)
//	Q   = sum_i share_i*c_i*x_i                                   clipping alone
//	Q   = mean of the c_i*x_i without the k least and greatest     k = trimFraction*n, by coordinate
//
// Clipping keeps the weights. The trimmed mean knows none, whatever k comes to: a
// member could claim any. Of an even number of norms the median is the smaller one
// in the middle; if it is 0 nothing is clipped. The order of updates does not
// matter, bit for bit. Buffers and integers are those of the plain mean.
//
// It reads every update once more to clip; trimming holds one block of each
// update at a time.
func NewRobustMean(d *codec.Domain, updates []Update, r algorithm.Robust) (*Mean, error) {
	m, err := NewMean(d, updates)
	if err != nil || r == (algorithm.Robust{}) {
		return m, err
	}
	n := len(m.updates)
	b := &bounds{scales: make([]float32, n)}
	for i := range b.scales {
		b.scales[i] = 1
	}
	if r.ClipFactor > 0 {
		if err := m.clip(d, r.ClipFactor, b); err != nil {
			return nil, err
		}
	}
	m.bounds = b
	if b.trimmed = r.Trimmed(n); b.trimmed > 0 {
		b.column = make([]float32, n)
		b.rows = make([][]float32, n)
		for i := range b.rows {
			b.rows[i] = make([]float32, min(d.Len(), codec.BlockSize))
		}
		return m, nil
	}
	for i, share := range m.shares {
		if r.TrimFraction > 0 {
			share = 1 / float64(n)
		}
		b.scales[i] = float32(share * float64(b.scales[i]))
	}
	return m, nil
}

// bounds is what NewRobustMean adds to a Mean.
type bounds struct {
	// scales of the updates: with their shares in it where nothing is trimmed.
	scales  []float32
	clipped []string
	// trimmed values at each end of a coordinate; 0: rows and column are not used.
	trimmed int
	rows    [][]float32
	column  []float32
}

// clip fills in the scales of the updates that are too large.
func (m *Mean) clip(d *codec.Domain, factor float64, to *bounds) error {
	norms := make([]float64, len(m.updates))
	x := make([]float32, min(d.Len(), codec.BlockSize))
	for i, u := range m.updates {
		for _, b := range d.Blocks() {
			part := x[:b.Len()]
			clear(part)
			if err := u.Payload.AddRange(part, b.Lo, b.Hi, 1); err != nil {
				return fmt.Errorf("merge: update of %q: %w", u.Member, err)
			}
			norms[i] += kernel.SumSquares(part)
		}
		norms[i] = math.Sqrt(norms[i])
	}
	sorted := slices.Sorted(slices.Values(norms))
	most := factor * sorted[(len(sorted)-1)/2]
	if most == 0 {
		return nil
	}
	for i, norm := range norms {
		if norm > most {
			to.scales[i] = float32(most / norm)
			to.clipped = append(to.clipped, m.updates[i].Member)
		}
	}
	return nil
}

// boundedBlock writes one block of the robust mean to q.
func (m *Mean) boundedBlock(b codec.Block, q []float32) error {
	if m.bounds.trimmed == 0 {
		return m.weightedBlock(b, q, m.bounds.scales)
	}
	t := m.bounds
	for i, u := range m.updates {
		row := t.rows[i][:b.Len()]
		clear(row)
		if err := u.Payload.AddRange(row, b.Lo, b.Hi, t.scales[i]); err != nil {
			return fmt.Errorf("update of %q: %w", u.Member, err)
		}
	}
	for j := range q {
		for i, row := range t.rows {
			t.column[i] = row[j]
		}
		q[j] = trimmedMean(t.column, t.trimmed)
	}
	return nil
}

func (m *Mean) weightedBlock(b codec.Block, q, scales []float32) error {
	clear(q)
	for i, u := range m.updates {
		if err := u.Payload.AddRange(q, b.Lo, b.Hi, scales[i]); err != nil {
			return fmt.Errorf("update of %q: %w", u.Member, err)
		}
	}
	return nil
}

// clippedMembers are those whose updates were scaled down, in member order.
func (m *Mean) clippedMembers() []string {
	if m.bounds == nil {
		return nil
	}
	return m.bounds.clipped
}

// trimmedMean sorts the values and takes the mean without k at each end.
func trimmedMean(values []float32, k int) float32 {
	// Few values: an insertion sort is the fastest.
	for i := 1; i < len(values); i++ {
		v, j := values[i], i
		for ; j > 0 && values[j-1] > v; j-- {
			values[j] = values[j-1]
		}
		values[j] = v
	}
	kept := values[k : len(values)-k]
	sum := 0.0
	for _, v := range kept {
		sum += float64(v)
	}
	// Rounding must not lead out of the values' range.
	return max(kept[0], min(kept[len(kept)-1], float32(sum/float64(len(kept)))))
}
