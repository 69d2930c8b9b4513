package transformer

import (
	"fmt"
	"math"
	"strconv"

	"girassol.dev/internal/tensor"
)

// Optimizer is AdamW's settings and the learning-rate schedule.
type Optimizer struct {
	LR    float64 // peak learning rate
	Beta1 float64
	Beta2 float64
	// WeightDecay is decoupled (arXiv 1711.05101) and spares vectors.
	WeightDecay float64
	// Clip bounds the gradient's 2-norm; 0 does not.
	Clip float64
	// Warmup is the number of optimizer steps, over the process's life, until
	// the full rate: the moments of a fresh optimizer are not to be trusted.
	Warmup int
	// TotalSamples is where the cosine ends, in samples (bytes) of all sites
	// together; 0: constant rate.
	TotalSamples uint64
	// LRFloor is the fraction of LR that the cosine ends at.
	LRFloor float64
}

// DefaultOptimizer is the algorithm study's setting.
func DefaultOptimizer() Optimizer {
	return Optimizer{LR: 3e-3, Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.1, Clip: 1, Warmup: 30, LRFloor: 0.1}
}

// Validate refuses settings that cannot work.
func (o Optimizer) Validate() error {
	for _, f := range []struct {
		key    string
		v      float64
		lo, hi float64
	}{
		{"lr", o.LR, 0, 10}, {"beta1", o.Beta1, 0, 0.999999}, {"beta2", o.Beta2, 0, 0.999999},
		{"weight_decay", o.WeightDecay, 0, 10}, {"clip", o.Clip, 0, math.MaxFloat32},
		{"warmup", float64(o.Warmup), 0, 1e9}, {"lr_floor", o.LRFloor, 0, 1},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) { // NaN fails too
			return fmt.Errorf("transformer: %s is %v, must be %v to %v", f.key, f.v, f.lo, f.hi)
		}
	}
	return nil
}

// With returns the settings with a task's config applied: lr, beta1, beta2,
// weight_decay, clip, warmup (steps), total_samples, lr_floor. Keys of other
// trainers are left alone.
func (o Optimizer) With(config map[string]string) (Optimizer, error) {
	floats := []struct {
		key string
		v   *float64
	}{
		{"lr", &o.LR}, {"beta1", &o.Beta1}, {"beta2", &o.Beta2}, {"weight_decay", &o.WeightDecay},
		{"clip", &o.Clip}, {"lr_floor", &o.LRFloor},
	}
	for _, f := range floats {
		if s, ok := config[f.key]; ok {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				return o, fmt.Errorf("transformer: config %s=%q is no number", f.key, s)
			}
			*f.v = v
		}
	}
	if s, ok := config["warmup"]; ok {
		v, err := strconv.Atoi(s)
		if err != nil {
			return o, fmt.Errorf("transformer: config warmup=%q is no number of steps", s)
		}
		o.Warmup = v
	}
	if s, ok := config["total_samples"]; ok {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return o, fmt.Errorf("transformer: config total_samples=%q is no number of samples", s)
		}
		o.TotalSamples = v
	}
	return o, o.Validate()
}

// Rate is the learning rate of optimizer step number step (from 1) when all
// sites together have processed samples.
func (o Optimizer) Rate(step, samples uint64) float64 {
	lr := o.LR
	if o.TotalSamples > 0 {
		at := min(float64(samples)/float64(o.TotalSamples), 1)
		lr *= o.LRFloor + (1-o.LRFloor)*0.5*(1+math.Cos(math.Pi*at))
	}
	if o.Warmup > 0 {
		lr *= min(float64(step)/float64(o.Warmup), 1)
	}
	return lr
}

// adamW holds the moments; they outlive tasks.
type adamW struct {
	m, v  []float32
	decay []span // what weight decay applies to
	steps uint64
}

type span struct{ lo, hi int }

func newAdamW(l *tensor.Layout) *adamW {
	a := &adamW{m: make([]float32, l.Parameters()), v: make([]float32, l.Parameters())}
	for i, s := range l.Tensors() {
		if len(s.Shape) > 1 {
			a.decay = append(a.decay, span{l.Offset(i), l.Offset(i) + s.Elements()})
		}
	}
	return a
}

// step updates theta in place; grad is clipped on the way.
func (a *adamW) step(theta, grad []float32, o Optimizer, samples uint64) {
	a.steps++
	lr := o.Rate(a.steps, samples)
	scale := float32(1)
	if norm := norm2(grad); o.Clip > 0 && norm > o.Clip {
		scale = float32(o.Clip / norm)
	}
	for _, s := range a.decay {
		keep := float32(1 - lr*o.WeightDecay)
		for i := range theta[s.lo:s.hi] {
			theta[s.lo+i] *= keep
		}
	}
	b1, b2 := float32(o.Beta1), float32(o.Beta2)
	c1 := 1 - math.Pow(o.Beta1, float64(a.steps))
	c2 := 1 - math.Pow(o.Beta2, float64(a.steps))
	rate := float32(lr / c1)
	inv2 := float32(1 / c2)
	const eps = 1e-8
	m, v, theta := a.m[:len(grad)], a.v[:len(grad)], theta[:len(grad)]
	for i, g := range grad {
		g *= scale
		m[i] = b1*m[i] + (1-b1)*g
		v[i] = b2*v[i] + (1-b2)*g*g
		theta[i] -= rate * m[i] / (float32(math.Sqrt(float64(v[i]*inv2))) + eps)
	}
}

// norm2 is the 2-norm, summed in four lanes in float64.
func norm2(x []float32) float64 {
	var s [4]float64
	for len(x) >= 4 {
		for j := range s {
			s[j] += float64(x[j]) * float64(x[j])
		}
		x = x[4:]
	}
	for _, v := range x {
		s[0] += float64(v) * float64(v)
	}
	return math.Sqrt(s[0] + s[1] + s[2] + s[3])
}
