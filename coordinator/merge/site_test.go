package merge

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// failer is what testing.T and rapid.T have in common here.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

func spec(name string, shape ...int64) tensor.Spec {
	return tensor.Spec{Name: name, DType: tensor.F32, Shape: shape, Role: tensor.Parameter}
}

func newLayout(t failer, specs ...tensor.Spec) *tensor.Layout {
	t.Helper()
	l, err := tensor.NewLayout(specs)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mixedLayout(t failer) *tensor.Layout {
	return newLayout(t,
		spec("bias", 129), spec("empty", 0, 4), spec("scalar"), spec("small", 8, 8),
		spec("w1", 97, 61), spec("w2", 64, 80),
		tensor.Spec{Name: "x.running_mean", DType: tensor.F32, Shape: []int64{7}, Role: tensor.Buffer},
		tensor.Spec{Name: "x.running_var", DType: tensor.F16, Shape: []int64{7}, Role: tensor.Buffer},
		tensor.Spec{Name: "y.count", DType: tensor.I64, Role: tensor.Integer},
		tensor.Spec{Name: "z.mask", DType: tensor.Bool, Shape: []int64{3}, Role: tensor.Integer},
	)
}

func random(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 11))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Exp(r.NormFloat64()))
	}
	return x
}

func randomAux(l *tensor.Layout, seed uint64) codec.Aux {
	r := rand.New(rand.NewPCG(seed, 12))
	a := codec.Aux{Buffers: make([]float32, l.Buffers()), Integers: make([]byte, l.IntegerBytes())}
	for i := range a.Buffers {
		a.Buffers[i] = float32(r.ExpFloat64())
	}
	for i := range a.Integers {
		a.Integers[i] = byte(r.Uint32())
	}
	return a
}

func parameters(strategy string, up, down algorithm.Encoding) algorithm.Parameters {
	p, err := algorithm.Defaults(strategy)
	if err != nil {
		panic(err)
	}
	p.Uplink, p.Downlink = up, down
	return p
}

func enc(t algorithm.Transform, keep int, v algorithm.Values) algorithm.Encoding {
	return algorithm.Encoding{Transform: t, KeepOneIn: keep, Values: v}
}

func configure(l *tensor.Layout, p algorithm.Parameters) Config {
	d := codec.NewDomain(l, p.Uplink.Transform)
	return Config{Params: p, Uplink: d, Downlink: d}
}

func encode(t failer, d *codec.Domain, e algorithm.Encoding, x []float32, aux codec.Aux) *codec.Payload {
	t.Helper()
	var b bytes.Buffer
	if _, err := codec.Encode(&b, d, e, x, aux); err != nil {
		t.Fatal(err)
	}
	return parse(t, d, e, b.Bytes())
}

func parse(t failer, d *codec.Domain, e algorithm.Encoding, b []byte) *codec.Payload {
	t.Helper()
	p, err := codec.Parse(d, e, bytes.NewReader(b), int64(len(b)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// randomUpdates of n members with different weights.
func randomUpdates(t failer, cfg Config, n int, seed uint64) []Update {
	t.Helper()
	var out []Update
	for i := range n {
		s := seed*1000 + uint64(i)
		out = append(out, Update{
			Member: fmt.Sprintf("site-%02d/node", i), Weight: 100 + 37*float64(i),
			Payload: encode(t, cfg.Uplink, cfg.Params.Uplink, random(s, cfg.Uplink.Len()), randomAux(cfg.Uplink.Layout(), s)),
		})
	}
	return out
}

func randomState(l *tensor.Layout, seed uint64) *tensor.State {
	s := tensor.NewState(l)
	copy(s.Theta, random(seed+1, len(s.Theta)))
	copy(s.Momentum, random(seed+2, len(s.Momentum)))
	aux := randomAux(l, seed+3)
	copy(s.Buffers, aux.Buffers)
	copy(s.Integers, aux.Integers)
	return s
}

func clone(s *tensor.State) *tensor.State {
	c := tensor.NewState(s.Layout)
	c.CopyFrom(s)
	return c
}

func merge(t failer, s *tensor.State, r []float32, cfg Config, updates []Update) (Result, []byte) {
	t.Helper()
	var b bytes.Buffer
	res, err := Merge(s, r, cfg, updates, &b)
	if err != nil {
		t.Fatal(err)
	}
	if res.Bytes != int64(b.Len()) {
		t.Fatalf("says %d bytes, wrote %d", res.Bytes, b.Len())
	}
	if res.Digest != s.Digest() {
		t.Fatal("the digest is not the state's")
	}
	return res, b.Bytes()
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// site is a member in small: it trains from its start towards its own target.
type site struct {
	member   string
	weight   float64
	target   []float32
	pull     float32
	u        *replica.Residual
	lastNorm float64
}

func (s *site) train(start []float32) []float32 {
	out := make([]float32, len(start))
	for i := range out {
		out[i] = start[i] + float32(s.pull*(s.target[i]-start[i]))
	}
	return out
}

// round trains from theta with the residual at rho and returns the update.
func (s *site) round(t failer, theta []float32, rho float64, e algorithm.Encoding, aux codec.Aux) Update {
	t.Helper()
	start := make([]float32, len(theta))
	s.u.Start(start, theta, rho)
	norm, err := s.u.Absorb(start, s.train(start))
	if err != nil {
		t.Fatal(err)
	}
	s.lastNorm = norm
	p := encode(t, s.u.Domain(), e, s.u.Vector(), aux)
	return Update{Member: s.member, Weight: s.weight, Payload: p}
}

func newSites(n int, d *codec.Domain) []*site {
	var out []*site
	for i := range n {
		out = append(out, &site{
			member: fmt.Sprintf("site-%02d/node", i), weight: float64(50 * (i + 1)), pull: 0.1 + 0.07*float32(i),
			target: random(uint64(900+i), d.Layout().Parameters()), u: replica.NewResidual(d),
		})
	}
	return out
}

func freeSites(sites []*site) {
	for _, s := range sites {
		s.u.Close()
	}
}
