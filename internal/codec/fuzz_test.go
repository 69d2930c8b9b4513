package codec

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// fuzzParse checks what holds for any bytes: no panic, and what is accepted has
// bounded values, decodes twice the same, adds by blocks and encodes again.
func fuzzParse(f *testing.F, rows int64, encodings []algorithm.Encoding) {
	l := newLayout(f, param("bias", 20), param("w", rows, 64),
		tensor.Spec{Name: "x.running_var", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Buffer},
		tensor.Spec{Name: "y", DType: tensor.I64, Role: tensor.Integer})
	for i, e := range encodings {
		d := NewDomain(l, e.Transform)
		for _, x := range [][]float32{heavy(1, d.Len()), make([]float32, d.Len())} {
			b := encode(f, d, e, x, auxFor(l, 1))
			f.Add(uint8(i), b, uint16(0))
			f.Add(uint8(i), b[:len(b)-3], uint16(0))
			f.Add(uint8(i), b, uint16(77))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte, split uint16) {
		e := encodings[int(which)%len(encodings)]
		d := NewDomain(l, e.Transform)
		var sections []Section
		if split > 0 {
			at := int64(HeaderSize)
			for i, s := range l.Tensors() {
				n := maxTensorSize(d, i, s, formatOf(e))
				if s.Name == "w" {
					n = int64(split)
				}
				sections = append(sections, Section{s.Name, string(s.DType), s.Shape, at, n})
				at += n
			}
		}
		p, err := Parse(d, e, bytes.NewReader(b), int64(len(b)), sections)
		if err != nil {
			var fault *Error
			if !errors.As(err, &fault) {
				t.Fatalf("%v is not an *Error", err)
			}
			return
		}
		x, y := make([]float32, d.Len()), make([]float32, d.Len())
		if err := p.Decode(x); err != nil {
			t.Fatal(err)
		}
		for _, b := range d.Blocks() {
			if err := p.AddRange(y[b.Lo:b.Hi], b.Lo, b.Hi, 1); err != nil {
				t.Fatal(err)
			}
		}
		if !sameBits(x, y) || kernel.Largest(x) > math.Float32bits(MaxMagnitude) {
			t.Fatal("decodes differently, or beyond the bound")
		}
		aux := Aux{make([]float32, l.Buffers()), make([]byte, l.IntegerBytes())}
		if err := errors.Join(p.Buffers(aux.Buffers), p.Integers(aux.Integers)); err != nil {
			t.Fatal(err)
		}
		if kernel.Finite(aux.Buffers) >= 0 {
			t.Fatal("a buffer is not finite")
		}
		if again := encode(t, d, e, x, aux); int64(len(again)) > MaxSize(d, e) {
			t.Fatal("encodes beyond MaxSize")
		}
		if cos, ok := Agreement(d, p, p, x); ok && e.KeepOneIn == 1 || cos < -1 || cos > 1 {
			t.Fatal("agreement out of range")
		}
	})
}

func FuzzParseSparse(f *testing.F) {
	fuzzParse(f, 70, []algorithm.Encoding{
		encoding(algorithm.DCT64, 16, algorithm.TwoBit),
		encoding(algorithm.DCT64, 8, algorithm.BF16),
		encoding(algorithm.Identity, 2, algorithm.FP32),
		encoding(algorithm.DCT64, 4096, algorithm.TwoBit),
		encoding(algorithm.DCT64, 16, algorithm.EightBit),
		encoding(algorithm.Identity, 8, algorithm.FourBit),
		{Transform: algorithm.DCT64, KeepOneIn: 16, Values: algorithm.OneBit, GroupSize: 512},
	})
}

func FuzzParseDense(f *testing.F) {
	fuzzParse(f, 17, []algorithm.Encoding{
		encoding(algorithm.Identity, 1, algorithm.FP32),
		encoding(algorithm.DCT64, 1, algorithm.BF16),
		encoding(algorithm.DCT64, 1, algorithm.TwoBit),
		encoding(algorithm.DCT64, 1, algorithm.EightBit),
		{Transform: algorithm.Identity, KeepOneIn: 1, Values: algorithm.FourBit, GroupSize: 256},
		encoding(algorithm.Identity, 1, algorithm.OneBit),
	})
}
