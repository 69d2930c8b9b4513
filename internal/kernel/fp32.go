package kernel

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// littleEndian says that floats in memory have the bytes that they have on the
// wire.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// PackFP32 writes x as little-endian float32; dst needs 4*len(x) bytes.
func PackFP32(dst []byte, x []float32) {
	sameLength("PackFP32", len(dst), 4*len(x))
	if littleEndian {
		copy(dst, bytesOf(x))
		return
	}
	for i, v := range x {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

// UnpackFP32 reads little-endian float32; src has 4*len(dst) bytes.
func UnpackFP32(dst []float32, src []byte) {
	sameLength("UnpackFP32", 4*len(dst), len(src))
	if littleEndian {
		copy(bytesOf(dst), src)
		return
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// Largest returns the bits of the largest |v| of x, 0 of none: bits order as the
// values do, with infinity above every number and NaN above that.
func Largest(x []float32) uint32 {
	if littleEndian {
		return LargestFP32(bytesOf(x))
	}
	m := uint32(0)
	for _, v := range x {
		m = max(m, math.Float32bits(v)&^(1<<31))
	}
	return m
}

// LargestFP32 is Largest of little-endian float32; what is behind the last whole
// one does not count.
func LargestFP32(src []byte) uint32 {
	n, m0 := largestFast(src)
	src = src[n:]
	m1, m2, m3 := uint32(0), uint32(0), uint32(0)
	// Four at a time: comparisons do not wait for each other.
	for ; len(src) >= 16; src = src[16:] {
		m0 = max(m0, binary.LittleEndian.Uint32(src)&^(1<<31))
		m1 = max(m1, binary.LittleEndian.Uint32(src[4:])&^(1<<31))
		m2 = max(m2, binary.LittleEndian.Uint32(src[8:])&^(1<<31))
		m3 = max(m3, binary.LittleEndian.Uint32(src[12:])&^(1<<31))
	}
	for ; len(src) >= 4; src = src[4:] {
		m0 = max(m0, binary.LittleEndian.Uint32(src)&^(1<<31))
	}
	return max(m0, m1, m2, m3)
}
