package transformer

import (
	"fmt"
	"io"

	"gonum.org/v1/gonum/blas"

	"girassol.dev/internal/tensor"
)

// Model is a transformer with its weights, gradients and scratch memory. One
// goroutine at a time may use it; a step allocates nothing.
type Model struct {
	cfg    Config
	layout *tensor.Layout
	theta  []float32 // weights, in layout order
	grad   []float32
	p, g   params
	t      params // transposes of the weights; see refresh
	dt     []float32
	rope   rope
	acts   []activations
	final  norm
	embed  []float32 // [n, D] input of the first layer
	logits []float32 // [n, Vocabulary]
	tmp    scratch
}

// norm is what a layer norm leaves for its gradient.
type norm struct{ y, xhat, rstd []float32 }

// activations of one layer that its gradient needs; n tokens, width D, F = 4D.
type activations struct {
	ln1, ln2 norm
	qkv      []float32 // [n, 3D], queries and keys rotated
	probs    []float32 // [batch, heads, T, T]
	mixed    []float32 // [n, D] attention output before proj
	mid, out []float32 // [n, D] residual stream after attention, after the MLP
	relu, h  []float32 // [n, F]
}

type scratch struct {
	dx, dy  []float32 // [n, D]
	wide    []float32 // [n, F]: gradients of qkv and h
	headT   []float32 // [D/heads, T]
	dprobs  []float32 // [T, T]
	inputs  []byte
	targets []byte
}

// NewModel makes a model with weights drawn from InitSeed.
func NewModel(c Config) (*Model, error) {
	l, err := c.Layout()
	if err != nil {
		return nil, err
	}
	n, d, f := c.TokensPerStep(), c.Dim, 4*c.Dim
	hd := d / c.Heads
	vec := func(n int) []float32 { return make([]float32, n) }
	newNorm := func() norm { return norm{vec(n * d), vec(n * d), vec(n)} }
	m := &Model{
		cfg: c, layout: l,
		theta: vec(l.Parameters()), grad: vec(l.Parameters()), dt: vec(max(f, Vocabulary) * d),
		rope: newRope(c.Context, hd), final: newNorm(),
		embed: vec(n * d), logits: vec(n * Vocabulary),
		tmp: scratch{
			dx: vec(n * d), dy: vec(n * d), wide: vec(n * f),
			headT: vec(hd * c.Context), dprobs: vec(c.Context * c.Context),
			inputs: make([]byte, n), targets: make([]byte, n),
		},
	}
	m.p, m.g = c.view(l, m.theta), c.view(l, m.grad)
	m.t = c.view(l, vec(l.Parameters()))
	for range c.Layers {
		m.acts = append(m.acts, activations{
			ln1: newNorm(), ln2: newNorm(), qkv: vec(n * 3 * d),
			probs: vec(c.Batch * c.Heads * c.Context * c.Context), mixed: vec(n * d),
			mid: vec(n * d), out: vec(n * d), relu: vec(n * f), h: vec(n * f),
		})
	}
	c.initialise(m.p, c.InitSeed)
	m.refresh()
	return m, nil
}

// Weights is the flat vector of weights in layout order, to read; LoadWeights
// changes them.
func (m *Model) Weights() []float32 { return m.theta }

// LoadWeights replaces the weights, in layout order.
func (m *Model) LoadWeights(w []float32) error {
	if len(w) != len(m.theta) {
		return fmt.Errorf("transformer: %d weights, the model has %d", len(w), len(m.theta))
	}
	copy(m.theta, w)
	m.refresh()
	return nil
}

// Load reads the weights from a safetensors file, by name.
func (m *Model) Load(path string) error {
	f, err := tensor.OpenFile(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := tensor.ReadInto(f, m.layout, m.theta, nil, nil); err != nil {
		return fmt.Errorf("transformer: %s: %w", path, err)
	}
	m.refresh()
	return nil
}

// Save writes the weights to a safetensors file, all or nothing.
func (m *Model) Save(path string) error {
	st := tensor.NewState(m.layout)
	defer st.Close()
	copy(st.Theta, m.theta)
	return tensor.WriteFileAtomic(path, func(w io.Writer) error { return tensor.SaveState(w, st, false) })
}

// refresh renews the transposes of the weights, which let every product of a
// step run along long rows.
func (m *Model) refresh() {
	d, f := m.cfg.Dim, 4*m.cfg.Dim
	transpose(m.t.embed, m.p.embed, Vocabulary, d, d)
	for i, b := range m.p.blocks {
		t := m.t.blocks[i]
		transpose(t.qkv, b.qkv, 3*d, d, d)
		transpose(t.proj, b.proj, d, d, d)
		transpose(t.up, b.up, f, d, d)
		transpose(t.down, b.down, d, f, f)
	}
}

// forward fills the activations and logits for the inputs in tmp.
func (m *Model) forward() {
	n, d, f := m.cfg.TokensPerStep(), m.cfg.Dim, 4*m.cfg.Dim
	for i, tok := range m.tmp.inputs {
		copy(m.embed[i*d:i*d+d], m.p.embed[int(tok)*d:int(tok)*d+d])
	}
	x := m.embed
	for i := range m.acts {
		a, b, t := &m.acts[i], &m.p.blocks[i], &m.t.blocks[i]
		layerNorm(a.ln1.y, a.ln1.xhat, a.ln1.rstd, x, b.ln1w, b.ln1b, d)
		gemm(blas.NoTrans, blas.NoTrans, 1, dense(a.ln1.y, n, d), dense(t.qkv, d, 3*d), 0, dense(a.qkv, n, 3*d))
		m.attend(a)
		copy(a.mid, x)
		gemm(blas.NoTrans, blas.NoTrans, 1, dense(a.mixed, n, d), dense(t.proj, d, d), 1, dense(a.mid, n, d))
		layerNorm(a.ln2.y, a.ln2.xhat, a.ln2.rstd, a.mid, b.ln2w, b.ln2b, d)
		gemm(blas.NoTrans, blas.NoTrans, 1, dense(a.ln2.y, n, d), dense(t.up, d, f), 0, dense(a.relu, n, f))
		squareReLU(a.h, a.relu)
		copy(a.out, a.mid)
		gemm(blas.NoTrans, blas.NoTrans, 1, dense(a.h, n, f), dense(t.down, f, d), 1, dense(a.out, n, d))
		x = a.out
	}
	layerNorm(m.final.y, m.final.xhat, m.final.rstd, x, m.p.lnfw, m.p.lnfb, d)
	gemm(blas.NoTrans, blas.NoTrans, 1, dense(m.final.y, n, d), dense(m.t.embed, d, Vocabulary), 0, dense(m.logits, n, Vocabulary))
}

// loss is the sum over all positions of the step, in nats; with gradient set,
// logits become the gradient of the mean.
func (m *Model) loss(gradient bool) float64 {
	n := m.cfg.TokensPerStep()
	sum := 0.0
	for i, target := range m.tmp.targets {
		sum += crossEntropy(m.logits[i*Vocabulary:(i+1)*Vocabulary], target, gradient, 1/float32(n))
	}
	return sum
}

// backward fills grad from the gradient in logits.
func (m *Model) backward() {
	n, d, f := m.cfg.TokensPerStep(), m.cfg.Dim, 4*m.cfg.Dim
	clear(m.grad)
	dx, dy, wide := m.tmp.dx, m.tmp.dy, m.tmp.wide
	dl := dense(m.logits, n, Vocabulary)
	m.weightGrad(m.g.embed, dense(m.final.y, n, d), dl)
	gemm(blas.NoTrans, blas.Trans, 1, dl, dense(m.t.embed, d, Vocabulary), 0, dense(dy, n, d))
	clear(dx)
	layerNormGrad(dx, m.g.lnfw, m.g.lnfb, dy, m.final.xhat, m.final.rstd, m.p.lnfw, d)
	for i := len(m.acts) - 1; i >= 0; i-- {
		a, p, g, t := &m.acts[i], &m.p.blocks[i], &m.g.blocks[i], &m.t.blocks[i]
		// MLP. The zeros of h and its gradient make the left factors sparse.
		dout, dh := dense(dx, n, d), dense(wide, n, f)
		gemm(blas.Trans, blas.NoTrans, 1, dense(a.h, n, f), dout, 0, dense(m.dt[:f*d], f, d))
		transpose(g.down, m.dt, f, d, d)
		gemm(blas.NoTrans, blas.NoTrans, 1, dout, dense(p.down, d, f), 0, dh)
		squareReLUGrad(wide, a.relu)
		gemm(blas.Trans, blas.NoTrans, 1, dh, dense(a.ln2.y, n, d), 0, dense(g.up, f, d))
		gemm(blas.NoTrans, blas.NoTrans, 1, dh, dense(p.up, f, d), 0, dense(dy, n, d))
		layerNormGrad(dx, g.ln2w, g.ln2b, dy, a.ln2.xhat, a.ln2.rstd, p.ln2w, d)
		// Attention.
		m.weightGrad(g.proj, dense(a.mixed, n, d), dout)
		gemm(blas.NoTrans, blas.Trans, 1, dout, dense(t.proj, d, d), 0, dense(dy, n, d))
		dqkv := wide[:n*3*d]
		m.attendGrad(a, dqkv, dy)
		m.weightGrad(g.qkv, dense(a.ln1.y, n, d), dense(dqkv, n, 3*d))
		gemm(blas.NoTrans, blas.Trans, 1, dense(dqkv, n, 3*d), dense(t.qkv, d, 3*d), 0, dense(dy, n, d))
		layerNormGrad(dx, g.ln1w, g.ln1b, dy, a.ln1.xhat, a.ln1.rstd, p.ln1w, d)
	}
	for i, tok := range m.tmp.inputs {
		row := m.g.embed[int(tok)*d : int(tok)*d+d]
		for j, v := range dx[i*d : i*d+d] {
			row[j] += v
		}
	}
}
