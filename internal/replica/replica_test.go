package replica

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

func layout(t testing.TB) *tensor.Layout {
	t.Helper()
	p := func(name string, shape ...int64) tensor.Spec {
		return tensor.Spec{Name: name, DType: tensor.F32, Shape: shape, Role: tensor.Parameter}
	}
	l, err := tensor.NewLayout([]tensor.Spec{
		p("bias", 129), p("scalar"), p("w1", 97, 61), p("w2", 64, 64), p("none", 0, 3),
		{Name: "x.running_mean", DType: tensor.F32, Shape: []int64{7}, Role: tensor.Buffer},
		{Name: "y.count", DType: tensor.I64, Role: tensor.Integer},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func normal(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 5))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func encodings() []algorithm.Encoding {
	return []algorithm.Encoding{
		{Transform: algorithm.DCT64, KeepOneIn: 16, Values: algorithm.TwoBit},
		{Transform: algorithm.DCT64, KeepOneIn: 4, Values: algorithm.BF16},
		{Transform: algorithm.DCT64, KeepOneIn: 16, Values: algorithm.EightBit},
		{Transform: algorithm.Identity, KeepOneIn: 8, Values: algorithm.FourBit, GroupSize: 512},
		{Transform: algorithm.Identity, KeepOneIn: 16, Values: algorithm.OneBit, GroupSize: 256},
		{Transform: algorithm.DCT64, KeepOneIn: 1, Values: algorithm.FourBit},
		{Transform: algorithm.Identity, KeepOneIn: 1, Values: algorithm.BF16},
		{Transform: algorithm.DCT64, KeepOneIn: 1, Values: algorithm.FP32},
		{Transform: algorithm.Identity, KeepOneIn: 1, Values: algorithm.FP32},
	}
}

// send encodes the residual and parses what arrives.
func send(t testing.TB, r *Residual, e algorithm.Encoding) *codec.Payload {
	t.Helper()
	l := r.Domain().Layout()
	var b bytes.Buffer
	aux := codec.Aux{Buffers: normal(9, l.Buffers()), Integers: bytes.Repeat([]byte{3}, l.IntegerBytes())}
	if _, err := r.Encode(&b, e, aux); err != nil {
		t.Fatal(err)
	}
	p, err := codec.Parse(r.Domain(), e, bytes.NewReader(b.Bytes()), int64(b.Len()), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWorkIsSentOrKept(t *testing.T) {
	l := layout(t)
	for _, e := range encodings() {
		d := codec.NewDomain(l, e.Transform)
		r := NewResidual(d)
		defer r.Close()
		done, sentSum := make([]float64, d.Len()), make([]float64, d.Len())
		start := make([]float32, l.Parameters())
		for round := range uint64(6) {
			theta := normal(round, l.Parameters())
			r.Start(start, theta, 0.7)
			trained := normal(100+round, l.Parameters())
			diff, g := make([]float32, len(start)), make([]float32, d.Len())
			for i := range diff {
				diff[i] = start[i] - trained[i]
			}
			d.Forward(g, diff)
			before := slices.Clone(r.Vector())
			norm, err := r.Absorb(start, trained)
			if err != nil {
				t.Fatal(err)
			}
			if want := math.Sqrt(kernel.SumSquares(g)); math.Abs(norm-want) > 1e-9*want {
				t.Errorf("norm of the round's work %g, want %g", norm, want)
			}
			full := slices.Clone(r.Vector())
			for i := range full {
				if full[i] != before[i]+g[i] {
					t.Fatalf("u[%d] is %g after %g + %g", i, full[i], before[i], g[i])
				}
				done[i] += float64(g[i])
			}
			p := send(t, r, e)
			if !sameBits(r.Vector(), full) {
				t.Fatal("encoding changed the residual before it was settled")
			}
			if err := r.Settle(p); err != nil {
				t.Fatal(err)
			}
			sent := make([]float32, d.Len())
			if err := p.Decode(sent); err != nil {
				t.Fatal(err)
			}
			for i, u := range r.Vector() {
				sentSum[i] += float64(sent[i])
				if sent[i] == 0 && math.Float32bits(u) != math.Float32bits(full[i]) {
					t.Fatalf("unsent entry %d changed from %g to %g", i, full[i], u)
				}
				if off := math.Abs(float64(u) + float64(sent[i]) - float64(full[i])); off > ulp(full[i], sent[i]) {
					t.Fatalf("entry %d: %g + %g is not %g", i, u, sent[i], full[i])
				}
			}
			if e.Lossless() && r.Norm() != 0 {
				t.Fatalf("%+v leaves %g", e, r.Norm())
			}
		}
		for i, u := range r.Vector() {
			if off := math.Abs(sentSum[i] + float64(u) - done[i]); off > 1e-5 {
				t.Fatalf("%+v: entry %d: sent %g and kept %g of %g", e, i, sentSum[i], u, done[i])
			}
		}
	}
}

// ulp is one unit in the last place of the larger.
func ulp(a, b float32) float64 {
	m := max(math.Abs(float64(a)), math.Abs(float64(b)))
	return m * 0x1p-23
}

// Not settling is all that a refusal takes: the next update carries the same
// work again.
func TestRefusedWorkGoesUpAgain(t *testing.T) {
	l := layout(t)
	for _, e := range encodings() {
		d := codec.NewDomain(l, e.Transform)
		r := NewResidual(d)
		defer r.Close()
		if _, err := r.Absorb(normal(1, l.Parameters()), normal(2, l.Parameters())); err != nil {
			t.Fatal(err)
		}
		first, second := make([]float32, d.Len()), make([]float32, d.Len())
		if err := errors.Join(send(t, r, e).Decode(first), send(t, r, e).Decode(second)); err != nil {
			t.Fatal(err)
		}
		if !sameBits(first, second) {
			t.Errorf("%+v: the second try carries other work", e)
		}
	}
}

func TestStartMovesByTheResidual(t *testing.T) {
	l := layout(t)
	for _, tr := range []algorithm.Transform{algorithm.Identity, algorithm.DCT64} {
		d := codec.NewDomain(l, tr)
		r := NewResidual(d)
		defer r.Close()
		theta := normal(3, l.Parameters())
		theta[0] = float32(math.Copysign(0, -1))
		start := make([]float32, len(theta))
		r.Start(start, theta, 1)
		if !slices.Equal(start, theta) {
			t.Error("a zero residual moved the start")
		}
		copy(r.Vector(), normal(4, d.Len()))
		r.Start(start, theta, 0)
		if !sameBits(start, theta) {
			t.Error("rho 0 is not theta bit for bit")
		}
		r.Start(start, theta, 0.25)
		back := make([]float32, len(theta))
		d.Inverse(back, r.Vector())
		for i := range start {
			if want := theta[i] - 0.25*back[i]; start[i] != want {
				t.Fatalf("start[%d] is %g, want %g", i, start[i], want)
			}
		}
	}
}

// Work counted from theta instead of from start would count the residual in
// play twice: the sum of what is sent and kept must be theta - trained.
func TestResidualInPlayDoesNotCountTwice(t *testing.T) {
	l := layout(t)
	d := codec.NewDomain(l, algorithm.DCT64)
	r := NewResidual(d)
	defer r.Close()
	theta, trained := normal(1, l.Parameters()), normal(2, l.Parameters())
	start, back := make([]float32, len(theta)), make([]float32, len(theta))
	// What fits into parameters: no energy in the padding.
	d.Forward(r.Vector(), normal(3, l.Parameters()))
	r.Start(start, theta, 1)
	if _, err := r.Absorb(start, trained); err != nil {
		t.Fatal(err)
	}
	d.Inverse(back, r.Vector())
	for i := range back {
		if want := theta[i] - trained[i]; math.Abs(float64(back[i]-want)) > 1e-4 {
			t.Fatalf("element %d: residual stands for %g, want theta - trained = %g", i, back[i], want)
		}
	}
}

func TestDivergedTrainingIsRefused(t *testing.T) {
	l := layout(t)
	d := codec.NewDomain(l, algorithm.DCT64)
	r := NewResidual(d)
	defer r.Close()
	copy(r.Vector(), normal(4, d.Len()))
	before := slices.Clone(r.Vector())
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e30} {
		trained := normal(2, l.Parameters())
		i, _ := l.Lookup("w2")
		trained[l.Offset(i)+5] = float32(bad)
		_, err := r.Absorb(normal(1, l.Parameters()), trained)
		var fault *codec.Error
		if !errors.As(err, &fault) || fault.Tensor != "w2" {
			t.Errorf("%g: %v", bad, err)
		}
		if !sameBits(r.Vector(), before) {
			t.Fatal("the residual changed")
		}
	}
}

func TestStepIsTheOuterStep(t *testing.T) {
	l := layout(t)
	for _, e := range encodings() {
		d := codec.NewDomain(l, e.Transform)
		r := NewResidual(d)
		defer r.Close()
		copy(r.Vector(), normal(4, d.Len()))
		delta := send(t, r, e)
		s := tensor.NewState(l)
		defer s.Close()
		copy(s.Theta, normal(5, len(s.Theta)))
		copy(s.Momentum, normal(6, len(s.Momentum)))
		theta, m := slices.Clone(s.Theta), slices.Clone(s.Momentum)
		p := algorithm.Parameters{OuterLearningRate: 0.7, OuterMomentum: 0.9}
		if err := Step(s, d, p, delta); err != nil {
			t.Fatal(err)
		}
		D, g := make([]float32, d.Len()), make([]float32, len(theta))
		if err := delta.Decode(D); err != nil {
			t.Fatal(err)
		}
		d.Inverse(g, D)
		kernel.Nesterov(theta, m, g, 0.7, 0.9)
		if !sameBits(s.Theta, theta) || !sameBits(s.Momentum, m) {
			t.Fatalf("%+v: not the outer step", e)
		}
		if !sameBits(s.Buffers, normal(9, l.Buffers())) || s.Integers[0] != 3 {
			t.Error("buffers or integers are not the delta's")
		}
	}
}

func TestForeignDeltasAreRefused(t *testing.T) {
	l := layout(t)
	e := encodings()[0]
	d, other := codec.NewDomain(l, algorithm.DCT64), codec.NewDomain(l, algorithm.Identity)
	r := NewResidual(d)
	defer r.Close()
	delta := send(t, r, e)
	s := tensor.NewState(l)
	defer s.Close()
	before := s.Digest()
	if err := Step(s, other, algorithm.Parameters{}, delta); err == nil {
		t.Error("a delta of another domain was applied")
	}
	q := NewResidual(other)
	defer q.Close()
	if err := q.Settle(delta); err == nil {
		t.Error("a payload of another domain was settled")
	}
	small, err := tensor.NewLayout([]tensor.Spec{{Name: "a", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Parameter}})
	if err != nil {
		t.Fatal(err)
	}
	foreign := tensor.NewState(small)
	defer foreign.Close()
	if err := Step(foreign, d, algorithm.Parameters{}, delta); err == nil {
		t.Error("a state of another model was stepped")
	}
	if s.Digest() != before {
		t.Error("the state changed")
	}
}
