package main

import (
	"bytes"
	"context"
	"fmt"
	"math"

	"girassol.dev/coordinator/merge"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// point of a learning curve.
type point struct {
	Round int `json:"round"`
	// Bytes per site so far, both ways.
	Bytes float64 `json:"bytes"`
	score
}

// result of a run.
type result struct {
	setting
	Variant string `json:"variant"`
	score
	// Diverged: the weights became too large to be merged.
	Diverged string  `json:"diverged,omitempty"`
	Curve    []point `json:"curve"`
	// PayloadUp and PayloadDown per update and per delta, mean over the run;
	// BytesUp and BytesDown are all bytes per site, headers and catching up with
	// missed commits included. Ratio is what dense fp32 both ways takes for the
	// same updates over that.
	PayloadUp   float64 `json:"payloadUp"`
	PayloadDown float64 `json:"payloadDown"`
	BytesUp     float64 `json:"bytesUp"`
	BytesDown   float64 `json:"bytesDown"`
	Ratio       float64 `json:"ratio"`
	// Updates merged, and Samples behind them.
	Updates int    `json:"updates"`
	Samples uint64 `json:"samples"`
	// Agreement at the end, Rho as a mean over all updates.
	Agreement *float64 `json:"agreement,omitempty"`
	Rho       float64  `json:"rho"`
	// Residuals' norms over that of the round's mean update, in the last round:
	// the coordinator's R and the mean of the sites' u.
	CoordinatorResidual float64 `json:"coordinatorResidual"`
	SiteResidual        float64 `json:"siteResidual"`
	// Along is the mean cosine of a round's delta and the momentum before it.
	Along float64 `json:"along"`
}

// federation is the state of a run.
type federation struct {
	s     setting
	v     variant
	cfg   merge.Config
	state *tensor.State
	// residual is the coordinator's R.
	residual  []float32
	sites     []*site
	agreement *float64
	committed uint64
	// present says by round who takes part.
	present [][]bool
	// deltas of all commits, by version.
	deltas []*commit
	along  []float64
	r      result
}

// commit is a delta as sites pull it.
type commit struct {
	payload *codec.Payload
	params  algorithm.Parameters
	digest  [32]byte
	// down is what a site receives for it beside the payload.
	down int64
}

func run(ctx context.Context, t task, s setting, v variant) (result, error) {
	learners, err := t.learners(s)
	if err != nil {
		return result{}, err
	}
	eval, err := t.evaluator()
	if err != nil {
		return result{}, err
	}
	f := newFederation(t, s, v, learners)
	defer f.close()
	every := max(1, s.length()/8)
	for round := range f.present {
		if err := ctx.Err(); err != nil {
			return result{}, err
		}
		if err := f.round(round); err != nil {
			return result{}, fmt.Errorf("round %d: %w", round, err)
		}
		if f.r.Diverged != "" {
			break
		}
		if (round+1)%every == 0 || round+1 == s.length() {
			if f.r.score, err = eval.evaluate(f.state.Theta); err != nil {
				return result{}, err
			}
			f.r.Curve = append(f.r.Curve, point{round + 1, (f.r.BytesUp + f.r.BytesDown) / float64(s.Sites), f.r.score})
		}
	}
	return f.result(), nil
}

func newFederation(t task, s setting, v variant, learners []learner) *federation {
	d := codec.NewDomain(t.layout(), v.Params.Uplink.Transform)
	f := &federation{
		s: s, v: v, cfg: merge.Config{Params: v.Params, Uplink: d, Downlink: d},
		state: tensor.NewState(t.layout()), present: s.present(), r: result{setting: s, Variant: v.Name},
	}
	copy(f.state.Theta, t.initial(s.Seed))
	if !v.Params.Downlink.Lossless() {
		f.residual = make([]float32, d.Len())
	}
	for i, l := range learners {
		f.sites = append(f.sites, newSite(i, l, f.state, d))
	}
	return f
}

func (f *federation) close() {
	for _, s := range f.sites {
		s.close()
	}
	f.state.Close()
}

// round grants, trains, merges and commits once.
func (f *federation) round(n int) error {
	var members []*site
	for i, on := range f.present[n] {
		if on {
			members = append(members, f.sites[i])
		}
	}
	alone := len(members) == 1
	params := f.v.at(n, len(f.present), len(members), f.agreement)
	var updates []merge.Update
	var upBytes int64
	for _, s := range members {
		if err := s.follow(f); err != nil {
			return err
		}
		u, err := s.work(f, f.v.uplink(params, f.leaves(s.index, n)), alone)
		if err != nil {
			return f.diverge(n, err)
		}
		upBytes = u.Payload.Size()
		f.r.PayloadUp += float64(upBytes)
		f.r.Updates++
		updates = append(updates, u)
	}
	cfg := f.cfg
	cfg.Params = params
	var out bytes.Buffer
	momentum := append([]float32(nil), f.state.Momentum...)
	res, err := merge.Merge(f.state, f.residual, cfg, updates, &out)
	if err != nil {
		return f.diverge(n, err)
	}
	delta, err := codec.Parse(cfg.Downlink, params.Downlink, bytes.NewReader(out.Bytes()), res.Bytes, nil)
	if err != nil {
		return err
	}
	if !alone {
		f.agreement = algorithm.NextAgreement(f.agreement, res.Measured)
	}
	f.committed += uint64(res.Weight)
	up, down := overhead(params, len(members), upBytes, res.Bytes)
	f.r.BytesUp += float64(up) * float64(len(members))
	f.r.PayloadDown += float64(res.Bytes)
	f.deltas = append(f.deltas, &commit{delta, params, f.state.Digest(), down})
	for _, s := range members {
		if err := s.commit(f); err != nil {
			return err
		}
	}
	f.measure(delta, momentum, res)
	return nil
}

// leaves says that a site is away in the round after n.
func (f *federation) leaves(site, n int) bool {
	return n+1 < len(f.present) && !f.present[n+1][site]
}

// diverge ends the run when training or merging ran out of numbers.
func (f *federation) diverge(n int, err error) error {
	f.r.Diverged = fmt.Sprintf("round %d: %v", n+1, err)
	f.r.score = score{Loss: math.Inf(1)}
	return nil
}

func (f *federation) measure(delta *codec.Payload, momentum []float32, res merge.Result) {
	d := f.cfg.Downlink
	x, g := make([]float32, d.Len()), make([]float32, len(momentum))
	if delta.Decode(x) != nil {
		return // it was parsed a moment ago, from memory
	}
	d.Inverse(g, x)
	if c := kernel.Dot(g, momentum) / math.Sqrt(kernel.SumSquares(g)*kernel.SumSquares(momentum)); !math.IsNaN(c) {
		f.along = append(f.along, c)
	}
	f.r.CoordinatorResidual = res.ResidualNorm / res.MeanNorm
	f.r.SiteResidual = 0
	for _, s := range f.sites {
		f.r.SiteResidual += s.residual.Norm() / res.MeanNorm / float64(len(f.sites))
	}
}

func (f *federation) result() result {
	r := f.r
	dense := 8 * float64(len(f.state.Theta)) * float64(r.Updates)
	r.Ratio = dense / (r.BytesUp + r.BytesDown)
	r.PayloadUp /= float64(r.Updates)
	r.PayloadDown /= float64(len(f.deltas))
	r.BytesUp /= float64(f.s.Sites)
	r.BytesDown /= float64(f.s.Sites)
	r.Rho /= float64(r.Updates)
	r.Samples, r.Agreement = f.committed, f.agreement
	for _, c := range f.along {
		r.Along += c / float64(len(f.along))
	}
	return r
}
