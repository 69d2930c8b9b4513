package tensor

import (
	"encoding/binary"
	"fmt"
	"math"

	"girassol.dev/internal/kernel"
)

// decodeAs converts little-endian values of type d to float32. F64 is rounded
// to nearest; what does not fit becomes an infinity.
func decodeAs(d DType, dst []float32, src []byte) {
	switch d {
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case F32:
		kernel.UnpackFP32(dst, src)
	case F16:
		for i := range dst {
			dst[i] = fromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BF16:
		kernel.UnpackBF16(dst, src)
	default:
		panic(fmt.Sprintf("tensor: %s is no float", d))
	}
}

// encodeAs converts float32 to little-endian values of type d, rounding to
// nearest, ties to even.
func encodeAs(d DType, dst []byte, src []float32) {
	switch d {
	case F64:
		for i, v := range src {
			binary.LittleEndian.PutUint64(dst[8*i:], math.Float64bits(float64(v)))
		}
	case F32:
		kernel.PackFP32(dst, src)
	case F16:
		for i, v := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], toF16(v))
		}
	case BF16:
		kernel.PackBF16(dst, src)
	default:
		panic(fmt.Sprintf("tensor: %s is no float", d))
	}
}

// fits says that v, finite, stays finite as d.
func fits(d DType, v float32) bool {
	switch d {
	case F16:
		return toF16(v)&0x7c00 != 0x7c00
	case BF16:
		return kernel.BF16(v)&0x7f80 != 0x7f80
	}
	return true
}

// fromF16 widens an IEEE 754 half; exact.
func fromF16(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, frac := uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case 0:
		v := float32(frac) * 0x1p-24
		return math.Float32frombits(sign | math.Float32bits(v))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// toF16 rounds to the nearest half, ties to even; beyond its range to infinity,
// NaN to a quiet NaN.
func toF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00
	case b >= 0x47800000: // 2^16 and more
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: a multiple of 2^-24
		// Adding 0.5 leaves exactly the bits of that multiple, rounded by the
		// addition itself.
		v := math.Float32frombits(b) + 0.5
		return sign | uint16(math.Float32bits(v)-math.Float32bits(0.5))
	}
	b += 0xfff + b>>13&1
	return sign | uint16(b>>13-112<<10)
}
