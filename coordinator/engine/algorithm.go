package engine

import (
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/merge"
	"girassol.dev/internal/algorithm"
)

// params are those of the round at work, whose commit makes the next version. The
// outer step of an adaptive strategy is fitted when the commit's members are known.
func (e *Engine) params() algorithm.Parameters {
	if e.model == nil {
		return e.cfg.Algorithm.ForVersion(1)
	}
	return e.cfg.Algorithm.ForVersion(e.model.version + 1)
}

// inForce is params with the outer step of the newest commit, where a strategy
// fits it to each.
func (e *Engine) inForce() algorithm.Parameters {
	p, was := e.params(), e.manifest.Algorithm
	if e.manifest.Kind == checkpoint.KindCommit && p.Adaptive && was.Adaptive && was.Strategy == p.Strategy {
		p.OuterLearningRate, p.OuterMomentum = was.OuterLearningRate, was.OuterMomentum
	}
	return p
}

// mergeConfig is how a commit merges.
func (m *model) mergeConfig(man checkpoint.Manifest) merge.Config {
	return merge.Config{Params: man.Algorithm, Uplink: m.domain, Downlink: m.domain}
}
