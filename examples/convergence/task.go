package main

import "girassol.dev/internal/tensor"

// task is a model, its data and how they are cut between sites.
type task interface {
	layout() *tensor.Layout
	// initial weights, in layout order.
	initial(seed uint64) []float32
	// learners of all sites of a run.
	learners(s setting) ([]learner, error)
	// evaluate on held-out data. It is for one goroutine; each run has its own.
	evaluator() (evaluator, error)
}

// learner is a site's trainer with its data and its optimizer, which outlives
// rounds.
type learner interface {
	// train takes steps from start on and writes where it ends; committed is the
	// samples of all sites so far. It returns the samples it has used.
	train(end, start []float32, steps int, committed uint64) (samples uint64, err error)
}

type evaluator interface {
	evaluate(theta []float32) (score, error)
}

// score on held-out data. Accuracy is 0 for language models.
type score struct {
	Loss     float64 `json:"loss"`
	Accuracy float64 `json:"accuracy,omitempty"`
}
