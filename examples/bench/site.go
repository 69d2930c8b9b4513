package main

import (
	"bytes"
	"context"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// site is a member with a replica: what a site agent does, with draws in place of
// a trainer.
type site struct {
	m        *member
	state    *tensor.State
	domain   *codec.Domain
	residual *replica.Residual
	draws    *heavyTailed
	version  uint64
	// start and trained are the working point and what training made of it.
	start, trained []float32
	agreement      *float64
	lastNorm       float64
}

// newSite pulls the whole state as a newcomer does.
func newSite(ctx context.Context, m *member, seed uint64) (*site, error) {
	if err := m.tell(coordinatorv1.MemberState_MEMBER_STATE_SYNCING, 0); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := m.pull(ctx, coordinatorv1.PullRequest_KIND_SNAPSHOT, 0, &b); err != nil {
		return nil, err
	}
	f, err := tensor.ParseFile(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		return nil, err
	}
	st, err := tensor.LoadState(f)
	if err != nil {
		return nil, err
	}
	d := codec.NewDomain(st.Layout, m.params.Uplink.Transform)
	n := st.Layout.Parameters()
	return &site{m: m, state: st, domain: d, residual: replica.NewResidual(d), draws: newHeavyTailed(100 + seed),
		version: m.welcome.GetModelVersion(), start: make([]float32, n), trained: make([]float32, n)}, nil
}

func (s *site) close() {
	if s != nil {
		s.state.Close()
		s.residual.Close()
	}
}

// round takes part in one round and returns the payloads' sizes.
func (s *site) round(ctx context.Context, train time.Duration) (traffic, error) {
	if err := s.m.ready(s.version); err != nil {
		return traffic{}, err
	}
	g, err := s.m.grant(ctx)
	if err != nil {
		return traffic{}, err
	}
	if err := s.train(ctx, g, train); err != nil {
		return traffic{}, err
	}
	var update bytes.Buffer
	aux := codec.Aux{Buffers: s.state.Buffers, Integers: s.state.Integers}
	if _, err := s.residual.Encode(&update, s.m.params.Uplink, aux); err != nil {
		return traffic{}, err
	}
	err = s.m.push(ctx, g, s.state.Layout.Digest(), bytes.NewReader(update.Bytes()), int64(update.Len()), s.agreement)
	if err != nil {
		return traffic{}, err
	}
	sent, err := codec.Parse(s.domain, s.m.params.Uplink, bytes.NewReader(update.Bytes()), int64(update.Len()), nil)
	if err != nil {
		return traffic{}, err
	}
	if err := s.residual.Settle(sent); err != nil {
		return traffic{}, err
	}
	down, err := s.follow(ctx, sent)
	return traffic{float64(update.Len()), float64(down)}, err
}

// train draws a round's work and takes it up into the residual.
func (s *site) train(ctx context.Context, g *coordinatorv1.Grant, train time.Duration) error {
	if err := s.m.tell(coordinatorv1.MemberState_MEMBER_STATE_TRAINING, g.GetRound()); err != nil {
		return err
	}
	rho := algorithm.Rho(g.Agreement, g.GetAlone(), s.lastNorm, s.residual.Norm())
	s.residual.Start(s.start, s.state.Theta, rho)
	s.draws.fill(s.trained, 1e-3)
	for i, v := range s.start {
		s.trained[i] += v
	}
	var err error
	if s.lastNorm, err = s.residual.Absorb(s.start, s.trained); err != nil {
		return err
	}
	select {
	case <-time.After(train):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// follow waits for the commit and steps the replica by its delta.
func (s *site) follow(ctx context.Context, sent *codec.Payload) (size int64, err error) {
	done, err := s.m.committed(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.m.tell(coordinatorv1.MemberState_MEMBER_STATE_SYNCING, 0); err != nil {
		return 0, err
	}
	var b bytes.Buffer
	header, err := s.m.pull(ctx, coordinatorv1.PullRequest_KIND_DELTA, done.GetVersion(), &b)
	if err != nil {
		return 0, err
	}
	// Of the commit, not of the session: the outer step follows each commit's members.
	params, err := algorithm.FromProto(header.GetAlgorithm())
	if err != nil {
		return 0, err
	}
	size = int64(header.GetPayloadBytes())
	delta, err := codec.Parse(s.domain, params.Downlink, bytes.NewReader(b.Bytes()), size, nil)
	if err != nil {
		return 0, err
	}
	s.agreement = nil
	if a, ok := codec.Agreement(s.domain, delta, sent, s.residual.Vector()); ok {
		s.agreement = &a
	}
	if err := replica.Step(s.state, s.domain, params, delta); err != nil {
		return 0, err
	}
	s.version = done.GetVersion()
	return size, checkDigest(s.state.Digest(), done.GetDigest())
}
