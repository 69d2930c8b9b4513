package codec

import (
	"bytes"
	"io"
	"math"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

// The loops take several values at a time; each place in and behind them counts,
// with either sign.
func TestEveryPlainValueIsJudged(t *testing.T) {
	const limit = MaxMagnitude
	beyond := math.Nextafter32(limit, math.MaxFloat32)
	for n := range 40 {
		for at := range n {
			for _, tc := range []struct {
				v    float32
				want bool
			}{{0, true}, {limit, true}, {-limit, true}, {beyond, false}, {-beyond, false},
				{float32(math.Inf(1)), false}, {float32(math.Inf(-1)), false}, {float32(math.NaN()), false}} {
				x := make([]float32, n)
				x[at] = tc.v
				raw := make([]byte, 4*n)
				for i, v := range x {
					bits := math.Float32bits(v)
					raw[4*i], raw[4*i+1], raw[4*i+2], raw[4*i+3] = byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)
				}
				got := make([]float32, n)
				f := format{algorithm.FP32, 1, MaxGroupSize}
				if within(nil, n, raw, f, limit) != tc.want || unpack(got, raw, f, limit) != tc.want {
					t.Errorf("%g at %d of %d: want %v of both", tc.v, at, n, tc.want)
				}
				for i, v := range x {
					if math.Float32bits(got[i]) != math.Float32bits(v) {
						t.Errorf("element %d of %d is %g, want %g", i, n, got[i], v)
					}
				}
			}
		}
	}
}

// BenchmarkDensePayload walks 16 Mi fp32 values: checking an upload, and adding
// it to the mean, against a copy of as many bytes.
func BenchmarkDensePayload(b *testing.B) {
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{4096, 4096}, Role: tensor.Parameter}})
	if err != nil {
		b.Fatal(err)
	}
	e := algorithm.Encoding{Transform: algorithm.Identity, KeepOneIn: 1, Values: algorithm.FP32}
	d := NewDomain(l, e.Transform)
	x := make([]float32, d.Len())
	for i := range x {
		x[i] = float32(i%1000) - 500
	}
	var buf bytes.Buffer
	if _, err := Encode(&buf, d, e, x, Aux{}); err != nil {
		b.Fatal(err)
	}
	r := bytes.NewReader(buf.Bytes())
	p, err := Parse(d, e, r, r.Size(), nil)
	if err != nil {
		b.Fatal(err)
	}
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(r.Size())
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	y := make([]float32, len(x))
	run("copy", func() error { copy(y, x); return nil })
	run("encode", func() error { _, err := Encode(io.Discard, d, e, x, Aux{}); return err })
	run("parse", func() error { _, err := Parse(d, e, r, r.Size(), nil); return err })
	dst := make([]float32, BlockSize)
	run("add", func() error {
		for _, block := range d.Blocks() {
			if err := p.AddRange(dst[:block.Len()], block.Lo, block.Hi, 0.5); err != nil {
				return err
			}
		}
		return nil
	})
}
