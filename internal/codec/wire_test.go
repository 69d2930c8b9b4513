package codec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

// exact draws heavy-tailed numbers without a library function that could differ
// between architectures.
func exact(n int) []float32 {
	x := make([]float32, n)
	s := uint32(1)
	for i := range x {
		s = s*1664525 + 1013904223
		u := float32(int32(s)) * 0x1p-31
		cube := float32(u * u)
		x[i] = float32(cube * u)
	}
	return x
}

// The bytes of a payload are a contract between versions and architectures:
// replicas must agree in every bit. Change the version in the header when this
// test has to change.
func TestWireFormatIsFixed(t *testing.T) {
	l := newLayout(t, param("bias", 100), param("scalar"), param("w", 71, 67),
		tensor.Spec{Name: "x.running_var", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Buffer},
		tensor.Spec{Name: "y", DType: tensor.I64, Role: tensor.Integer})
	aux := Aux{Buffers: []float32{0.5, 1, 2}, Integers: []byte{1, 2, 3, 4, 5, 6, 7, 8}}
	for _, c := range []struct {
		e    algorithm.Encoding
		want string
	}{
		{encoding(algorithm.DCT64, 16, algorithm.TwoBit), "531 1d5dbba28b0b1e99"},
		{encoding(algorithm.DCT64, 8, algorithm.BF16), "1773 34a8e7136a97974a"},
		{encoding(algorithm.Identity, 2, algorithm.FP32), "10557 4427c0d60115a9cb"},
		{encoding(algorithm.DCT64, 1, algorithm.TwoBit), "1452 7da4ebdb2c13ba97"},
		{encoding(algorithm.DCT64, 16, algorithm.EightBit), "752 ac9b719d65d58e0f"},
		{encoding(algorithm.Identity, 4, algorithm.FourBit), "1332 1aaa75f6c74b7c07"},
		{encoding(algorithm.DCT64, 1, algorithm.EightBit), "5048 f90f184590e5da54"},
		{algorithm.Encoding{Transform: algorithm.DCT64, KeepOneIn: 8, Values: algorithm.OneBit, GroupSize: 256}, "697 fa42cde7509b626b"},
		{encoding(algorithm.Identity, 1, algorithm.FP32), "19472 5d37df8f9ba98d24"},
	} {
		d := NewDomain(l, c.e.Transform)
		x := make([]float32, d.Len())
		d.Forward(x, exact(l.Parameters()))
		b := encode(t, d, c.e, x, aux)
		sum := sha256.Sum256(b)
		if got := fmt.Sprintf("%d %s", len(b), hex.EncodeToString(sum[:8])); got != c.want {
			t.Errorf("%+v: %s, want %s", c.e, got, c.want)
		}
	}
}

func TestHeaderLayout(t *testing.T) {
	l := newLayout(t, param("w", 2))
	d := NewDomain(l, algorithm.DCT64)
	b := encode(t, d, encoding(algorithm.DCT64, 16, algorithm.TwoBit), []float32{1, -2}, Aux{})
	digest := l.Digest()
	want := "47534644" + "01" + "01" + "02" + "00" + "10000000" + hex.EncodeToString(digest[:8]) + "803f" + "00c0"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("payload is\n%s, want\n%s", got, want)
	}
}
