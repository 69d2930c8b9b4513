package kernel

import "math"

// BF16 rounds to bfloat16, to nearest and ties to even. A NaN stays a quiet NaN;
// what rounds past the largest bfloat16 becomes an infinity.
func BF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > exponent {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 widens a bfloat16; exact.
func FromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// PackBF16 writes x as little-endian bfloat16, rounded as BF16 does; dst needs
// 2*len(x) bytes.
func PackBF16(dst []byte, x []float32) {
	sameLength("PackBF16", len(dst), 2*len(x))
	n := packBF16Fast(dst, x)
	dst, x = dst[2*n:], x[n:]
	for len(x) >= 4 && len(dst) >= 8 {
		d, v := (*[8]byte)(dst), (*[4]float32)(x)
		a, b, c, e := BF16(v[0]), BF16(v[1]), BF16(v[2]), BF16(v[3])
		d[0], d[1], d[2], d[3] = byte(a), byte(a>>8), byte(b), byte(b>>8)
		d[4], d[5], d[6], d[7] = byte(c), byte(c>>8), byte(e), byte(e>>8)
		dst, x = dst[8:], x[4:]
	}
	for i, v := range x {
		b := BF16(v)
		dst[2*i], dst[2*i+1] = byte(b), byte(b>>8)
	}
}

// UnpackBF16 reads little-endian bfloat16 values; src has 2*len(dst) bytes.
func UnpackBF16(dst []float32, src []byte) {
	sameLength("UnpackBF16", 2*len(dst), len(src))
	n := unpackBF16Fast(dst, src)
	dst, src = dst[n:], src[2*n:]
	for len(dst) >= 4 && len(src) >= 8 {
		d, s := (*[4]float32)(dst), (*[8]byte)(src)
		d[0] = FromBF16(uint16(s[0]) | uint16(s[1])<<8)
		d[1] = FromBF16(uint16(s[2]) | uint16(s[3])<<8)
		d[2] = FromBF16(uint16(s[4]) | uint16(s[5])<<8)
		d[3] = FromBF16(uint16(s[6]) | uint16(s[7])<<8)
		dst, src = dst[4:], src[8:]
	}
	for i := range dst {
		dst[i] = FromBF16(uint16(src[2*i]) | uint16(src[2*i+1])<<8)
	}
}
