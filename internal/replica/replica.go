// Package replica owns what every holder of the model does alike: the outer
// step that turns a committed delta into the next version, and a site's
// residual, the work it has done but not yet sent.
//
// It is pure. It must not know how deltas travel, what a round is or where a
// residual is stored.
package replica

import (
	"fmt"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// Step applies a committed delta D to the state, bit for bit as the coordinator
// did when it wrote it:
//
//	g = Inverse(D);  m = mu*m + g;  theta = theta - eta*(g + mu*m)
//
// Buffers and integers become the delta's. The state must be the delta's base
// version. An error means that the delta could not be read again; the state is
// then partly stepped and must be thrown away.
func Step(s *tensor.State, d *codec.Domain, p algorithm.Parameters, delta *codec.Payload) error {
	if err := fits(s, d); err != nil {
		return err
	}
	if !delta.Domain().Equal(d) {
		return fmt.Errorf("replica: the delta lives in another domain than the state's")
	}
	step := NewStepper(s, d, p)
	merged := make([]float32, min(d.Len(), codec.BlockSize))
	for _, b := range d.Blocks() {
		x := merged[:b.Len()]
		clear(x)
		if err := delta.AddRange(x, b.Lo, b.Hi, 1); err != nil {
			return fmt.Errorf("replica: step: %w", err)
		}
		step.Block(b, x)
	}
	if err := delta.Buffers(s.Buffers); err != nil {
		return fmt.Errorf("replica: step: %w", err)
	}
	if err := delta.Integers(s.Integers); err != nil {
		return fmt.Errorf("replica: step: %w", err)
	}
	return nil
}

func fits(s *tensor.State, d *codec.Domain) error {
	if s.Layout != d.Layout() && s.Layout.Digest() != d.Layout().Digest() {
		return fmt.Errorf("replica: state and domain are of different models")
	}
	return nil
}

// Stepper is the outer step block by block, for the coordinator, which has each
// block of D at hand while it encodes it.
type Stepper struct {
	s *tensor.State
	o *Outer
}

// NewStepper makes a Stepper; state and domain must be of the same layout.
func NewStepper(s *tensor.State, d *codec.Domain, p algorithm.Parameters) *Stepper {
	return &Stepper{s, NewOuter(d, p)}
}

// Block steps the parameters of one block by the block's part of D.
func (t *Stepper) Block(b codec.Block, merged []float32) {
	t.o.Block(b, t.s.Theta[b.ParamLo:b.ParamHi], t.s.Momentum[b.ParamLo:b.ParamHi], merged)
}

// Outer is the outer step of single blocks, for who does not hold the state.
type Outer struct {
	d       *codec.Domain
	eta, mu float32
	g       []float32
}

// NewOuter makes an Outer for blocks of this domain.
func NewOuter(d *codec.Domain, p algorithm.Parameters) *Outer {
	return &Outer{d: d, eta: float32(p.OuterLearningRate), mu: float32(p.OuterMomentum), g: make([]float32, min(d.Len(), codec.BlockSize))}
}

// Block steps the block's parameters by its part of D.
func (o *Outer) Block(b codec.Block, theta, momentum, merged []float32) {
	g := o.g[:b.ParamHi-b.ParamLo]
	o.d.InverseBlockBefore(b, g, merged, theta, momentum)
	kernel.Nesterov(theta, momentum, g, o.eta, o.mu)
}
