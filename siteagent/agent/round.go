package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/replica"
	"girassol.dev/siteagent/trainer"
)

// roundContext is the two ways in which a round ends early: work is over when
// its update is not wanted any more, train already when it is to finish.
type roundContext struct{ work, train context.Context }

// beginLocked makes a grant the round at work. Agent.mu is held.
func (a *Agent) beginLocked(ctx context.Context, g *grant) (*running, roundContext) {
	work, abort := context.WithCancelCause(ctx)
	train, finish := context.WithCancelCause(work)
	a.orders.grant = nil
	a.running = &running{grant: g, finish: finish, abort: abort}
	return a.running, roundContext{work, train}
}

// round does what a grant permits, from sync to the coordinator's answer, and
// tells how it ended.
func (a *Agent) round(c roundContext, g *grant) {
	log := a.log.With("round", g.GetRound())
	r := a.currentRound()
	a.set(func(s *memberStatus) {
		s.state, s.detail, s.report = coordinatorv1.MemberState_MEMBER_STATE_SYNCING, "", false
		s.round, s.steps, s.samples, s.loss = g.GetRound(), 0, 0, nil
	})
	steps, samples, err := a.roundWork(c, g)
	detail := ""
	if err != nil {
		detail = brief(err.Error())
		log.Warn("round ends without an accepted update", "error", err)
	}
	a.judgeTrainer(steps, err)
	a.observeReplica()
	a.mu.Lock()
	defer a.mu.Unlock()
	r.finish(nil)
	r.abort(nil)
	a.running = nil
	a.status.reportNothing(g.GetRound(), steps, samples, detail)
	poke(a.nudge)
}

func (a *Agent) currentRound() *running {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

// roundWork returns what was trained. An error says why no update was accepted;
// trained work is then in the residual, or pending.
func (a *Agent) roundWork(c roundContext, g *grant) (steps, samples uint64, err error) {
	if u := a.cfg.Replica.Pending(); u != nil && u.Round == g.GetRound() && u.BaseVersion == g.GetBaseVersion() {
		// A restart: what was trained for this very round lies ready.
		return u.Steps, u.Samples, a.upload(c, g, u)
	}
	energy := a.measureEnergy()
	defer energy.stop()
	if err := a.reachBase(c, g); err != nil {
		return 0, 0, err
	}
	if err := a.cfg.Replica.Drop(); err != nil {
		a.log.Error("the replica cannot be written", "error", err)
	}
	rho, err := a.cfg.Replica.Prepare(g.params.Uplink.Transform, g.Agreement, g.GetAlone())
	if err != nil {
		return 0, 0, err
	}
	files := a.files(g)
	defer files.remove()
	evaluation := a.evaluate(c, g, files)
	u, res, err := a.trained(c, g, files, rho, evaluation, energy)
	if err != nil {
		a.tellEvaluation(c, g, evaluation)
		return res.Steps, res.Samples, err
	}
	return res.Steps, res.Samples, a.upload(c, g, u)
}

// trained makes an update of the grant's steps, which lies ready to be sent.
func (a *Agent) trained(c roundContext, g *grant, files workFiles, rho float64, evaluation *replica.Evaluation, energy *roundEnergy) (*replica.Update, trainerv1.Result, error) {
	t := newTraining(a.cfg.Replica.State())
	defer t.free()
	if err := t.begin(a.cfg.Replica, rho, files.model); err != nil {
		return nil, trainerv1.Result{}, err
	}
	outcome, err := a.train(c, g, files)
	if err != nil {
		a.metrics.rounds.WithLabelValues(outcomeFailed).Inc()
		return nil, trainerv1.Result{}, err
	}
	res := outcome.Result
	if res.Steps == 0 || res.Samples == 0 {
		a.metrics.rounds.WithLabelValues(outcomeEmpty).Inc()
		return nil, res, fmt.Errorf("agent: %d steps over %d samples, nothing to report", res.Steps, res.Samples)
	}
	if err := t.end(outcome); err != nil {
		a.noteMismatch(err)
		a.metrics.rounds.WithLabelValues(outcomeFailed).Inc()
		return nil, trainerv1.Result{}, err
	}
	joules, source := energy.read(a.log.With("round", g.GetRound()))
	u, err := a.cfg.Replica.Stage(replica.Update{
		UpdateID: newID(), Round: g.GetRound(), BaseVersion: g.GetBaseVersion(), Encoding: g.params.Uplink,
		Weight: float64(res.Samples), Steps: res.Steps, Samples: res.Samples, Loss: res.Loss, Metrics: res.Metrics,
		TrainingSeconds: outcome.Seconds(), EnergyJoules: joules, EnergySource: source, Agreement: a.cfg.Replica.Agreement(), Evaluation: evaluation,
		Consumed: res.Consumed,
	}, t.work)
	return u, res, err
}

// reachBase syncs to the grant's base version before its stop time.
func (a *Agent) reachBase(c roundContext, g *grant) error {
	ctx, cancel := context.WithDeadlineCause(c.train, g.stop, errors.New("agent: the stop time came before the base version was reached"))
	defer cancel()
	base := target{version: g.GetBaseVersion(), digest: g.GetBaseDigest()}
	b := a.cfg.newBackOff()
	for {
		err := a.sync(ctx, base)
		if err == nil {
			return context.Cause(ctx)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		a.log.Warn("base version not reached, trying again", "version", base.version, "error", err)
		if !pause(ctx, b.NextBackOff()) {
			return context.Cause(ctx)
		}
	}
}

// upload pushes the pending update until the collect deadline. What is not
// answered by then stays pending and is asked about later.
func (a *Agent) upload(c roundContext, g *grant, u *replica.Update) error {
	a.set(func(s *memberStatus) {
		s.state, s.steps, s.samples = coordinatorv1.MemberState_MEMBER_STATE_UPLOADING, u.Steps, u.Samples
	})
	ctx, cancel := context.WithDeadlineCause(c.work, g.collect, errPushLate)
	defer cancel()
	outcome, err := a.push(ctx)
	if err == nil && outcome != "" {
		err = errors.New(outcome)
	}
	return err
}

// train runs the train task and keeps the heartbeats' progress.
func (a *Agent) train(c roundContext, g *grant, files workFiles) (trainer.Outcome, error) {
	a.set(func(s *memberStatus) { s.state = coordinatorv1.MemberState_MEMBER_STATE_TRAINING })
	defer a.escalate(c)()
	p := a.follow()
	outcome, err := a.cfg.Trainer.Run(c.train, trainerv1.Task{
		ID: files.id, Kind: trainerv1.Train, Round: g.GetRound(), ModelPath: files.model, ResultPath: files.result,
		MaxSteps: g.GetMaxSteps(), StopAt: g.stop, StopInSeconds: time.Until(g.stop).Seconds(),
		CommittedSamples: g.GetCommittedSamples(), Config: g.GetConfig(), Data: leased(g),
	}, p.report)
	if err != nil {
		return outcome, err
	}
	p.end(outcome)
	return outcome, nil
}

// escalate turns an abort into the trainer's when it was already asked to
// finish, which a cancelled context cannot say. done waits for it: it must not
// hit the next round's task.
func (a *Agent) escalate(c roundContext) (done func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(c.work, func() {
		defer close(over)
		a.cfg.Trainer.Abort(context.Cause(c.work).Error())
	})
	return func() {
		if !stop() {
			<-over
		}
	}
}

// evaluate measures the base model on held-out data when the grant asks for it.
// That it fails is no reason not to train.
func (a *Agent) evaluate(c roundContext, g *grant, files workFiles) *replica.Evaluation {
	if !g.GetEvaluate() || c.train.Err() != nil {
		return nil
	}
	st := a.cfg.Replica.State()
	if err := writeModel(files.model, st, st.Theta); err != nil {
		a.log.Warn("no evaluation", "round", g.GetRound(), "error", err)
		return nil
	}
	a.set(func(s *memberStatus) { s.state = coordinatorv1.MemberState_MEMBER_STATE_TRAINING })
	defer a.escalate(c)()
	outcome, err := a.cfg.Trainer.Run(c.train, trainerv1.Task{
		ID: "evaluate-" + files.id, Kind: trainerv1.Evaluate, Round: g.GetRound(), ModelPath: files.model,
		StopAt: g.stop, StopInSeconds: time.Until(g.stop).Seconds(), CommittedSamples: g.GetCommittedSamples(), Config: g.GetConfig(),
	}, nil)
	if err != nil {
		a.log.Warn("no evaluation", "round", g.GetRound(), "error", err)
		return nil
	}
	res := outcome.Result
	e := &replica.Evaluation{Version: g.GetBaseVersion(), Samples: res.Samples, Metrics: res.Metrics}
	if res.Samples > 0 {
		e.Loss = res.Loss
	}
	return e
}

// tellEvaluation sends a held-out result that no update carries, since training on
// the model that was evaluated failed: where it diverged, the result is what says so.
func (a *Agent) tellEvaluation(c roundContext, g *grant, e *replica.Evaluation) {
	if e == nil {
		return
	}
	ctx, cancel := context.WithDeadlineCause(c.work, g.collect, errPushLate)
	defer cancel()
	u := replica.Update{UpdateID: newID(), Round: g.GetRound(), BaseVersion: g.GetBaseVersion(), Evaluation: e}
	res, err := a.deliver(ctx, u.Header(a.cfg.Replica.State().Layout.Digest()), strings.NewReader(""))
	if err != nil {
		a.log.Warn("evaluation not told", "round", g.GetRound(), "error", err)
		return
	}
	a.log.Info("evaluation told without an update", "round", g.GetRound(), "answer", res.GetReason(), "message", res.GetMessage())
}

// workFiles are a round's files in the folder that the trainer sees.
type workFiles struct{ id, model, result string }

func (a *Agent) files(g *grant) workFiles {
	id := fmt.Sprintf("round-%d-%d", g.GetRound(), g.GetEpoch())
	dir := a.cfg.Trainer.WorkDir()
	f := workFiles{id, filepath.Join(dir, id+"-model.safetensors"), filepath.Join(dir, id+"-result.safetensors")}
	tidyWork(dir)
	return f
}

// tidyWork removes what aborted rounds and killed trainers left behind. Nothing else
// in the folder is the agent's to remove.
func tidyWork(dir string) {
	for _, pattern := range []string{
		"round-*-*.safetensors", "round-*-*.safetensors.*.part", "seed-*.safetensors", "seed-*.safetensors.*.part", ".*.safetensors.*.tmp",
	} {
		old, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, path := range old {
			_ = os.Remove(path)
		}
	}
}

func (f workFiles) remove() {
	_ = os.Remove(f.model)
	_ = os.Remove(f.result)
}

// writeModel writes theta with the state's buffers and integers, each tensor in
// its own type.
func writeModel(path string, st *tensor.State, theta []float32) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	defer f.Close()
	model := tensor.State{Layout: st.Layout, Theta: theta, Buffers: st.Buffers, Integers: st.Integers}
	if err := tensor.SaveState(f, &model, false); err != nil {
		return fmt.Errorf("agent: model for the trainer: %w", err)
	}
	return f.Close()
}
