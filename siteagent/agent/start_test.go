package agent

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/trainer"
)

// warm waits for a heartbeat that tells of a start.
func (c *coordinator) warm(fits func(*coordinatorv1.WarmStart) bool) *coordinatorv1.WarmStart {
	c.t.Helper()
	h := c.waitBeat("of a start", func(h *coordinatorv1.Heartbeat) bool { return h.GetWarmStart() != nil && fits(h.GetWarmStart()) })
	return h.GetWarmStart()
}

func TestAStartIsToldInItsPartsAndAReturnPullsDeltasOnly(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	began := time.Now()
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 2, long))
	cold := c.warm(func(*coordinatorv1.WarmStart) bool { return true })
	whole := uint64(len(c.snapshot.data))
	if cold.GetFromDisk() || cold.GetPulledBytes() != whole || cold.GetDeltaBytes() != 0 {
		t.Errorf("a first start: %v, the state has %d bytes", cold, whole)
	}
	parts := cold.GetProcessSeconds() + cold.GetPullSeconds() + cold.GetLoadSeconds()
	if !(cold.GetPullSeconds() > 0) || !(cold.GetLoadSeconds() > 0) || !(cold.GetProcessSeconds() > 0) ||
		parts > cold.GetFirstStepSeconds() || cold.GetFirstStepSeconds() > time.Since(began).Seconds() {
		t.Errorf("parts of the start: %v", cold)
	}
	c.waitPushes(1)
	r.stop()
	c.commit()
	c.commit()
	deltas := uint64(len(c.deltas[1].data) + len(c.deltas[2].data))
	launch(t, c, r.dir, &person{t: t}, func(cfg *Config) { cfg.Opened = time.Second })
	c.waitReady(2)
	c.tell(c.grant(2, 2, long))
	back := c.warm(func(w *coordinatorv1.WarmStart) bool { return w.GetFromDisk() })
	if back.GetPulledBytes() != deltas || back.GetDeltaBytes() != deltas || back.GetPullSeconds() < 1 || back.GetFirstStepSeconds() < 1 {
		t.Errorf("a return: %v, the deltas have %d bytes", back, deltas)
	}
	// A later grant after a drain is a start of its own.
	c.waitPushes(2)
	c.waitReady(2)
	c.tell(&coordinatorv1.Drain{DeadlineInMs: 1000, Reason: "WaitingForEnergy"})
	c.commit()
	c.tell(c.grant(3, 2, long))
	again := c.warm(func(w *coordinatorv1.WarmStart) bool { return w.GetProcessSeconds() == 0 })
	if !again.GetFromDisk() || again.GetPulledBytes() != uint64(len(c.deltas[3].data)) || again.GetDeltaBytes() != again.GetPulledBytes() {
		t.Errorf("after a drain: %v", again)
	}
}

func TestAStartIsToldOnce(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 1, long))
	first := c.warm(func(*coordinatorv1.WarmStart) bool { return true })
	c.waitPushes(1)
	c.commit()
	c.tell(c.committed(1))
	c.waitReady(1)
	c.tell(c.grant(2, 1, long))
	c.waitPushes(2)
	c.waitBeat("after the second round", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetRound() == 2 && h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.members[0].beats {
		if w := h.GetWarmStart(); w != nil && w.GetFirstStepSeconds() != first.GetFirstStepSeconds() {
			t.Errorf("a later round changed the start: %v, was %v", w, first)
		}
	}
}

func TestHeartbeatsTellHowTheTrainerWorks(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t, facts: map[string]string{"precision": "bf16", "batchSize": "32"}})
	c.waitReady(0)
	c.tell(c.grant(1, 3, long))
	h := c.waitBeat("with the trainer's facts", func(h *coordinatorv1.Heartbeat) bool { return len(h.GetTrainer()) > 0 })
	if h.GetTrainer()["precision"] != "bf16" || h.GetTrainer()["batchSize"] != "32" {
		t.Errorf("told %v", h.GetTrainer())
	}
}

// another is a model with one tensor missing, one of another shape, one of another
// kind and one more.
var another = []tensor.Spec{
	{Name: "weight", DType: tensor.F32, Shape: []int64{64, 81}, Role: tensor.Parameter},
	{Name: "half", DType: tensor.I64, Shape: []int64{16}, Role: tensor.Integer},
	{Name: "norm.running_var", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Buffer},
	{Name: "norm.batches", DType: tensor.I64, Role: tensor.Integer},
	{Name: "head", DType: tensor.F32, Shape: []int64{5}, Role: tensor.Parameter},
}

func saved(t *testing.T, specs []tensor.Spec) string {
	t.Helper()
	l, err := tensor.NewLayout(specs)
	must(t, err)
	st := tensor.NewState(l)
	defer st.Close()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	must(t, writeModel(path, st, st.Theta))
	return path
}

func TestATrainerOfAnotherModelIsToldApartAtItsOfferTensorByTensor(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t, seed: saved(t, another)})
	h := c.waitBeat("that names the difference", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER && strings.Contains(h.GetDetail(), "ShapeMismatch")
	})
	for _, want := range []string{
		"the same model", "weight: is F32 [64 81] parameter, want F32 [64 80] parameter", "bias: missing (want F32 [80])", "half: is I64 [16]", "head: unknown (F32 [5])",
	} {
		if !strings.Contains(h.GetDetail(), want) {
			t.Errorf("no %q in %q", want, h.GetDetail())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pushes) > 0 {
		t.Errorf("it has pushed %d times", len(c.pushes))
	}
}

func TestATrainerWithWiderFloatsIsNoOther(t *testing.T) {
	wider := append([]tensor.Spec{}, small...)
	for i, s := range wider {
		if s.DType == tensor.BF16 {
			wider[i].DType = tensor.F32
		}
	}
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	if err := r.agent.checkOffer(saved(t, wider)); err != nil {
		t.Error(err)
	}
	if err := r.agent.checkOffer(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := r.agent.checkOffer(saved(t, another)); err == nil {
		t.Error("another model was taken")
	}
	r.agent.mu.Lock()
	held := r.agent.trainerTroubleLocked()
	r.agent.mu.Unlock()
	if held == "" {
		t.Error("it would get work")
	}
	if err := r.agent.checkOffer(saved(t, small)); err != nil {
		t.Error(err)
	}
	c.waitReady(0)
}

func TestAResultOfAnotherModelHoldsWorkBackAndSaysWhy(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t, result: saved(t, another)})
	c.waitReady(0)
	c.tell(c.grant(1, 2, long))
	report := c.waitBeat("that ends the round", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetRound() == 1 && h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY
	})
	if !strings.Contains(report.GetDetail(), "bias: missing") {
		t.Errorf("the round's end says %q", report.GetDetail())
	}
	c.waitBeat("that holds work back", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER && strings.Contains(h.GetDetail(), "not the federation's")
	})
}

func TestTheWayOutFitsWhatIsWrongWithTheTensors(t *testing.T) {
	for reason, want := range map[v1alpha1.Reason]string{
		v1alpha1.ReasonNotFinite:     "lower its learning rate",
		v1alpha1.ReasonShapeMismatch: "build the same model",
		v1alpha1.ReasonMissingTensor: "build the same model",
	} {
		if got := wayOut(&tensor.MismatchError{Reason: reason, Differences: []string{"w: element 0 is +Inf"}}); !strings.Contains(got, want) || !strings.Contains(got, "element 0") {
			t.Errorf("%s: %s", reason, got)
		}
	}
}

func TestStepTimeWithoutEnoughReportsIsTheTrainersOwn(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	start := time.Now()
	told := func(p *progress, metrics map[string]float64, steps uint64, took time.Duration) float64 {
		p.end(trainer.Outcome{Result: trainerv1.Result{Steps: steps, Samples: 1, Metrics: metrics}, TakenAt: start, EndedAt: start.Add(took)})
		r.agent.mu.Lock()
		defer r.agent.mu.Unlock()
		if s := r.agent.status.stepSeconds; s != nil {
			return *s
		}
		return 0
	}
	for _, tc := range []struct {
		name     string
		measured uint64
		own      map[string]float64
		steps    uint64
		want     float64
	}{
		{"nothing else: the whole task's", 0, nil, 10, 6},
		{"the trainer's own", 0, map[string]float64{"step_seconds": 5}, 10, 5},
		{"one that cannot be", 0, map[string]float64{"step_seconds": 7}, 10, 5},
		{"nor this", 0, map[string]float64{"step_seconds": math.NaN()}, 10, 5},
		{"half was measured here", 5, map[string]float64{"step_seconds": 4}, 10, 5},
		{"less than half was", 4, map[string]float64{"step_seconds": 4}, 10, 4},
		{"no step", 0, map[string]float64{"step_seconds": 1}, 0, 4},
	} {
		p := &progress{a: r.agent, handed: start, measured: tc.measured}
		if got := told(p, tc.own, tc.steps, time.Minute); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: %v s, want %v", tc.name, got, tc.want)
		}
	}
}

func TestWaitsForAFirstStepAreNotPartOfAStepsTime(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	for name, before := range map[string][]uint64{
		"signs of life while it compiles":  {0, 0},
		"a trainer that was started again": {7, 0},
		"one that says so late":            {7, 1},
	} {
		p := r.agent.follow()
		for _, steps := range before {
			p.report(trainerv1.Progress{Steps: steps})
			p.clock = p.clock.Add(-time.Hour) // so long ago
		}
		p.report(trainerv1.Progress{Steps: 1})
		last := before[len(before)-1]
		if last == 1 { // an hour for the step that follows is measured
			p.report(trainerv1.Progress{Steps: 2})
		}
		if want := last; p.measured != want || last == 0 && time.Since(p.clock) > time.Minute {
			t.Errorf("%s: %d steps are measured since %s", name, p.measured, p.clock)
		}
	}
}

func TestATrainerThatFallsSilentRoundAfterRoundIsHeldBack(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	timeout := &trainer.FailureError{Reason: v1alpha1.ReasonTrainerTimeout, Message: "stalled"}
	absent := &trainer.FailureError{Reason: v1alpha1.ReasonWaitingForTrainer, Message: "no trainer took the task"}
	stale := errors.New("StaleRound: too late")
	for _, tc := range []struct {
		name  string
		steps uint64
		err   error
		want  int
	}{
		{"silent", 0, timeout, 1},
		{"silent again", 0, timeout, 2},
		{"no trainer", 0, absent, 2},
		{"called back before a step", 0, stale, 2},
		{"trained, but too late", 5, stale, 0},
		{"silent", 0, timeout, 1},
		{"silent again", 0, timeout, 2},
		{"silent for the third time", 0, timeout, 3},
	} {
		if r.agent.judgeTrainer(tc.steps, tc.err); r.agent.failures != tc.want {
			t.Errorf("%s: %d failures in a row, want %d", tc.name, r.agent.failures, tc.want)
		}
	}
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	if !strings.Contains(r.agent.held, "failed 3 rounds in a row") {
		t.Errorf("held back for %q", r.agent.held)
	}
}

func TestTheWorkFolderIsRidOfWhatWasLeftBehindAndOfNothingElse(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	work := filepath.Join(r.dir, "work")
	left := []string{"round-7-9-model.safetensors", "round-7-9-result.safetensors.12.part", "seed-12.safetensors", "seed-13.safetensors.13.part", ".seed.safetensors.1.tmp"}
	theirs := []string{"checkpoint.safetensors", "seed.safetensors", "data.bin"}
	for _, name := range append(append([]string{}, left...), theirs...) {
		must(t, os.WriteFile(filepath.Join(work, name), nil, 0o600))
	}
	c.tell(c.grant(1, 1, long))
	c.waitPushes(1)
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(work, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range theirs {
		if _, err := os.Stat(filepath.Join(work, name)); err != nil {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestATrainerThatFailsOnAndOnIsHeldBackWithItsLastWords(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	traceback := "Traceback (most recent call last):\n" + strings.Repeat("  File \"train.py\", line 1\n", 60) + "RuntimeError: no kernel image"
	p := &person{t: t, fail: traceback}
	r := launch(t, c, "", p)
	c.waitReady(0)
	for round := range uint64(failuresInARow) {
		c.tell(c.grant(round+1, 2, long))
		h := c.waitBeat("that ends the round", func(h *coordinatorv1.Heartbeat) bool {
			return h.GetRound() == round+1 && h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY
		})
		if d := h.GetDetail(); len(d) > 512 || !strings.HasSuffix(d, "RuntimeError: no kernel image") || !strings.Contains(d, "Traceback") {
			t.Errorf("the round's end says %q", d)
		}
	}
	h := c.waitBeat("that holds work back", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER && strings.Contains(h.GetDetail(), "in a row")
	})
	if d := h.GetDetail(); !strings.Contains(d, "failed 3 rounds in a row and is tried again in 10s") || !strings.Contains(d, "no kernel image") {
		t.Errorf("held back with %q", d)
	}
	// One that trains again is as good as any.
	p.mu.Lock()
	p.fail = ""
	p.mu.Unlock()
	c.tell(c.grant(9, 2, long))
	c.waitBeat("that ends the good round", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetRound() == 9 && h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY
	})
	r.stop()
	if r.agent.failures != 0 {
		t.Errorf("%d failures are remembered", r.agent.failures)
	}
}

func TestATrainerIsNotHeldBackForAStateThatWasGivenUp(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	p := &person{t: t, fail: "RuntimeError: loss is not finite"}
	r := launch(t, c, "", p)
	c.waitReady(0)
	for round := range uint64(failuresInARow) {
		c.tell(c.grant(round+1, 2, long))
		c.waitBeat("that ends the round", func(h *coordinatorv1.Heartbeat) bool {
			return h.GetRound() == round+1 && h.GetDetail() != ""
		})
	}
	c.waitBeat("that holds work back", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER && strings.Contains(h.GetDetail(), "in a row")
	})
	c.commit()
	c.do(func() { // the version is a rollback, which has no delta
		delete(c.deltas, c.version)
		c.snapshot.manifest.RolledBack = c.version
	})
	c.tell(c.committed(4))
	c.waitReady(1)
	r.stop()
	if r.agent.failures != 0 || r.agent.held != "" {
		t.Errorf("%d failures are remembered, held back for %q", r.agent.failures, r.agent.held)
	}
}
