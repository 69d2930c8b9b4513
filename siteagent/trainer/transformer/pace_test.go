package transformer

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// paced is a process that believes in steps of the given times.
func paced(t *testing.T, times ...time.Duration) *Process {
	p := &Process{Trainer: newTrainer(t, small(), 1)}
	p.base = p.Trainer.settings
	for _, d := range times {
		p.pace.took(d)
	}
	return p
}

// steps a train task of so much time does, at most most.
func (p *Process) steps(t *testing.T, within time.Duration, most uint64) uint64 {
	t.Helper()
	task := trainerv1.Task{Kind: trainerv1.Train, MaxSteps: most, ResultPath: filepath.Join(t.TempDir(), "r"), StopAt: time.Now().Add(within)}
	res, err := p.train(context.Background(), task, func(trainerv1.Progress) trainerv1.Directive {
		return trainerv1.Directive{Action: trainerv1.Continue}
	})
	if err != nil || (res.Path != "") != (res.Steps > 0) {
		t.Fatalf("%d steps, path %q, %v", res.Steps, res.Path, err)
	}
	return res.Steps
}

func TestNoStepBeginsThatCouldEndAfterTheStopTime(t *testing.T) {
	for within, want := range map[time.Duration]uint64{-time.Second: 0, 0: 0, 59 * time.Minute: 0, 61 * time.Minute: 1} {
		if got := paced(t, time.Hour).steps(t, within, 1); got != want {
			t.Errorf("%v left for steps of an hour: %d steps, want %d", within, got, want)
		}
	}
	p := paced(t, time.Hour)
	if !p.pace.fits(73*time.Minute, false) || p.pace.fits(71*time.Minute, false) {
		t.Error("a further step must leave a fifth in reserve")
	}
}

// A machine that stalls once makes one step look longer than a whole round.
func TestOneStalledStepDoesNotEmptyTheRoundsAfterIt(t *testing.T) {
	p := paced(t, time.Millisecond, time.Millisecond, time.Hour)
	for round := range 3 {
		if got := p.steps(t, time.Minute, 20); got != 20 {
			t.Errorf("round %d after a stalled step: %d of 20 steps", round, got)
		}
	}
	p = paced(t, time.Hour) // not even one good step is known
	rounds := 0
	for p.steps(t, time.Minute, 20) == 0 {
		if rounds++; rounds > 7 {
			t.Fatalf("%d rounds without a step: still believes in %v a step", rounds, p.pace.least())
		}
	}
	if got := p.steps(t, time.Minute, 20); got != 20 || p.pace.least() > time.Second {
		t.Errorf("%d of 20 steps after the doubt, believes in %v a step", got, p.pace.least())
	}
}

func TestTypicalStepIsSlowWhenStepsOftenAre(t *testing.T) {
	var p pace
	if p.typical() != 0 || p.least() != 0 {
		t.Error("something is known before the first step")
	}
	for i := range 40 {
		p.took(time.Duration(1+i%2) * time.Second) // every second one takes two seconds
	}
	if p.typical() != 2*time.Second || p.least() != time.Second {
		t.Errorf("typical %v, least %v", p.typical(), p.least())
	}
	for range 16 {
		p.took(time.Millisecond)
	}
	if p.typical() != time.Millisecond {
		t.Errorf("typical %v after sixteen steps of a millisecond", p.typical())
	}
}
