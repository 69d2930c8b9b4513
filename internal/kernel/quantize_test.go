package kernel

import (
	"math"
	"slices"
	"testing"
)

// each length around the blocks of the assembly.
var lengths = []int{0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 257}

func TestMultiplesAreTheNearestAndTiesGoToEven(t *testing.T) {
	for _, n := range lengths {
		v := make([]float32, n)
		want, codes := make([]float32, n), make([]byte, n)
		samples := []float32{0, 0.4, -0.5, 0.5, 1.5, -1.5, 2.5, 126.5, 127.4, -127.5, 300, -1e30, 1}
		multiples := []float32{0, 0, 0, 0, 2, -2, 2, 126, 127, -127, 127, -127, 1}
		for i := range v {
			v[i] = samples[i%len(samples)] * 0.25
			want[i] = multiples[i%len(samples)] * 0.25
		}
		Multiples8(codes, v, 0.25)
		back := make([]float32, n)
		FromMultiples8(back, codes, 0.25)
		for i := range v {
			if v[i] != want[i] || back[i] != v[i] || math.Signbit(float64(v[i])) != math.Signbit(float64(want[i])) {
				t.Fatalf("%d of %d: %g, decoded %g, want %g", i, n, v[i], back[i], want[i])
			}
		}
	}
}

func TestHalfBytesHoldTwoMultiplesEach(t *testing.T) {
	for _, n := range lengths {
		v, codes := make([]float32, n), make([]byte, (n+1)/2)
		for i := range v {
			v[i] = float32(i%19-9) / 2
		}
		Multiples4(codes, v, 0.5)
		back := make([]float32, n)
		FromMultiples4(back, codes, 0.5)
		for i := range v {
			want := float32(max(-7, min(7, i%19-9))) / 2
			if v[i] != want || back[i] != want {
				t.Fatalf("%d of %d: %g, decoded %g, want %g", i, n, v[i], back[i], want)
			}
			if got, want := codes[i/2]>>(4*(i%2))&15, byte(max(-7, min(7, i%19-9)))&15; got != want {
				t.Fatalf("%d of %d is written as %x, want %x", i, n, got, want)
			}
		}
		if n%2 == 1 && codes[n/2]>>4 != 0 {
			t.Fatalf("the half that is left over of %d is %x", n, codes[n/2]>>4)
		}
	}
}

func TestLevelsComeBackOfTheirCodes(t *testing.T) {
	for _, n := range lengths {
		v := normal(9, n)
		two, one := slices.Clone(v), slices.Clone(v)
		codes := make([]byte, (n+3)/4)
		TwoLevels(codes, two, 0.5, 0.25, 1)
		back := make([]float32, n)
		FromTwoLevels(back, codes, 0.25, 1)
		if !slices.Equal(back, two) {
			t.Fatalf("two levels of %d: %v, want %v", n, back, two)
		}
		codes = codes[:(n+7)/8]
		OneLevel(codes, one, 0.75)
		FromOneLevel(back, codes, 0.75)
		if !slices.Equal(back, one) {
			t.Fatalf("one level of %d: %v, want %v", n, back, one)
		}
		for i := range v {
			sign := float32(1)
			if v[i] < 0 {
				sign = -1
			}
			if one[i] != sign*0.75 {
				t.Fatalf("%g became %g", v[i], one[i])
			}
		}
	}
}

func TestHalvedGapsOfEveryLength(t *testing.T) {
	for _, n := range lengths {
		idx := make([]uint16, n)
		at := 3
		for i := range idx {
			idx[i] = uint16(at)
			at += 1 + i%29
		}
		for b := range uint(12) {
			want, next := 0, 0
			for _, i := range idx {
				want += ((int(i)-next)>>b + 1) / 2
				next = int(i) + 1
			}
			if got := HalvedGaps(idx, b); got != want {
				t.Fatalf("%d indices, b %d: %d, want %d", n, b, got, want)
			}
		}
	}
	if got := HalvedGaps([]uint16{GroupSize - 1}, 0); got != GroupSize/2 {
		t.Errorf("one gap of %d: %d", GroupSize-1, got)
	}
}
