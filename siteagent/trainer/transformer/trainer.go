package transformer

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Trainer trains a Model on a Corpus. One goroutine at a time may use it.
type Trainer struct {
	model    *Model
	opt      *adamW
	settings Optimizer
	corpus   *Corpus
	pcg      *rand.PCG // rng's state
	rng      *rand.Rand
	tokens   uint64 // over its life
	position uint64 // of the schedule, in samples of all sites
}

// NewTrainer makes a trainer with fresh weights (cfg.InitSeed); seed chooses
// the windows of text. The same cfg, corpus and seed give the same steps.
func NewTrainer(cfg Config, corpus *Corpus, seed uint64) (*Trainer, error) {
	m, err := NewModel(cfg)
	if err != nil {
		return nil, err
	}
	if corpus.Len() <= cfg.Context {
		return nil, fmt.Errorf("transformer: %d bytes of text, a window needs %d", corpus.Len(), cfg.Context+1)
	}
	pcg := rand.NewPCG(seed, 0x676972617373_02)
	return &Trainer{
		model: m, opt: newAdamW(m.layout), settings: cfg.Optimizer, corpus: corpus,
		pcg: pcg, rng: rand.New(pcg),
	}, nil
}

// Step does one optimizer step and returns the mean loss of its tokens before
// it, in nats per byte. If that is not finite the weights stay as they are.
func (t *Trainer) Step() float64 {
	m := t.model
	t.corpus.sample(t.rng, m.tmp.inputs, m.tmp.targets, m.cfg.Context)
	return t.step(m.cfg.TokensPerStep())
}

// step is an optimizer step on the batch in place, of n different tokens.
func (t *Trainer) step(n int) float64 {
	m := t.model
	loss := t.gradient()
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return loss
	}
	t.opt.step(m.theta, m.grad, t.settings, t.position)
	m.refresh()
	t.tokens += uint64(n)
	t.position += uint64(n)
	return loss
}

// gradient fills the model's gradient for the batch in place.
func (t *Trainer) gradient() float64 {
	m := t.model
	m.forward()
	loss := m.loss(true) / float64(m.cfg.TokensPerStep())
	m.backward()
	return loss
}

// Tokens processed over the trainer's life.
func (t *Trainer) Tokens() uint64 { return t.tokens }

// SetPosition puts the learning-rate schedule at so many samples of all sites
// together; own steps count from there.
func (t *Trainer) SetPosition(committedSamples uint64) { t.position = committedSamples }

// SetOptimizer changes the settings; the moments stay.
func (t *Trainer) SetOptimizer(o Optimizer) error {
	if err := o.Validate(); err != nil {
		return err
	}
	t.settings = o
	return nil
}

// Rate is the learning rate of the next step.
func (t *Trainer) Rate() float64 { return t.settings.Rate(t.opt.steps+1, t.position) }

// Model is the model being trained.
func (t *Trainer) Model() *Model { return t.model }

// Weights is the flat vector of weights in layout order, to read.
func (t *Trainer) Weights() []float32 { return t.model.theta }

// LoadWeights replaces the weights; the optimizer's moments stay.
func (t *Trainer) LoadWeights(w []float32) error { return t.model.LoadWeights(w) }

// Evaluate is the mean loss in nats per byte over about tokens bytes of data
// (at least one window, at most all), in windows spread evenly over it, and
// the number of bytes it is over. It does not change the model's weights.
func Evaluate(m *Model, data *Corpus, tokens int) (loss float64, n int, err error) {
	e, err := newEvaluation(m, data, tokens)
	if err != nil {
		return 0, 0, err
	}
	for e.next() {
	}
	return e.mean(), e.tokens, nil
}

// evaluation goes over the windows a batch at a time.
type evaluation struct {
	m       *Model
	data    *Corpus
	windows int
	done    int
	sum     float64
	tokens  int
}

func newEvaluation(m *Model, data *Corpus, tokens int) (*evaluation, error) {
	t := m.cfg.Context
	if data.Len() <= t {
		return nil, fmt.Errorf("transformer: %d bytes of held-out text, a window needs %d", data.Len(), t+1)
	}
	return &evaluation{m: m, data: data, windows: max(1, min(tokens, data.Len()-1)/t)}, nil
}

// next evaluates a batch; false when there is none left.
func (e *evaluation) next() bool {
	c, tmp := e.m.cfg, &e.m.tmp
	k := min(c.Batch, e.windows-e.done)
	if k <= 0 {
		return false
	}
	for b := range c.Batch {
		i := e.done + min(b, k-1) // a short batch repeats its last window
		start := 0
		if e.windows > 1 {
			start = int(int64(i) * int64(e.data.Len()-1-c.Context) / int64(e.windows-1))
		}
		e.data.window(start, tmp.inputs[b*c.Context:(b+1)*c.Context], tmp.targets[b*c.Context:(b+1)*c.Context])
	}
	e.m.forward()
	for i, target := range tmp.targets[:k*c.Context] {
		e.sum += crossEntropy(e.m.logits[i*Vocabulary:(i+1)*Vocabulary], target, false, 0)
	}
	e.done += k
	e.tokens += k * c.Context
	return true
}

func (e *evaluation) mean() float64 { return e.sum / float64(e.tokens) }
