package transformer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/siteagent/trainer"
	"girassol.dev/siteagent/trainer/client"
)

// The test binary plays the trainer process when asked to.
func TestMain(m *testing.M) {
	if args := os.Getenv("TEST_TRAINER_ARGS"); args != "" {
		cmd := Command()
		cmd.SetArgs(strings.Split(args, "\n"))
		if err := cmd.Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// site is an agent's end of the trainer API on a real socket.
type site struct {
	*testing.T
	s     *trainer.Server
	work  string
	model string
}

func newSite(t *testing.T, c Config) *site {
	t.Helper()
	dir := t.TempDir()
	s, err := trainer.New(trainer.Options{SocketPath: filepath.Join(dir, "s", "t.sock"), WorkDir: filepath.Join(dir, "work")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	m, err := NewModel(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &site{t, s, s.WorkDir(), filepath.Join(s.WorkDir(), "model.safetensors")}
	if err := m.Save(r.model); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *site) task(id string, kind trainerv1.Kind, steps uint64, within time.Duration) trainerv1.Task {
	t := trainerv1.Task{ID: id, Kind: kind, Round: 1, ModelPath: r.model, MaxSteps: steps, StopAt: time.Now().Add(within)}
	if kind == trainerv1.Train {
		t.ResultPath = filepath.Join(r.work, id+".safetensors")
	}
	return t
}

func (r *site) run(t trainerv1.Task) trainer.Outcome {
	r.Helper()
	o, err := r.s.Run(context.Background(), t, nil)
	if err != nil {
		r.Fatal(err)
	}
	return o
}

// live runs the process on the site until stop.
func live(t *testing.T, r *site, c Config, held *Corpus) (tr *Trainer, stop func()) {
	t.Helper()
	tr = newTrainer(t, c, 1)
	cl := client.New(r.s.SocketPath())
	p := &Process{Client: cl, Trainer: tr, HeldOut: held, EvaluateTokens: 500, WorkDir: r.work}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		cl.Close()
	})
	t.Cleanup(stop)
	return tr, stop
}

func TestProcessTrainsAndEvaluatesForTheAgent(t *testing.T) {
	c := small()
	r := newSite(t, c)
	tr, _ := live(t, r, c, NewCorpus(text(8000).data[4000:]))

	before := r.run(r.task("e1", trainerv1.Evaluate, 0, time.Minute))
	o := r.run(r.task("t1", trainerv1.Train, 150, time.Minute))
	if o.Result.Steps != 150 || o.Result.Samples != 150*30 || o.Result.Loss == nil || o.Result.Metrics["samples_per_second"] <= 0 {
		t.Errorf("result %+v", o.Result)
	}
	// The agent hands the trained weights out again.
	r.model = o.Result.Path
	after := r.run(r.task("e2", trainerv1.Evaluate, 0, time.Minute))
	if before.Result.Samples != 500 || *after.Result.Loss > *before.Result.Loss-1 {
		t.Errorf("held-out loss %v -> %v over %d bytes", *before.Result.Loss, *after.Result.Loss, before.Result.Samples)
	}
	// The optimizer lives on over tasks, and the schedule follows the task.
	task := r.task("t2", trainerv1.Train, 1, time.Minute)
	task.CommittedSamples = 1 << 40
	task.Config = map[string]string{"lr": "1", "total_samples": "1000", "lr_floor": "0"}
	o = r.run(task)
	if tr.opt.steps != 151 || o.Result.Metrics["learning_rate"] != 0 {
		t.Errorf("%d optimizer steps, rate %v", tr.opt.steps, o.Result.Metrics["learning_rate"])
	}
	a, b := new(Model), new(Model)
	for path, m := range map[string]**Model{r.model: &a, o.Result.Path: &b} {
		fresh, err := NewModel(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := fresh.Load(path); err != nil {
			t.Fatal(err)
		}
		*m = fresh
	}
	for i := range a.theta {
		if a.theta[i] != b.theta[i] {
			t.Fatal("a step at rate 0 changed the weights")
		}
	}
}

func TestTrainingEndsByItselfAtTheStopTime(t *testing.T) {
	c := small()
	r := newSite(t, c)
	live(t, r, c, nil)
	task := r.task("a", trainerv1.Train, 0, 300*time.Millisecond)
	task.Config = map[string]string{"lr": "1e-6"}
	r.run(task) // no message ends it
}

func TestFinishCallsForTheStepsDoneSoFar(t *testing.T) {
	c := small()
	r := newSite(t, c)
	live(t, r, c, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	o, err := r.s.Run(ctx, r.task("a", trainerv1.Train, 0, time.Hour), func(trainerv1.Progress) { cancel(trainer.ErrFinish) })
	if err != nil || o.Result.Steps == 0 || o.Result.Samples != o.Result.Steps*uint64(c.TokensPerStep()) {
		t.Errorf("%+v, %v", o.Result, err)
	}
}

func TestAbortedTaskLeavesTheTrainerReady(t *testing.T) {
	c := small()
	r := newSite(t, c)
	live(t, r, c, nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	if _, err := r.s.Run(ctx, r.task("a", trainerv1.Train, 0, time.Hour), func(trainerv1.Progress) { cancel(trainer.ErrAbort) }); !errors.Is(err, trainer.ErrAbort) {
		t.Error(err)
	}
	if o := r.run(r.task("b", trainerv1.Train, 3, time.Minute)); o.Result.Steps != 3 {
		t.Errorf("%+v", o.Result)
	}
}

func TestStoppedProcessPostsWhatItHas(t *testing.T) {
	c := small()
	r := newSite(t, c)
	_, stop := live(t, r, c, nil)
	o, err := r.s.Run(context.Background(), r.task("a", trainerv1.Train, 0, time.Hour), func(trainerv1.Progress) { go stop() })
	if err != nil || o.Result.Steps == 0 {
		t.Errorf("%+v, %v", o.Result, err)
	}
	stop()
}

func TestFailuresSayWhatIsWrong(t *testing.T) {
	c := small()
	r := newSite(t, c)
	live(t, r, c, nil)
	other := c
	other.Dim = 36
	m, err := NewModel(other)
	if err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(r.work, "wrong.safetensors")
	if err := m.Save(wrong); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*trainerv1.Task)
		says   string
	}{
		"other shapes":  {func(t *trainerv1.Task) { t.ModelPath = wrong }, "ShapeMismatch"},
		"no model":      {func(t *trainerv1.Task) { t.ModelPath += "x" }, "no such file"},
		"config":        {func(t *trainerv1.Task) { t.Config = map[string]string{"lr": "fast"} }, "lr"},
		"divergence":    {func(t *trainerv1.Task) { t.Config = map[string]string{"lr": "10", "weight_decay": "10", "warmup": "0"} }, "lower the learning rate"},
		"no held-out":   {func(t *trainerv1.Task) { t.Kind, t.ResultPath = trainerv1.Evaluate, "" }, "--held-out"},
		"result folder": {func(t *trainerv1.Task) { t.ResultPath = filepath.Join(r.work, "none", "x") }, "none"},
	} {
		task := r.task("a", trainerv1.Train, 400, time.Minute)
		c.change(&task)
		_, err := r.s.Run(context.Background(), task, nil)
		var f *trainer.FailureError
		if !errors.As(err, &f) || f.Reason != v1alpha1.ReasonTrainerFailed || !strings.Contains(f.Message, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCommandSeedsTrainsAndLeavesOnSIGTERM(t *testing.T) {
	c := small()
	r := newSite(t, c)
	data := t.TempDir()
	write(t, data, "text", string(text(5000).data))
	sup, err := trainer.NewSupervisor(trainer.SupervisorOptions{
		Command: []string{os.Args[0]}, SocketPath: r.s.SocketPath(), WorkDir: r.work,
		Env: []string{"TEST_TRAINER_ARGS=" + strings.Join([]string{
			"--data", data, "--held-out", data, "--dim", "24", "--heads", "3", "--context", "10", "--batch", "3",
		}, "\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.s.SetSeedWanted(true)
	ended := make(chan error, 1)
	go func() { ended <- sup.Run(context.Background()) }()
	t.Cleanup(func() { sup.Stop(context.Background()) })
	seed := <-r.s.Seeds()
	m, err := NewModel(c)
	if err != nil {
		t.Fatal(err)
	}
	first := append([]float32(nil), m.theta...)
	if err := m.Load(seed.Path); err != nil {
		t.Fatal(err)
	}
	for i, v := range m.theta {
		if v != first[i] {
			t.Fatal("the seed depends on more than the init seed")
		}
	}
	r.model = seed.Path
	if o := r.run(r.task("a", trainerv1.Train, 3, time.Minute)); o.Result.Steps != 3 {
		t.Errorf("%+v", o.Result)
	}
	o := r.run(r.task("b", trainerv1.Evaluate, 0, time.Minute))
	if l := *o.Result.Loss; math.Abs(l-math.Log(256)) > 0.3 {
		t.Errorf("held-out loss of fresh weights %v", l)
	}
	pid := sup.State().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // it comes back and goes on
		t.Fatal(err)
	}
	if o := r.run(r.task("c", trainerv1.Train, 2, time.Minute)); o.Result.Steps != 2 || sup.State().PID == pid {
		t.Errorf("%+v, pid %d", o.Result, pid)
	}
	sup.Stop(context.Background())
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCommandSaysWhatIsMissing(t *testing.T) {
	for args, want := range map[string]string{
		"":                              "--socket",
		"--socket=x":                    "--data",
		"--socket=x --data=/none":       "/none",
		"--socket=x --data=a --files=b": "exclude each other",
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "TEST_TRAINER_ARGS="+strings.Join(append(strings.Fields(args), "--seed=1"), "\n"))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}
