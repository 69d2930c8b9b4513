package codec

import (
	"math"
	"math/bits"
	"sync"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
)

// group is one group's kept coefficients, with the memory that its coding needs.
type group struct {
	idx []uint16  // ascending
	val []float32 // as the receiver has them

	indices  [MaxGroupSize]uint16
	values   [MaxGroupSize]float32
	codes    [MaxGroupSize / 4]byte
	selector kernel.Selector
}

var groups = sync.Pool{New: func() any { return new(group) }}

// everyIndex is 0, 1, 2, ...: what is kept when all is.
var everyIndex = func() (all [MaxGroupSize]uint16) {
	for i := range all {
		all[i] = uint16(i)
	}
	return all
}()

func clamp(v float32) float32 { return max(-MaxMagnitude, min(MaxMagnitude, v)) }

// empty appends a group of zeros.
func (g *group) empty(out []byte) []byte {
	g.idx, g.val = nil, nil
	return append(out, codeEmpty)
}

// encode appends the group x, which is finite, to out, and leaves in g what the
// receiver will have.
func (g *group) encode(out []byte, x []float32, f format) []byte {
	k := f.kept(len(x))
	if f.keep == 1 {
		g.idx = everyIndex[:len(x)]
		g.val = g.values[:copy(g.values[:], x)]
	} else {
		g.idx = g.selector.TopK(x, k)
		g.val = g.values[:k]
		for j, i := range g.idx {
			g.val[j] = x[i]
		}
	}
	largest := math.Float32frombits(kernel.Largest(g.val))
	if largest > MaxMagnitude {
		for j, v := range g.val {
			g.val[j] = clamp(v)
		}
		largest = MaxMagnitude
	}
	if largest == 0 {
		return g.empty(out)
	}
	var step, low, high float32
	switch f.values {
	case algorithm.EightBit, algorithm.FourBit:
		// To nearest: the largest is then the last multiple, also when what was
		// decoded is encoded again. Subnormal bf16 would be too coarse for that.
		if step = kernel.FromBF16(kernel.BF16(largest / f.most())); step < leastStep {
			return g.empty(out)
		}
	case algorithm.TwoBit:
		low, high = levels(g.val)
	case algorithm.OneBit:
		if step = mean(g.val); step == 0 {
			return g.empty(out)
		}
	}
	w := newBitWriter(out, int(f.maxBytes(len(x))))
	b := uint(0)
	if f.keep > 1 {
		b = g.cheapestRice()
	}
	w.put(uint64(b), codeBits)
	if f.values == algorithm.TwoBit {
		w.put(uint64(kernel.BF16(low))|uint64(kernel.BF16(high))<<16, 32)
	} else {
		w.put(uint64(kernel.BF16(step)), f.sharedBits())
	}
	if f.keep > 1 {
		w.indices(g.idx, b)
	}
	switch f.values {
	case algorithm.TwoBit:
		codes := g.codes[:(k+3)/4]
		kernel.TwoLevels(codes, g.val, halfway(low, high), low, high)
		w.bytes(codes, 2*k)
	case algorithm.OneBit:
		codes := g.codes[:(k+7)/8]
		kernel.OneLevel(codes, g.val, step)
		w.bytes(codes, k)
	}
	out = w.flush()
	at := len(out)
	out = out[:at+f.behindBytes(k)]
	switch behind := out[at:]; f.values {
	case algorithm.EightBit:
		kernel.Multiples8(behind, g.val, step)
	case algorithm.FourBit:
		kernel.Multiples4(behind, g.val, step)
	case algorithm.FP32:
		kernel.PackFP32(behind, g.val)
	case algorithm.BF16:
		kernel.PackBF16(behind, g.val)
		kernel.UnpackBF16(g.val, behind)
	}
	return out
}

// cheapestRice is the parameter that costs the fewest bits, the smallest of
// equals. From b to b+1 the gaps save the sum of their ceil((gap>>b)/2) bits, which
// falls with b, and each index costs one more: the cost has one valley.
func (g *group) cheapestRice() uint {
	k := len(g.idx)
	// The search begins where it ends for gaps of one size.
	mean := (int(g.idx[k-1]) + 1 - k) / k
	b := uint(min(bits.Len(uint(mean)), maxRice))
	for b > 0 && !g.saves(b-1) {
		b--
	}
	for b < maxRice && g.saves(b) {
		b++
	}
	return b
}

// saves says whether the parameter b+1 is cheaper than b.
func (g *group) saves(b uint) bool { return kernel.HalvedGaps(g.idx, b) > len(g.idx) }
