package agent

import (
	"math"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/siteagent/trainer"
)

// progress follows a train task: the status shows its steps, and the time of a
// step is measured.
type progress struct {
	a      *Agent
	handed time.Time // when the task was there for the trainer
	// clock begins at the first report of a step, because what came before it is
	// loading and compiling, and anew where a trainer that was started again begins
	// anew; it had from steps then, and last as last reported.
	clock      time.Time
	from, last uint64
	// measured steps of the task.
	measured uint64
}

func (a *Agent) follow() *progress { return &progress{a: a, handed: time.Now()} }

// report takes a trainer's progress.
func (p *progress) report(r trainerv1.Progress) {
	now := time.Now()
	var per *float64
	switch {
	case p.clock.IsZero(), p.last == 0, r.Steps < p.last:
		p.clock, p.from, p.measured = now, r.Steps, 0
	case r.Steps > p.from:
		p.measured = r.Steps - p.from
		per = stepSeconds(now.Sub(p.clock).Seconds(), p.measured)
	}
	p.last = r.Steps
	p.a.set(func(s *memberStatus) {
		s.steps, s.samples, s.loss = r.Steps, r.Samples, r.Loss
		if per != nil {
			s.stepSeconds = per
		}
		if len(r.Trainer) > 0 {
			s.trainer = r.Trainer
		}
	})
	if r.Steps > 0 {
		p.a.firstStep(now, now.Sub(p.handed))
	}
}

// end takes the task's result. Where the reports cover few of its steps, the time
// of a step is what the trainer itself has measured, else the whole task's.
func (p *progress) end(o trainer.Outcome) {
	res, seconds := o.Result, o.Seconds()
	p.a.metrics.steps.Add(float64(res.Steps))
	p.a.metrics.samples.Add(float64(res.Samples))
	p.a.metrics.trainingSeconds.Add(seconds)
	p.a.set(func(s *memberStatus) {
		s.training += seconds
		s.steps, s.samples, s.loss = res.Steps, res.Samples, res.Loss
		switch own := res.Metrics["step_seconds"]; {
		case res.Steps == 0 || 2*p.measured >= res.Steps:
		case own > 0 && own*float64(res.Steps) <= seconds*(1+1e-6) && !math.IsInf(own, 0):
			s.stepSeconds = stepSeconds(own, 1)
		case s.stepSeconds == nil:
			s.stepSeconds = stepSeconds(seconds, res.Steps)
		}
	})
	if res.Steps > 0 {
		p.a.firstStep(o.EndedAt, o.EndedAt.Sub(p.handed))
	}
}

// The bounds of a step time that is told, in seconds. Everybody's round follows
// the members' step times, so a trainer that miscounts its steps must not make a
// round of all end at once; and none longer than an hour fits into one.
const (
	leastStepSeconds = 1e-3
	mostStepSeconds  = 3600
)

// stepSeconds is the time per step, within bounds.
func stepSeconds(seconds float64, steps uint64) *float64 {
	v := min(max(seconds/float64(steps), leastStepSeconds), mostStepSeconds)
	return &v
}
