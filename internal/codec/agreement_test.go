package codec

import (
	"math"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
)

func TestAgreementIsTheCosineWhereOnlyTheDeltaIs(t *testing.T) {
	l := newLayout(t, param("a.bias", 100), param("b", 64, 200), param("c", 50, 61))
	aux := Aux{}
	for _, e := range []struct{ up, down algorithm.Encoding }{
		{encoding(algorithm.DCT64, 16, algorithm.TwoBit), encoding(algorithm.DCT64, 8, algorithm.TwoBit)},
		{encoding(algorithm.Identity, 64, algorithm.FP32), encoding(algorithm.Identity, 1, algorithm.BF16)},
		{encoding(algorithm.DCT64, 16, algorithm.BF16), encoding(algorithm.DCT64, 1, algorithm.TwoBit)},
	} {
		d := NewDomain(l, e.up.Transform)
		u, merged := heavy(1, d.Len()), heavy(2, d.Len())
		for i := range merged {
			merged[i] += u[i] / 2
		}
		own := parse(t, d, e.up, encode(t, d, e.up, u, aux))
		delta := parse(t, d, e.down, encode(t, d, e.down, merged, aux))
		S, D := make([]float32, d.Len()), make([]float32, d.Len())
		if err := own.Decode(S); err != nil {
			t.Fatal(err)
		}
		if err := delta.Decode(D); err != nil {
			t.Fatal(err)
		}
		var dot, dd, uu float64
		for _, b := range d.Blocks() {
			for i := b.Lo; i < b.Hi && b.Compressed; i++ {
				if D[i] != 0 && S[i] == 0 {
					dot += float64(D[i]) * float64(u[i])
					dd += float64(D[i]) * float64(D[i])
					uu += float64(u[i]) * float64(u[i])
				}
			}
		}
		want := dot / math.Sqrt(dd*uu)
		got, ok := Agreement(d, delta, own, u)
		if !ok || math.Abs(got-want) > 1e-9 || math.Abs(want) < 0.05 {
			t.Errorf("%+v: %g (%v), want %g", e.down, got, ok, want)
		}
	}
}

func TestAgreementIsUnsetWithoutOverlap(t *testing.T) {
	l := newLayout(t, param("bias", 100), param("w", 64, 64))
	sparse := encoding(algorithm.DCT64, 16, algorithm.TwoBit)
	dense := encoding(algorithm.DCT64, 1, algorithm.FP32)
	d := NewDomain(l, algorithm.DCT64)
	x := heavy(1, d.Len())
	same := parse(t, d, sparse, encode(t, d, sparse, x, Aux{}))
	full := parse(t, d, dense, encode(t, d, dense, x, Aux{}))
	zero := parse(t, d, sparse, encode(t, d, sparse, make([]float32, d.Len()), Aux{}))
	for name, c := range map[string]struct {
		delta, own *Payload
		u          []float32
	}{
		"one site alone":           {same, same, x},
		"the site sent all":        {full, full, x},
		"nothing went down":        {zero, same, x},
		"the residual is zero":     {full, same, make([]float32, d.Len())},
		"a vector of other length": {full, same, x[1:]},
	} {
		if cos, ok := Agreement(d, c.delta, c.own, c.u); ok || cos != 0 {
			t.Errorf("%s: %g, want none", name, cos)
		}
	}
	if cos, ok := Agreement(d, full, nil, x); !ok || math.Abs(cos-1) > 1e-6 {
		t.Errorf("a site that sent nothing agrees with its own residual by %g (%v), want 1", cos, ok)
	}
	y := slices.Clone(x)
	for i := range y {
		y[i] = -y[i]
	}
	if cos, ok := Agreement(d, full, zero, y); !ok || math.Abs(cos+1) > 1e-6 {
		t.Errorf("opposite residual: %g (%v), want -1", cos, ok)
	}
}
