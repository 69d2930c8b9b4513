package transformer

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/siteagent/trainer/client"
)

// reportEvery is the least time between two progress reports.
const reportEvery = 200 * time.Millisecond

// Process is a trainer that speaks the trainer API.
type Process struct {
	Client  *client.Client
	Trainer *Trainer
	// HeldOut is what evaluate tasks use, EvaluateTokens bytes of it; nil
	// makes them fail.
	HeldOut        *Corpus
	EvaluateTokens int
	// WorkDir is where the first weights are offered from.
	WorkDir string
	Log     *slog.Logger

	base   Optimizer // before any task's config
	pace   pace
	seeded bool
}

// Run works on tasks until ctx ends. A task in hand is then finished with the
// steps done so far.
func (p *Process) Run(ctx context.Context) error {
	p.base = p.Trainer.settings
	p.calibrate()
	loop := client.Loop{Client: p.Client, Handle: p.handle, Seed: p.seed, Log: p.Log}
	return loop.Run(ctx)
}

// calibrate times a step without taking it, so that the first task's last step
// is as safe as any other's: the shortest of three, because the first one warms
// the caches.
func (p *Process) calibrate() {
	before, t := *p.Trainer.pcg, p.Trainer
	t.corpus.sample(t.rng, t.model.tmp.inputs, t.model.tmp.targets, t.model.cfg.Context)
	shortest := time.Duration(math.MaxInt64)
	for range 3 {
		start := time.Now()
		p.Trainer.gradient()
		shortest = min(shortest, time.Since(start))
	}
	*p.Trainer.pcg = before
	p.pace.took(shortest)
}

// seed is the file with the first weights: not the trained ones, a federation
// begins at the beginning.
func (p *Process) seed() (string, error) {
	path := filepath.Join(p.WorkDir, "seed.safetensors")
	if p.seeded { // by this process: an older file may be another model's
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	m, err := NewModel(p.Trainer.model.cfg)
	if err != nil {
		return "", err
	}
	if err := m.Save(path); err != nil {
		return "", err
	}
	p.seeded = true
	return path, nil
}

func (p *Process) handle(ctx context.Context, t trainerv1.Task, report client.Report) (trainerv1.Result, error) {
	if err := p.Trainer.model.Load(t.ModelPath); err != nil {
		return trainerv1.Result{}, err
	}
	switch t.Kind {
	case trainerv1.Train:
		return p.train(ctx, t, report)
	case trainerv1.Evaluate:
		return p.evaluate(ctx, t, report)
	}
	return trainerv1.Result{}, fmt.Errorf("transformer: task of unknown kind %q", t.Kind)
}

func (p *Process) train(ctx context.Context, t trainerv1.Task, report client.Report) (trainerv1.Result, error) {
	o, err := p.base.With(t.Config)
	if err == nil {
		err = p.Trainer.SetOptimizer(o)
	}
	if err != nil {
		return trainerv1.Result{}, err
	}
	p.Trainer.SetPosition(t.CommittedSamples)
	var (
		res      trainerv1.Result
		sum      float64
		start    = time.Now()
		reported = start
		data     = newLease(t.Data)
	)
	for t.MaxSteps == 0 || res.Steps < t.MaxSteps {
		begin := time.Now()
		if ctx.Err() != nil {
			break
		}
		if left := t.StopAt.Sub(begin); !p.pace.fits(left, res.Steps == 0) {
			if res.Steps == 0 && left > 0 {
				p.pace.doubt()
			}
			break
		}
		loss, n := p.step(data)
		if n == 0 {
			break // its data is used up
		}
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return res, fmt.Errorf("transformer: loss %v in step %d: lower the learning rate (%g)", loss, res.Steps+1, o.LR)
		}
		res.Steps++
		res.Samples += uint64(n)
		sum += loss
		now := time.Now()
		p.pace.took(now.Sub(begin))
		if now.Sub(reported) < reportEvery {
			continue
		}
		reported = now
		d := report(trainerv1.Progress{Steps: res.Steps, Samples: res.Samples, Loss: &loss, Trainer: p.facts()})
		if d.Action == trainerv1.Abort {
			return res, client.ErrAborted
		}
		if d.Action == trainerv1.Finish {
			break
		}
	}
	if res.Steps == 0 {
		return res, nil
	}
	seconds := time.Since(start).Seconds()
	mean := sum / float64(res.Steps)
	res.Loss, res.Path, res.Consumed = &mean, t.ResultPath, data.consumed()
	res.Metrics = map[string]float64{
		"samples_per_second": float64(res.Samples) / seconds,
		"step_seconds":       seconds / float64(res.Steps),
		"learning_rate":      p.Trainer.Rate(),
	}
	return res, p.Trainer.model.Save(t.ResultPath)
}

// facts are how it trains, for the status.
func (p *Process) facts() map[string]string {
	c := p.Trainer.model.cfg
	return map[string]string{
		"trainer": "built-in transformer", "precision": "fp32",
		"batchSize": strconv.Itoa(c.Batch), "context": strconv.Itoa(c.Context),
	}
}

func (p *Process) evaluate(ctx context.Context, t trainerv1.Task, report client.Report) (trainerv1.Result, error) {
	var res trainerv1.Result
	if p.HeldOut == nil {
		return res, fmt.Errorf("transformer: no held-out text to evaluate on: start the trainer with --held-out")
	}
	e, err := newEvaluation(p.Trainer.model, p.HeldOut, p.EvaluateTokens)
	if err != nil {
		return res, err
	}
	start := time.Now()
	reported := start
	for ctx.Err() == nil && p.pace.fits(time.Until(t.StopAt), res.Steps == 0) && e.next() {
		res.Steps++
		res.Samples = uint64(e.tokens)
		if time.Since(reported) < reportEvery {
			continue
		}
		reported = time.Now()
		loss := e.mean()
		d := report(trainerv1.Progress{Steps: res.Steps, Samples: res.Samples, Loss: &loss})
		if d.Action == trainerv1.Abort {
			return res, client.ErrAborted
		}
		if d.Action == trainerv1.Finish {
			break
		}
	}
	if res.Steps == 0 {
		return res, fmt.Errorf("transformer: no time to evaluate before the stop time")
	}
	loss := e.mean()
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return res, fmt.Errorf("transformer: held-out loss is %v", loss)
	}
	res.Loss = &loss
	res.Metrics = map[string]float64{"samples_per_second": float64(res.Samples) / time.Since(start).Seconds()}
	return res, nil
}
