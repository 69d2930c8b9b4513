package main

import (
	"bytes"
	"fmt"

	"girassol.dev/coordinator/merge"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// site does what an agent does with its replica, in memory.
type site struct {
	index    int
	learner  learner
	d        *codec.Domain
	state    *tensor.State
	version  int
	residual *replica.Residual
	lastNorm float64
	// measured agreement, sent with the next update.
	measured   *float64
	sent       *codec.Payload
	start, end []float32
}

func newSite(i int, l learner, s *tensor.State, d *codec.Domain) *site {
	out := &site{
		index: i, learner: l, d: d, state: tensor.NewState(s.Layout), residual: replica.NewResidual(d),
		start: make([]float32, len(s.Theta)), end: make([]float32, len(s.Theta)),
	}
	out.state.CopyFrom(s)
	return out
}

func (s *site) close() {
	s.residual.Close()
	s.state.Close()
}

// follow catches up with what was committed while the site was away: delta by
// delta, or by the whole state where that is smaller.
func (s *site) follow(f *federation) error {
	missed := f.deltas[s.version:]
	size := int64(0)
	for _, c := range missed {
		size += c.payload.Size() + c.down
	}
	if whole := int64(8 * len(s.state.Theta)); size > whole {
		s.state.CopyFrom(f.state)
		s.version, s.measured = len(f.deltas), nil
		f.r.BytesDown += float64(whole)
		return nil
	}
	f.r.BytesDown += float64(size)
	for _, c := range missed {
		if err := s.apply(c, nil); err != nil {
			return err
		}
	}
	return nil
}

// work trains and makes an update.
func (s *site) work(f *federation, e algorithm.Encoding, alone bool) (merge.Update, error) {
	rho := f.v.Rho
	if rho < 0 {
		rho = algorithm.Rho(f.agreement, alone, f.v.Cap/algorithm.RoundsInPlay*s.lastNorm, s.residual.Norm())
	}
	f.r.Rho += rho
	s.residual.Start(s.start, s.state.Theta, rho)
	samples, err := s.learner.train(s.end, s.start, f.s.Steps, f.committed)
	if err != nil {
		return merge.Update{}, err
	}
	if s.lastNorm, err = s.residual.Absorb(s.start, s.end); err != nil {
		return merge.Update{}, err
	}
	var b bytes.Buffer
	if _, err := s.residual.Encode(&b, e, codec.Aux{}); err != nil {
		return merge.Update{}, err
	}
	if s.sent, err = codec.Parse(s.d, e, bytes.NewReader(b.Bytes()), int64(b.Len()), nil); err != nil {
		return merge.Update{}, err
	}
	f.r.BytesUp += float64(b.Len())
	return merge.Update{
		Member: fmt.Sprintf("site-%02d/node", s.index), Weight: float64(samples), Payload: s.sent, Agreement: s.measured,
	}, nil
}

// commit takes the delta that has merged the site's update.
func (s *site) commit(f *federation) error {
	c := f.deltas[s.version]
	f.r.BytesDown += float64(c.payload.Size() + c.down)
	if err := s.apply(c, s.sent); err != nil {
		return err
	}
	if err := s.residual.Settle(s.sent); err != nil {
		return err
	}
	if f.v.Leave == dropResidual && f.leaves(s.index, s.version-1) {
		clear(s.residual.Vector())
	}
	return nil
}

// apply steps the replica and measures the agreement of the delta and what the
// site holds back; own is its update in it.
func (s *site) apply(c *commit, own *codec.Payload) error {
	s.measured = nil
	if a, ok := codec.Agreement(s.d, c.payload, own, s.residual.Vector()); ok {
		s.measured = &a
	}
	if err := replica.Step(s.state, s.d, c.params, c.payload); err != nil {
		return err
	}
	s.version++
	if s.state.Digest() != c.digest {
		return fmt.Errorf("site %d differs from the coordinator at version %d", s.index, s.version)
	}
	return nil
}
