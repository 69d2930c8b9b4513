package codec

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

func newLayout(t testing.TB, specs ...tensor.Spec) *tensor.Layout {
	t.Helper()
	l, err := tensor.NewLayout(specs)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func param(name string, shape ...int64) tensor.Spec {
	return tensor.Spec{Name: name, DType: tensor.F32, Shape: shape, Role: tensor.Parameter}
}

// mixedLayout has every kind of tensor: compressed with an odd size, more than
// a block, small, 0-d, empty, buffers and integers.
func mixedLayout(t testing.TB) *tensor.Layout {
	return newLayout(t, append(smallSpecs(), param("e.large", 2, BlockSize/2+77))...)
}

// smallLayout is mixedLayout without the tensor of more than a block.
func smallLayout(t testing.TB) *tensor.Layout { return newLayout(t, smallSpecs()...) }

func smallSpecs() []tensor.Spec {
	return []tensor.Spec{
		param("a.empty", 0, 7),
		param("b.scalar"),
		param("c.prime", 53, 61),
		param("d.bias", 5000),
		param("f.small", 8, 8),
		param("g.exact", 64, 64),
		{Name: "h.running_mean", DType: tensor.F32, Shape: []int64{33}, Role: tensor.Buffer},
		{Name: "i.running_var", DType: tensor.F16, Shape: []int64{33}, Role: tensor.Buffer},
		{Name: "j.counter", DType: tensor.I64, Shape: nil, Role: tensor.Integer},
		{Name: "k.mask", DType: tensor.Bool, Shape: []int64{5}, Role: tensor.Integer},
	}
}

// heavy draws from a heavy-tailed distribution, as pseudo-gradients are.
func heavy(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 7))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(1e-3 * r.NormFloat64() * math.Exp(1.2*r.NormFloat64()))
	}
	return x
}

func auxFor(l *tensor.Layout, seed uint64) Aux {
	r := rand.New(rand.NewPCG(seed, 8))
	a := Aux{Buffers: make([]float32, l.Buffers()), Integers: make([]byte, l.IntegerBytes())}
	for i := range a.Buffers {
		a.Buffers[i] = float32(r.ExpFloat64())
	}
	for i := range a.Integers {
		a.Integers[i] = byte(r.Uint32())
	}
	return a
}

func TestBlocksTileDomainAndParameters(t *testing.T) {
	for _, transform := range []algorithm.Transform{algorithm.Identity, algorithm.DCT64} {
		l := mixedLayout(t)
		d := NewDomain(l, transform)
		at, param := 0, 0
		for _, b := range d.Blocks() {
			if b.Lo != at || b.ParamLo != param || b.Hi <= b.Lo || b.Len() > BlockSize {
				t.Fatalf("%s: block %+v after %d, %d", transform, b, at, param)
			}
			at, param = b.Hi, b.ParamHi
		}
		if at != d.Len() || param != l.Parameters() {
			t.Errorf("%s: blocks end at %d, %d; want %d, %d", transform, at, param, d.Len(), l.Parameters())
		}
	}
}

func TestOnlyLargeMatricesAreCompressed(t *testing.T) {
	d := NewDomain(mixedLayout(t), algorithm.DCT64)
	var got []string
	for _, b := range d.Blocks() {
		name := d.Layout().Tensors()[b.Tensor].Name
		if b.Compressed && !slices.Contains(got, name) {
			got = append(got, name)
		}
	}
	if want := []string{"c.prime", "e.large", "g.exact"}; !slices.Equal(got, want) {
		t.Errorf("compressed %v, want %v", got, want)
	}
	// 53*61 = 3233 elements take 51 blocks of 64.
	if n := d.Len() - d.Layout().Parameters(); n != 3264-3233+(64-2*(BlockSize/2+77)%64) {
		t.Errorf("%d elements of padding", n)
	}
}

func TestForwardAndInverse(t *testing.T) {
	l := mixedLayout(t)
	x := heavy(1, l.Parameters())
	for _, transform := range []algorithm.Transform{algorithm.Identity, algorithm.DCT64} {
		d := NewDomain(l, transform)
		y, back := make([]float32, d.Len()), make([]float32, len(x))
		d.Forward(y, x)
		d.Inverse(back, y)
		if transform == algorithm.Identity && !slices.Equal(back, x) {
			t.Error("identity changed something")
		}
		norm := math.Sqrt(kernel.SumSquares(x))
		for i := range x {
			if math.Abs(float64(back[i]-x[i])) > 1e-6*norm {
				t.Fatalf("%s: element %d is %g, want %g", transform, i, back[i], x[i])
			}
		}
		if got := math.Sqrt(kernel.SumSquares(y)); math.Abs(got-norm) > 1e-5*norm {
			t.Errorf("%s: norm %g in the domain, %g before", transform, got, norm)
		}
	}
}

func TestDomainsAreEqualByMeaning(t *testing.T) {
	l := mixedLayout(t)
	d := NewDomain(l, algorithm.DCT64)
	if !d.Equal(NewDomain(mixedLayout(t), algorithm.DCT64)) {
		t.Error("same layout, same transform: not equal")
	}
	if d.Equal(NewDomain(l, algorithm.Identity)) || d.Equal(NewDomain(newLayout(t, param("x", 3)), algorithm.DCT64)) {
		t.Error("another transform or layout is equal")
	}
}
