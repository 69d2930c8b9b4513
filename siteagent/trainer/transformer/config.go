// Package transformer is the built-in trainer: a small byte-level decoder-only
// transformer with hand-written gradients, its data, its optimizer, and the
// process that speaks the trainer API.
//
// It must not know the agent's side of that API, the coordinator, or how its
// weights are merged.
package transformer

import (
	"fmt"
	"math/rand/v2"

	"girassol.dev/internal/tensor"
)

// Vocabulary is the number of tokens: one token is one byte.
const Vocabulary = 256

// initGain over sqrt(Dim) is the standard deviation of fresh weights: of 0.02 to
// 0.3 at Dim 64, 0.06 learned fastest. Layers that end in the residual stream
// get it divided by sqrt(2*Layers), as in GPT-2.
const initGain = 0.5

// Config is the shape of the model and of a step. The zero value is not
// usable; start from DefaultConfig.
type Config struct {
	Dim     int // width of the residual stream
	Layers  int
	Heads   int // Dim/Heads must be even: rotary position embedding
	Context int // bytes that a prediction sees at most
	Batch   int // windows per step; a step is Batch*Context tokens
	// InitSeed of the first weights: the same at every site, so that it does
	// not matter whose offer the federation takes.
	InitSeed uint64
	Optimizer
}

// DefaultConfig is the byte language model of the algorithm study: 115,328
// parameters, 256 tokens a step.
func DefaultConfig() Config {
	return Config{Dim: 64, Layers: 2, Heads: 4, Context: 64, Batch: 4, InitSeed: 1, Optimizer: DefaultOptimizer()}
}

// Validate refuses shapes that do not work out, and optimizer settings.
func (c Config) Validate() error {
	for _, f := range []struct {
		name     string
		v, limit int
	}{{"dim", c.Dim, 8192}, {"layers", c.Layers, 256}, {"heads", c.Heads, 256}, {"context", c.Context, 8192}, {"batch", c.Batch, 4096}} {
		if f.v < 1 || f.v > f.limit {
			return fmt.Errorf("transformer: %s is %d, must be 1 to %d", f.name, f.v, f.limit)
		}
	}
	if c.Dim%(2*c.Heads) != 0 {
		return fmt.Errorf("transformer: dim %d must be a multiple of twice the heads (%d)", c.Dim, c.Heads)
	}
	return c.Optimizer.Validate()
}

// TokensPerStep is Batch*Context.
func (c Config) TokensPerStep() int { return c.Batch * c.Context }

// Layout is the model's tensors, named and shaped like a torch state_dict:
// linear weights are [out, in], without biases; the output layer is the
// embedding, tied.
func (c Config) Layout() (*tensor.Layout, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var specs []tensor.Spec
	add := func(name string, shape ...int) {
		s := tensor.Spec{Name: name, DType: tensor.F32, Role: tensor.Parameter}
		for _, d := range shape {
			s.Shape = append(s.Shape, int64(d))
		}
		specs = append(specs, s)
	}
	d := c.Dim
	add("embed.weight", Vocabulary, d)
	for i := range c.Layers {
		p := fmt.Sprintf("blocks.%d.", i)
		add(p+"ln1.weight", d)
		add(p+"ln1.bias", d)
		add(p+"attn.qkv.weight", 3*d, d)
		add(p+"attn.proj.weight", d, d)
		add(p+"ln2.weight", d)
		add(p+"ln2.bias", d)
		add(p+"mlp.up.weight", 4*d, d)
		add(p+"mlp.down.weight", d, 4*d)
	}
	add("ln_f.weight", d)
	add("ln_f.bias", d)
	return tensor.NewLayout(specs)
}

// block is the tensors of one layer, as views into a flat vector.
type block struct {
	ln1w, ln1b, qkv, proj, ln2w, ln2b, up, down []float32
}

// params is all tensors as views into a flat vector of the layout.
type params struct {
	embed      []float32
	blocks     []block
	lnfw, lnfb []float32
}

func (c Config) view(l *tensor.Layout, flat []float32) params {
	get := func(name string) []float32 {
		i, ok := l.Lookup(name)
		if !ok {
			panic("transformer: layout without " + name) // Layout made it
		}
		o, n := l.Offset(i), l.Tensors()[i].Elements()
		return flat[o : o+n : o+n]
	}
	p := params{embed: get("embed.weight"), lnfw: get("ln_f.weight"), lnfb: get("ln_f.bias")}
	for i := range c.Layers {
		n := fmt.Sprintf("blocks.%d.", i)
		p.blocks = append(p.blocks, block{
			ln1w: get(n + "ln1.weight"), ln1b: get(n + "ln1.bias"),
			qkv: get(n + "attn.qkv.weight"), proj: get(n + "attn.proj.weight"),
			ln2w: get(n + "ln2.weight"), ln2b: get(n + "ln2.bias"),
			up: get(n + "mlp.up.weight"), down: get(n + "mlp.down.weight"),
		})
	}
	return p
}

// initialise draws fresh weights; the same seed gives the same weights.
func (c Config) initialise(p params, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0x676972617373_01))
	normal := func(w []float32, std float64) {
		for i := range w {
			w[i] = float32(rng.NormFloat64() * std)
		}
	}
	ones := func(w []float32) {
		for i := range w {
			w[i] = 1
		}
	}
	std := initGain / sqrt64(float64(c.Dim))
	residual := std / sqrt64(float64(2*c.Layers))
	normal(p.embed, std)
	for _, b := range p.blocks {
		ones(b.ln1w)
		ones(b.ln2w)
		normal(b.qkv, std)
		normal(b.proj, residual)
		normal(b.up, std)
		normal(b.down, residual)
	}
	ones(p.lnfw)
}
