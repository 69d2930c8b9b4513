package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
)

// Faults of a group's bytes.
var (
	errShort     = errors.New("the bytes end inside a group")
	errCode      = errors.New("unknown group code")
	errIndex     = errors.New("a coefficient index is outside its group")
	errFill      = errors.New("bits that fill the last byte are not zero")
	errLevels    = errors.New("levels are not in order")
	errStep      = errors.New("a step or level is too small or not above zero")
	errMultiple  = errors.New("a value is no multiple of its step that there is")
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
	shared, err := sharedOf(r.take(f.sharedBits()), f)
	if err != nil {
		return 0, err
	}
	g.idx = everyIndex[:n]
	if f.keep > 1 {
		g.idx = g.indices[:k]
		if !r.indices(g.idx, b, uint32(n)) {
			if r.out {
				return 0, errShort
			}
			return 0, errIndex
		}
	}
	inline := f.inlineBits()
	codes := g.codes[:(inline*k+7)/8]
	r.bytes(codes, inline*k)
	used, clean := r.align()
	if r.out {
		return 0, errShort
	}
	if !clean {
		return 0, errFill
	}
	need := f.behindBytes(k)
	if len(in)-used < need {
		return 0, errShort
	}
	return used + need, g.dequantise(codes, in[used:used+need], shared, f)
}

// sharedOf reads what the values have in common: two levels, or a step or level
// in the first place.
func sharedOf(v uint32, f format) (s [2]float32, err error) {
	s = [2]float32{kernel.FromBF16(uint16(v)), kernel.FromBF16(uint16(v >> 16))}
	switch f.values {
	case algorithm.TwoBit:
		if !inRange(s[0]) || !inRange(s[1]) {
			return s, errMagnitude
		}
		if math.Signbit(float64(s[0])) || s[0] > s[1] {
			return s, errLevels
		}
	case algorithm.OneBit:
		if !inRange(s[0]) {
			return s, errMagnitude
		}
		if s[0] <= 0 {
			return s, errStep
		}
	case algorithm.EightBit, algorithm.FourBit:
		// Exact: 7 bits times 8.
		if !inRange(s[0] * f.most()) {
			return s, errMagnitude
		}
		if s[0] < leastStep {
			return s, errStep
		}
	}
	return s, nil
}

// dequantise sets g.val of inline codes, or of the bytes behind them.
func (g *group) dequantise(codes, behind []byte, shared [2]float32, f format) error {
	switch f.values {
	case algorithm.TwoBit:
		kernel.FromTwoLevels(g.val, codes, shared[0], shared[1])
	case algorithm.OneBit:
		kernel.FromOneLevel(g.val, codes, shared[0])
	case algorithm.EightBit:
		if bytes.IndexByte(behind, 0x80) >= 0 {
			return errMultiple
		}
		kernel.FromMultiples8(g.val, behind, shared[0])
	case algorithm.FourBit:
		if hasNibble8(behind) || len(g.val)%2 == 1 && behind[len(behind)-1] > 15 {
			return errMultiple
		}
		kernel.FromMultiples4(g.val, behind, shared[0])
	default:
		if !unpack(g.val, behind, f, MaxMagnitude) {
			return errMagnitude
		}
	}
	return nil
}

// hasNibble8 says whether a half of a byte is 8, which stands for -8.
func hasNibble8(b []byte) bool {
	// A half that is zero borrows into its high bit, which it does not have itself.
	const ones, highs = 0x1111_1111_1111_1111, 0x8888_8888_8888_8888
	for len(b) >= 8 {
		v := binary.LittleEndian.Uint64(b) ^ highs
		if (v-ones)&^v&highs != 0 {
			return true
		}
		b = b[8:]
	}
	for _, v := range b {
		if v&15 == 8 || v>>4 == 8 {
			return true
		}
	}
	return false
}

func inRange(v float32) bool { return v >= -MaxMagnitude && v <= MaxMagnitude }
