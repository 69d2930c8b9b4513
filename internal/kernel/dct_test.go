package kernel

import (
	"math"
	"slices"
	"testing"
)

// naiveDCT is the definition in float64.
func naiveDCT(x []float32) []float64 {
	out := make([]float64, len(x))
	n := float64(len(x))
	for k := range out {
		for i, v := range x {
			out[k] += float64(v) * math.Cos(math.Pi*(float64(i)+0.5)*float64(k)/n)
		}
		out[k] *= math.Sqrt(2 / n)
		if k == 0 {
			out[k] /= math.Sqrt2
		}
	}
	return out
}

func TestDCTMatchesItsDefinition(t *testing.T) {
	worst, worstBack := 0.0, 0.0
	for seed := range uint64(200) {
		x := normal(seed, 2*Block)
		got := make([]float32, len(x))
		DCT64(got, x)
		for b := 0; b < len(x); b += Block {
			scale := math.Sqrt(SumSquares(x[b : b+Block]))
			for k, want := range naiveDCT(x[b : b+Block]) {
				worst = max(worst, math.Abs(float64(got[b+k])-want)/scale)
			}
		}
		scale := math.Sqrt(SumSquares(x))
		IDCT64(got, got)
		for i := range x {
			worstBack = max(worstBack, math.Abs(float64(got[i]-x[i]))/scale)
		}
	}
	t.Logf("largest error relative to the block's norm: forward %.2g, round trip %.2g", worst, worstBack)
	if worst > 1e-5 || worstBack > 1e-5 {
		t.Errorf("errors %.3g and %.3g, want below 1e-5", worst, worstBack)
	}
}

func TestIDCTOfOneCoefficientIsItsCosine(t *testing.T) {
	for k := range Block {
		x := make([]float32, Block)
		x[k] = 1
		IDCT64(x, x)
		c := math.Sqrt(2.0 / 64)
		if k == 0 {
			c = math.Sqrt(1.0 / 64)
		}
		for i, v := range x {
			want := c * math.Cos(math.Pi*(float64(i)+0.5)*float64(k)/64)
			if math.Abs(float64(v)-want) > 1e-5 {
				t.Fatalf("k=%d i=%d: %g, want %g", k, i, v, want)
			}
		}
	}
}

func TestDCTInPlaceEqualsOutOfPlace(t *testing.T) {
	x := normal(9, 4*Block)
	want, back := make([]float32, len(x)), make([]float32, len(x))
	DCT64(want, x)
	IDCT64(back, want)
	DCT64(x, x)
	if !slices.Equal(x, want) {
		t.Error("DCT64 in place differs")
	}
	IDCT64(x, x)
	if !slices.Equal(x, back) {
		t.Error("IDCT64 in place differs")
	}
}

func TestDCTFactorsAreTheirFormula(t *testing.T) {
	for n, factors := range map[int][]float32{64: lee64[:], 32: lee32[:], 16: lee16[:], 8: lee8[:], 4: {lee40, lee41}, 2: {lee20}} {
		if len(factors) != n/2 {
			t.Fatalf("%d factors for %d", len(factors), n)
		}
		for i, got := range factors {
			want := 1 / (2 * math.Cos(math.Pi*(float64(i)+0.5)/float64(n)))
			if math.Abs(float64(got)-want) > want*0x1p-24 {
				t.Errorf("n=%d i=%d: %g, want %g", n, i, got, want)
			}
		}
	}
}
