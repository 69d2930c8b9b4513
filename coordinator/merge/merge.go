// Package merge owns how a round's updates become the next model version: one
// weighted mean, one encoded delta, one outer step.
//
// It is pure: no clock, no I/O besides the readers and the writer it is given,
// no goroutines. It must not know about sessions, rounds' deadlines or where
// commits are kept.
package merge

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// Update is one member's accepted work of the round.
type Update struct {
	// Member names it, site/node; unique within the round. It also orders the sum.
	Member string
	// Weight is the samples behind it; only the proportions count.
	Weight  float64
	Payload *codec.Payload
	// Agreement that the member measured after the round before; nil if none.
	Agreement *float64
}

// Config is what does not change between rounds.
type Config struct {
	Params algorithm.Parameters
	// Uplink and Downlink are the domains of updates and delta. They must be
	// equal: the mean of what came up is what goes down.
	Uplink, Downlink *codec.Domain
}

// Result says what Merge did.
type Result struct {
	// Bytes of the delta.
	Bytes int64
	// Members in the order of the sum.
	Members []string
	// Weight is the sum of all weights.
	Weight float64
	// Clipped members, whose updates were scaled down.
	Clipped []string
	// Digest of the state as it is now.
	Digest [32]byte
	// Measured agreements in member order, for algorithm.NextAgreement.
	Measured []float64
	// MeanNorm is |Q| of the weighted mean of what was sent, DeltaNorm |D| of
	// what goes down and ResidualNorm |R| of what stays for later rounds.
	MeanNorm, DeltaNorm, ResidualNorm float64
}

// ErrNoWeight says that there is no update, or none with weight. Nothing was
// changed; the round is void.
var ErrNoWeight = errors.New("merge: no update carries weight")

// ErrPartial says that reading an update or writing the delta failed half-way, so that
// state and residual are half-changed. The holder must restore both from its
// commit log. Every other error of Merge leaves them as they were.
var ErrPartial = errors.New("merge: state is half-changed and must be restored from the commit log")

// UpdateError says which update cannot be merged and why. Nothing was changed.
type UpdateError struct {
	Member string
	Reason v1alpha1.Reason
	Detail string
}

func (e *UpdateError) Error() string {
	return fmt.Sprintf("merge: update of %q: %s: %s", e.Member, e.Reason, e.Detail)
}

// Merge merges the updates, writes the delta to w and steps state and downlink
// residual R in place:
//
//	Q = sum_i float32(w_i/sum w)*sent_i          in member order; see NewRobustMean
//	R = R + Q;  D = decode(encode(R));  R = R - D
//	g = Inverse(D);  m = mu*m + g;  theta = theta - eta*(g + mu*m)
//
// Buffers become the weighted mean of the updates' values, integers those of
// the heaviest update (of equals, the first member's). The order of updates
// does not matter, bit for bit. Afterwards the state is what replica.Step of
// the written bytes makes of it.
//
// residual has the domain's length; nil is allowed when the downlink is
// lossless and stands for zero. Memory beyond state and residual is a few blocks
// of codec.BlockSize elements, and 64 KiB for each update.
func Merge(s *tensor.State, residual []float32, cfg Config, updates []Update, w io.Writer) (Result, error) {
	if err := check(s, residual, cfg); err != nil {
		return Result{}, err
	}
	m, err := NewRobustMean(cfg.Uplink, updates, cfg.Params.Robust)
	if err != nil {
		return Result{}, err
	}
	res, err := m.merge(s, residual, cfg, w)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrPartial, err)
	}
	return res, nil
}

func check(s *tensor.State, residual []float32, cfg Config) error {
	if err := cfg.Params.Validate(); err != nil {
		return fmt.Errorf("merge: %w", err)
	}
	if !cfg.Uplink.Equal(cfg.Downlink) {
		return errors.New("merge: uplink and downlink need the same domain: set the same transform for both")
	}
	if cfg.Params.Downlink.Transform != cfg.Downlink.Transform() {
		return fmt.Errorf("merge: downlink is %q, its domain %q", cfg.Params.Downlink.Transform, cfg.Downlink.Transform())
	}
	if s.Layout.Digest() != cfg.Downlink.Layout().Digest() {
		return errors.New("merge: state and domain are of different models")
	}
	if residual == nil && !cfg.Params.Downlink.Lossless() {
		return errors.New("merge: a lossy downlink needs a residual")
	}
	if residual != nil && len(residual) != cfg.Downlink.Len() {
		return fmt.Errorf("merge: residual has %d elements, want %d", len(residual), cfg.Downlink.Len())
	}
	return nil
}

// Mean is a checked set of updates in member order with their shares.
type Mean struct {
	updates []Update
	shares  []float64
	weight  float64
	adder   *codec.Adder
	// bounds is nil in a plain mean.
	bounds *bounds
}

// NewMean checks the updates and weighs them. Its errors are Merge's.
func NewMean(d *codec.Domain, updates []Update) (*Mean, error) {
	m := &Mean{updates: slices.Clone(updates), shares: make([]float64, len(updates))}
	slices.SortStableFunc(m.updates, func(a, b Update) int { return strings.Compare(a.Member, b.Member) })
	weightless := true
	for _, u := range m.updates {
		weightless = weightless && u.Weight == 0
	}
	if weightless {
		return nil, ErrNoWeight
	}
	for i, u := range m.updates {
		switch {
		case i > 0 && m.updates[i-1].Member == u.Member:
			return nil, &UpdateError{u.Member, v1alpha1.ReasonConflictingUpdate, "there are two"}
		case !(u.Weight > 0) || math.IsInf(u.Weight, 1):
			return nil, &UpdateError{u.Member, v1alpha1.ReasonInvalidWeight,
				fmt.Sprintf("weight is %g, want a number of samples above 0", u.Weight)}
		case u.Payload == nil || !u.Payload.Domain().Equal(d):
			return nil, &UpdateError{u.Member, v1alpha1.ReasonEncodingMismatch, "payload lives in another domain"}
		}
		m.weight += u.Weight
	}
	if math.IsInf(m.weight, 1) {
		return nil, &UpdateError{m.updates[m.heaviest()].Member, v1alpha1.ReasonInvalidWeight, "the sum of the weights overflows"}
	}
	payloads := make([]*codec.Payload, len(m.updates))
	for i, u := range m.updates {
		m.shares[i] = u.Weight / m.weight
		payloads[i] = u.Payload
	}
	m.adder = codec.NewAdder(payloads)
	return m, nil
}

// Block writes the mean's part Q of one block to q. It is for one goroutine, and
// quickest in the domain's order.
func (m *Mean) Block(b codec.Block, q []float32) error {
	if m.bounds != nil {
		return m.boundedBlock(b, q)
	}
	clear(q)
	for i, u := range m.updates {
		if err := m.adder.Add(i, q, b, float32(m.shares[i])); err != nil {
			return fmt.Errorf("update of %q: %w", u.Member, err)
		}
	}
	return nil
}

// heaviest is the first of the updates with the greatest weight.
func (m *Mean) heaviest() int {
	best := 0
	for i, u := range m.updates {
		if u.Weight > m.updates[best].Weight {
			best = i
		}
	}
	return best
}

func (m *Mean) merge(s *tensor.State, residual []float32, cfg Config, w io.Writer) (Result, error) {
	res := Result{Weight: m.weight, Clipped: m.clippedMembers()}
	for _, u := range m.updates {
		res.Members = append(res.Members, u.Member)
		if u.Agreement != nil {
			res.Measured = append(res.Measured, *u.Agreement)
		}
	}
	d := cfg.Downlink
	enc := codec.NewEncoder(w, d, cfg.Params.Downlink)
	step := replica.NewStepper(s, d, cfg.Params)
	digest := s.DigestTrail()
	n := min(d.Len(), codec.BlockSize)
	sum, decoded := make([]float32, n), make([]float32, n)
	for _, b := range d.Blocks() {
		q, dec := sum[:b.Len()], decoded[:b.Len()]
		if err := m.Block(b, q); err != nil {
			return res, err
		}
		r := q
		if residual != nil {
			r = residual[b.Lo:b.Hi]
			res.MeanNorm += kernel.AddSquares(r, q)
		} else {
			res.MeanNorm += kernel.SumSquares(q)
		}
		squares, err := enc.Split(b, r, dec)
		if err != nil {
			return res, err
		}
		res.DeltaNorm += squares
		res.ResidualNorm += kernel.SumSquares(r)
		step.Block(b, dec)
		digest.Upto(b.ParamHi)
	}
	res.MeanNorm, res.DeltaNorm, res.ResidualNorm = math.Sqrt(res.MeanNorm), math.Sqrt(res.DeltaNorm), math.Sqrt(res.ResidualNorm)
	if err := m.buffers(s.Buffers); err != nil {
		return res, err
	}
	heaviest := m.updates[m.heaviest()]
	if err := heaviest.Payload.Integers(s.Integers); err != nil {
		return res, fmt.Errorf("update of %q: %w", heaviest.Member, err)
	}
	var err error
	res.Bytes, err = enc.Close(codec.Aux{Buffers: s.Buffers, Integers: s.Integers})
	res.Digest = digest.Sum()
	return res, err
}
