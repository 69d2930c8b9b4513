package tensor

import (
	"math"
	"slices"
	"testing"
)

// nearestHalf rounds by searching the two halves around f, the plain way.
func nearestHalf(f float32) uint16 {
	sign := uint16(math.Float32bits(f) >> 16 & 0x8000)
	a := math.Abs(float64(f))
	lo := uint16(0) // largest half <= a
	for bit := uint16(1 << 14); bit > 0; bit >>= 1 {
		if h := lo | bit; h <= 0x7bff && float64(fromF16(h)) <= a {
			lo = h
		}
	}
	below, above := float64(fromF16(lo)), 65536.0
	if lo < 0x7bff {
		above = float64(fromF16(lo + 1))
	}
	switch d := (a - below) - (above - a); {
	case d > 0, d == 0 && lo&1 == 1:
		return sign | (lo + 1)
	}
	return sign | lo
}

func TestHalvesSurviveWideningAndNarrowing(t *testing.T) {
	for h := range 1 << 16 {
		f := fromF16(uint16(h))
		if math.IsNaN(float64(f)) {
			if back := toF16(f); back&0x7c00 != 0x7c00 || back&0x3ff == 0 {
				t.Fatalf("NaN %#x became %#x", h, back)
			}
			continue
		}
		if back := toF16(f); back != uint16(h) {
			t.Fatalf("%#x is %g and came back as %#x", h, f, back)
		}
	}
	for h, want := range map[uint16]float32{
		0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0400: 0x1p-14, 0x0001: 0x1p-24, 0x03ff: 1023 * 0x1p-24, 0x3555: 0.333251953125,
	} {
		if got := fromF16(h); got != want {
			t.Errorf("%#x is %g, want %g", h, got, want)
		}
	}
}

func TestFloatsRoundToTheNearestHalf(t *testing.T) {
	try := func(f float32) {
		if got, want := toF16(f), nearestHalf(f); got != want {
			t.Fatalf("%g (%#x) became %#x, want %#x", f, math.Float32bits(f), got, want)
		}
	}
	// Every half, the middle between it and the next, and both neighbours of the
	// middle.
	for h := range uint16(0x7bff) {
		mid := (fromF16(h) + fromF16(h+1)) / 2
		for _, f := range []float32{mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, math.MaxFloat32)} {
			try(f)
			try(-f)
		}
	}
	for f, want := range map[float32]uint16{
		65519: 0x7bff, 65520: 0x7c00, 1e9: 0x7c00, -1e9: 0xfc00, 0x1p-25: 0, math.Nextafter32(0x1p-25, 1): 1,
		float32(math.Inf(-1)): 0xfc00, math.SmallestNonzeroFloat32: 0,
	} {
		if got := toF16(f); got != want {
			t.Errorf("%g became %#x, want %#x", f, got, want)
		}
	}
}

func TestEachTypeRoundTripsWhatItHolds(t *testing.T) {
	x := []float32{0, 1, -2.5, 0.0078125, 96, -0.375}
	for _, d := range []DType{F64, F32, F16, BF16} {
		b := make([]byte, len(x)*d.Size())
		encodeAs(d, b, x)
		got := make([]float32, len(x))
		decodeAs(d, got, b)
		if !slices.Equal(got, x) {
			t.Errorf("%s: %v became %v", d, x, got)
		}
	}
}

func TestValuesBeyondATypeAreKnown(t *testing.T) {
	for _, c := range []struct {
		d    DType
		v    float32
		fits bool
	}{
		{F16, 65504, true}, {F16, 65519, true}, {F16, 65520, false}, {F16, -1e30, false},
		{BF16, 3e38, true}, {BF16, math.MaxFloat32, false}, {F32, math.MaxFloat32, true}, {F64, math.MaxFloat32, true},
	} {
		if got := fits(c.d, c.v); got != c.fits {
			t.Errorf("%g fits %s: %t", c.v, c.d, got)
		}
	}
}
