package codec

import (
	"math"

	"girassol.dev/internal/algorithm"
)

// MaxMagnitude bounds every value of a payload's parameters: 2^96, exact in
// bf16 and far enough below the largest float32 that sums stay finite.
const MaxMagnitude = 1 << 96

const (
	codeBits  = 4
	codeEmpty = 15
	maxRice   = 11
)

// leastStep of quantised values: the smallest normal bf16.
const leastStep = 0x1p-126

// format is what an encoding does to groups.
type format struct {
	values algorithm.Values
	keep   int
	group  int
}

func formatOf(e algorithm.Encoding) format { return format{e.Values, e.KeepOneIn, e.Group()} }

// fixed says that compressed tensors are plain arrays without groups.
func (f format) fixed() bool { return f.keep == 1 && !f.values.Quantised() }

// width of a plain value in bytes; small tensors use bf16 beside quantised ones.
func (f format) width() int {
	if f.values == algorithm.FP32 {
		return 4
	}
	return 2
}

// kept is how many of n coefficients are sent.
func (f format) kept(n int) int { return max(1, (2*n+f.keep)/(2*f.keep)) }

// sharedBits is the size of what a group's values have in common.
func (f format) sharedBits() uint {
	switch f.values {
	case algorithm.TwoBit:
		return 32
	case algorithm.EightBit, algorithm.FourBit, algorithm.OneBit:
		return 16
	}
	return 0
}

// inlineBits is the size of a value inside a group's string of bits.
func (f format) inlineBits() int {
	switch f.values {
	case algorithm.TwoBit:
		return 2
	case algorithm.OneBit:
		return 1
	}
	return 0
}

// behindBytes is the size of k values behind a group's string of bits.
func (f format) behindBytes(k int) int {
	switch f.values {
	case algorithm.TwoBit, algorithm.OneBit:
		return 0
	case algorithm.FourBit:
		return (k + 1) / 2
	case algorithm.EightBit:
		return k
	}
	return k * f.width()
}

// most is the largest multiple of its step that a quantised value can be.
func (f format) most() float32 {
	if f.values == algorithm.FourBit {
		return 7
	}
	return 127
}

// maxBytes of a group of n as the encoder writes it.
func (f format) maxBytes(n int) int64 {
	k := f.kept(n)
	bits := codeBits + int(f.sharedBits()) + k*f.inlineBits()
	if f.keep > 1 {
		// The encoder takes the cheapest parameter, and the gaps sum to at
		// most n-k.
		least := math.MaxInt
		for b := range maxRice + 1 {
			least = min(least, k*(1+b)+(n-k)>>b)
		}
		bits += least
	}
	return int64(bits+7)/8 + int64(f.behindBytes(k))
}

// hostileBytes bounds what the decoder reads of a group of n, whoever wrote it:
// the unary parts sum to at most n-k bits.
func (f format) hostileBytes(n int) int {
	k := f.kept(n)
	return (codeBits+32+k*(1+maxRice)+n+2*k)/8 + 1 + 4*k
}
