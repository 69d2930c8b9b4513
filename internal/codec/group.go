package codec

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"sync"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
)

// MaxMagnitude bounds every value of a payload's parameters: 2^96, exact in
// bf16 and far enough below the largest float32 that sums stay finite.
const MaxMagnitude = 1 << 96

const (
	codeBits  = 4
	codeEmpty = 15
	maxRice   = 11
)

// format is what an encoding does to groups.
type format struct {
	values algorithm.Values
	keep   int
}

func formatOf(e algorithm.Encoding) format { return format{e.Values, e.KeepOneIn} }

// fixed says that compressed tensors are plain arrays without groups.
func (f format) fixed() bool { return f.keep == 1 && f.values != algorithm.TwoBit }

// width of a value outside 2bit groups, in bytes; small tensors use bf16 under
// 2bit.
func (f format) width() int {
	if f.values == algorithm.FP32 {
		return 4
	}
	return 2
}

// kept is how many of n coefficients are sent.
func (f format) kept(n int) int { return max(1, (2*n+f.keep)/(2*f.keep)) }

// maxBytes of a group of n as the encoder writes it.
func (f format) maxBytes(n int) int64 {
	k := f.kept(n)
	bits := codeBits
	if f.keep > 1 {
		// The encoder takes the cheapest parameter, and the gaps sum to at
		// most n-k.
		least := math.MaxInt
		for b := range maxRice + 1 {
			least = min(least, k*(1+b)+(n-k)>>b)
		}
		bits += least
	}
	if f.values == algorithm.TwoBit {
		return int64(bits+32+2*k+7) / 8
	}
	return int64(bits+7)/8 + int64(k*f.width())
}

// hostileBytes bounds what the decoder reads of a group of n, whoever wrote it:
// the unary parts sum to at most n-k bits.
func (f format) hostileBytes(n int) int {
	k := f.kept(n)
	return (codeBits+32+k*(1+maxRice)+n+2*k)/8 + 1 + k*f.width()
}

// group is one group's kept coefficients, with the memory that its coding needs.
type group struct {
	idx []uint16  // ascending
	val []float32 // as the receiver has them

	indices  [GroupSize]uint16
	values   [GroupSize]float32
	codes    [GroupSize / 8]uint16
	selector kernel.Selector
}

var groups = sync.Pool{New: func() any { return new(group) }}

// everyIndex is 0, 1, 2, ...: what is kept when all is.
var everyIndex = func() (all [GroupSize]uint16) {
	for i := range all {
		all[i] = uint16(i)
	}
	return all
}()

func clamp(v float32) float32 { return max(-MaxMagnitude, min(MaxMagnitude, v)) }

// encode appends the group x, which is finite, to out, and leaves in g what the
// receiver will have.
func (g *group) encode(out []byte, x []float32, f format) []byte {
	k := f.kept(len(x))
	if f.keep == 1 {
		g.idx = everyIndex[:len(x)]
	} else {
		g.idx = g.selector.TopK(x, k)
	}
	g.val = g.values[:k]
	for j, i := range g.idx {
		g.val[j] = x[i]
	}
	largest := kernel.Largest(g.val)
	if largest > math.Float32bits(MaxMagnitude) {
		for j, v := range g.val {
			g.val[j] = clamp(v)
		}
	}
	if largest == 0 {
		g.idx, g.val = nil, nil
		return append(out, codeEmpty)
	}
	w := bitWriter{out: out}
	b := uint(0)
	if f.keep > 1 {
		b = g.cheapestRice()
	}
	w.put(uint32(b), codeBits)
	var low, high float32
	if f.values == algorithm.TwoBit {
		low, high = levels(g.val)
		w.put(uint32(kernel.BF16(low))|uint32(kernel.BF16(high))<<16, 32)
	}
	if f.keep > 1 {
		w.indices(g.idx, b)
	}
	switch f.values {
	case algorithm.TwoBit:
		codes := g.codes[:(k+7)/8]
		kernel.TwoLevels(codes, g.val, halfway(low, high), low, high)
		for i, c := range codes {
			w.put(uint32(c), uint(2*min(8, k-8*i)))
		}
		w.flush()
	case algorithm.FP32:
		w.flush()
		for _, v := range g.val {
			w.out = binary.LittleEndian.AppendUint32(w.out, math.Float32bits(v))
		}
	default:
		w.flush()
		for j, v := range g.val {
			h := kernel.BF16(v)
			g.val[j] = kernel.FromBF16(h)
			w.out = binary.LittleEndian.AppendUint16(w.out, h)
		}
	}
	return w.out
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
func (g *group) saves(b uint) bool {
	saved, next := uint32(0), uint32(0)
	for _, i := range g.idx {
		gap := uint32(i) - next
		next = uint32(i) + 1
		saved += (gap>>(b&31) + 1) >> 1
	}
	return int(saved) > len(g.idx)
}

// Faults of a group's bytes.
var (
	errShort     = errors.New("the bytes end inside a group")
	errCode      = errors.New("unknown group code")
	errIndex     = errors.New("a coefficient index is outside its group")
	errFill      = errors.New("bits that fill the last byte are not zero")
	errLevels    = errors.New("levels are not in order")
	errMagnitude = errors.New("a value is NaN, infinite or beyond 2^96")
)

// decode reads a group of n coefficients from the start of in into g and says
// how many bytes it took. It never trusts in.
func (g *group) decode(in []byte, n int, f format) (int, error) {
	r := bitReader{in: in}
	b := uint(r.take(codeBits))
	if b == codeEmpty && !r.out {
		g.idx, g.val = nil, nil
		used, clean := r.align()
		if !clean {
			return 0, errFill
		}
		return used, nil
	}
	if b > maxRice || f.keep == 1 && b != 0 {
		return 0, errCode
	}
	k := f.kept(n)
	g.val = g.values[:k]
	var low, high float32
	if f.values == algorithm.TwoBit {
		low = kernel.FromBF16(uint16(r.take(16)))
		high = kernel.FromBF16(uint16(r.take(16)))
		if !inRange(low) || !inRange(high) {
			return 0, errMagnitude
		}
		if math.Signbit(float64(low)) || low > high {
			return 0, errLevels
		}
	}
	g.idx = everyIndex[:n]
	if f.keep > 1 {
		g.idx = g.indices[:k]
		next, slack := uint32(0), uint32(n-k)
		for j := range g.idx {
			gap := r.rice(b, slack)
			if r.out {
				return 0, errShort
			}
			if gap > slack {
				return 0, errIndex
			}
			slack -= gap
			next += gap
			g.idx[j] = uint16(next)
			next++
		}
	}
	if f.values == algorithm.TwoBit {
		level := [4]float32{low, -low, high, -high}
		for j := range g.val {
			g.val[j] = level[r.take(2)]
		}
	}
	used, clean := r.align()
	if r.out {
		return 0, errShort
	}
	if !clean {
		return 0, errFill
	}
	if f.values == algorithm.TwoBit {
		return used, nil
	}
	need := k * f.width()
	if len(in)-used < need {
		return 0, errShort
	}
	if !unpack(g.val, in[used:used+need], f, MaxMagnitude) {
		return 0, errMagnitude
	}
	return used + need, nil
}

func inRange(v float32) bool { return v >= -MaxMagnitude && v <= MaxMagnitude }
