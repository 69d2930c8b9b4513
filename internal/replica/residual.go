package replica

import (
	"fmt"
	"io"
	"math"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// Residual is a site's u: the pseudo-gradients it has accumulated less what it
// has sent, kept in the domain. Nothing in it decays, so that over any number
// of rounds
//
//	sum of sent + u = sum of Forward(start - trained)
//
// It is for one goroutine.
type Residual struct {
	d *codec.Domain
	u []float32
	// two blocks of scratch
	a, b []float32
}

// NewResidual is a zero residual, as a newcomer has it. Close frees its memory.
func NewResidual(d *codec.Domain) *Residual {
	n := min(d.Len(), codec.BlockSize)
	return &Residual{d: d, u: tensor.NewVector(d.Len()), a: make([]float32, n), b: make([]float32, n)}
}

// Close frees the vector; the residual must not be used after it.
func (r *Residual) Close() {
	tensor.FreeVector(r.u)
	r.u = nil
}

// Domain that the residual lives in.
func (r *Residual) Domain() *codec.Domain { return r.d }

// Vector is u itself, of Domain.Len elements: to store it, restore it, and for
// codec.Agreement.
func (r *Residual) Vector() []float32 { return r.u }

// Norm is |u|.
func (r *Residual) Norm() float64 { return math.Sqrt(kernel.SumSquares(r.u)) }

// Start writes the working point of local training to dst:
//
//	start = theta - rho*Inverse(u)
//
// It is never sent and never digested. With rho 0 it is theta bit for bit.
func (r *Residual) Start(dst, theta []float32, rho float64) {
	copy(dst, theta)
	w := float32(rho)
	if w == 0 {
		return
	}
	for _, b := range r.d.Blocks() {
		x := r.a[:b.ParamHi-b.ParamLo]
		r.d.InverseBlock(b, x, r.u[b.Lo:b.Hi])
		kernel.Axpy(dst[b.ParamLo:b.ParamHi], -w, x)
	}
}

// Absorb takes up a round's work: u += G, G = Forward(start - trained), where
// start is what Start gave, not theta, or the residual in play counts twice. It
// returns |G|. A trained value that is NaN, infinite or beyond 2^96 is refused,
// naming the tensor, and u stays as it was.
func (r *Residual) Absorb(start, trained []float32) (float64, error) {
	for _, b := range r.d.Blocks() {
		for i, v := range trained[b.ParamLo:b.ParamHi] {
			if !(v >= -codec.MaxMagnitude && v <= codec.MaxMagnitude) {
				return 0, &codec.Error{
					Reason: v1alpha1.ReasonNotFinite, Tensor: r.d.Layout().Tensors()[b.Tensor].Name,
					Detail: fmt.Sprintf("element %d is %g after training", b.ParamLo+i-r.d.Layout().Offset(b.Tensor), v),
				}
			}
		}
	}
	squares := 0.0
	for _, b := range r.d.Blocks() {
		diff, g := r.a[:b.ParamHi-b.ParamLo], r.b[:b.Len()]
		from, to := start[b.ParamLo:b.ParamHi], trained[b.ParamLo:b.ParamHi]
		for i := range diff {
			diff[i] = from[i] - to[i]
		}
		r.d.ForwardBlock(b, g, diff)
		squares += kernel.SumSquares(g)
		kernel.Axpy(r.u[b.Lo:b.Hi], 1, g)
	}
	return math.Sqrt(squares), nil
}

// Encode writes the residual's payload under e, with buffers and integers as
// they are after training. u does not change before Settle.
func (r *Residual) Encode(w io.Writer, e algorithm.Encoding, aux codec.Aux) (int64, error) {
	return codec.Encode(w, r.d, e, r.u, aux)
}

// Settle takes what was sent out of u, once the coordinator has counted it:
// exactly what the receiver decodes, so a lossless payload leaves zero. An
// update that was stale or refused, or whose round was void, is not settled: its
// work is still in u and goes up again. An error means that the payload could
// not be read again; u is then partly settled.
func (r *Residual) Settle(sent *codec.Payload) error {
	if !sent.Domain().Equal(r.d) {
		return fmt.Errorf("replica: the payload lives in another domain than the residual")
	}
	if err := sent.Add(r.u, -1); err != nil {
		return fmt.Errorf("replica: settle: %w", err)
	}
	return nil
}
