package agent

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
	"girassol.dev/siteagent/hardware"
	"girassol.dev/siteagent/replica"
	"girassol.dev/siteagent/trainer"
	"girassol.dev/siteagent/trainer/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var small = []tensor.Spec{
	{Name: "weight", DType: tensor.F32, Shape: []int64{64, 80}, Role: tensor.Parameter},
	{Name: "bias", DType: tensor.F32, Shape: []int64{80}, Role: tensor.Parameter},
	{Name: "half", DType: tensor.BF16, Shape: []int64{16}, Role: tensor.Parameter},
	{Name: "norm.running_var", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Buffer},
	{Name: "norm.batches", DType: tensor.I64, Role: tensor.Integer},
}

// large makes payloads of more than one chunk.
var large = []tensor.Spec{{Name: "weight", DType: tensor.F32, Shape: []int64{640, 640}, Role: tensor.Parameter}}

// person is a user's trainer, over the socket.
type person struct {
	t *testing.T

	mu         sync.Mutex
	tasks      []trainerv1.Task
	directives []trainerv1.Directive
	// start and end of the last train task.
	start, end []float32
	// use is what a train task consumes of its data; nil: nothing.
	use func(trainerv1.Task) []trainerv1.DataRange
	// mutate spoils a result. fail posts a failure.
	mutate func(theta []float32)
	fail   string
	seed   string
	offers int
	// facts are told with the progress; result is a file that takes the place of
	// what was trained.
	facts  map[string]string
	result string
}

// handle trains by adding noise: up to the task's steps, else until told.
func (p *person) handle(ctx context.Context, task trainerv1.Task, report client.Report) (trainerv1.Result, error) {
	p.mu.Lock()
	p.tasks = append(p.tasks, task)
	mutate, fail := p.mutate, p.fail
	p.mu.Unlock()
	if fail != "" {
		return trainerv1.Result{}, errors.New(fail)
	}
	f, err := tensor.OpenFile(task.ModelPath)
	if err != nil {
		return trainerv1.Result{}, err
	}
	defer f.Close()
	st, err := tensor.LoadState(f)
	if err != nil {
		return trainerv1.Result{}, err
	}
	defer st.Close()
	loss := 1.5
	if task.Kind == trainerv1.Evaluate {
		return trainerv1.Result{Samples: 11, Loss: &loss}, nil
	}
	start := slices.Clone(st.Theta)
	steps := uint64(0)
	for task.MaxSteps == 0 || steps < task.MaxSteps {
		steps++
		for i := range st.Theta {
			st.Theta[i] += 0.01 * float32(math.Sin(float64(i)*float64(steps)))
		}
		d := report(trainerv1.Progress{Steps: steps, Samples: steps * 4, Loss: &loss, Trainer: p.facts})
		p.mu.Lock()
		p.directives = append(p.directives, d)
		p.mu.Unlock()
		if d.Action == trainerv1.Abort {
			return trainerv1.Result{}, client.ErrAborted
		}
		if d.Action == trainerv1.Finish {
			break
		}
		select {
		case <-ctx.Done():
			return trainerv1.Result{}, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	for i, s := range st.Layout.Tensors() { // as the file will hold it
		if s.Role == tensor.Parameter && s.DType == tensor.BF16 {
			for j := range s.Elements() {
				v := &st.Theta[st.Layout.Offset(i)+j]
				*v = math.Float32frombits(math.Float32bits(*v) &^ 0xffff)
			}
		}
	}
	if mutate != nil {
		mutate(st.Theta)
	}
	if p.result != "" {
		b, err := os.ReadFile(p.result)
		if err == nil {
			err = os.WriteFile(task.ResultPath, b, 0o600)
		}
		return trainerv1.Result{Path: task.ResultPath, Steps: steps, Samples: steps * 4}, err
	}
	p.mu.Lock()
	p.start, p.end = start, slices.Clone(st.Theta)
	p.mu.Unlock()
	var used []trainerv1.DataRange
	if p.use != nil {
		used = p.use(task)
	}
	return trainerv1.Result{Path: task.ResultPath, Steps: steps, Samples: steps * 4, Loss: &loss, Consumed: used}, writeModel(task.ResultPath, st, st.Theta)
}

func (p *person) taken() []trainerv1.Task {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tasks)
}

// rig is one agent process with its trainer.
type rig struct {
	t       *testing.T
	c       *coordinator
	dir     string
	person  *person
	agent   *Agent
	replica *replica.Replica
	result  chan error
	kill    context.CancelFunc
	once    sync.Once
	stopped func()
}

// launch starts an agent on the coordinator. A dir of an earlier one makes it
// its successor.
func launch(t *testing.T, c *coordinator, dir string, p *person, options ...func(*Config)) *rig {
	t.Helper()
	if dir == "" {
		d, err := os.MkdirTemp("", "g") // short: it holds a socket
		must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(d) })
		dir = d
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	store, err := replica.Open(filepath.Join(dir, "replica"), "lm", log)
	must(t, err)
	api, err := trainer.New(trainer.Options{SocketPath: filepath.Join(dir, "run", "s"), WorkDir: filepath.Join(dir, "work"), Log: log})
	must(t, err)
	cfg := Config{
		Federation: "lm", Site: "porto", Node: "n1", Version: "test", Hardware: hardware.Facts{Vendor: hardware.CPU, CPUs: 1},
		Dial:    func() (*grpc.ClientConn, error) { return wire.Dial(c.address, wire.Options{}) },
		Trainer: api, Replica: store, CursorPath: filepath.Join(dir, "events.json"),
		RetryInitial: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond, StableAfter: time.Second, WelcomeTimeout: time.Minute, Log: log,
	}
	for _, o := range options {
		o(&cfg)
	}
	a, err := New(cfg)
	must(t, err)
	r := &rig{t: t, c: c, dir: dir, person: p, agent: a, replica: store, result: make(chan error, 1)}
	ctx, kill := context.WithCancel(context.Background())
	r.kill = kill
	aside, end := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = api.Serve(aside) })
	if p != nil {
		cl := client.New(api.SocketPath())
		group.Go(func() {
			loop := client.Loop{Client: cl, Handle: p.handle, Wait: time.Second, Log: log}
			if p.seed != "" {
				loop.Seed = func() (string, error) { return p.offer(api.WorkDir()) }
			}
			_ = loop.Run(aside)
			cl.Close()
		})
	}
	group.Go(func() { r.result <- a.Run(ctx) })
	r.stopped = func() {
		kill()
		end()
		group.Wait()
		_ = store.Close()
	}
	t.Cleanup(r.stop)
	return r
}

// stop is kill -9, as far as one process can play it.
func (r *rig) stop() { r.once.Do(r.stopped) }

// ended waits for Run's own end.
func (r *rig) ended() error {
	r.t.Helper()
	select {
	case err := <-r.result:
		return err
	case <-time.After(2 * time.Minute):
		r.t.Fatal("the agent does not end")
		return nil
	}
}

func (p *person) offer(dir string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offers++
	path := filepath.Join(dir, "seed.safetensors")
	b, err := os.ReadFile(p.seed)
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	return path, err
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	_, _ = os.Stderr.Write(p)
	return len(p), nil
}

// residual is u as the newest generation on disk has it, what is pending not
// subtracted.
func residual(t *testing.T, dir string, n int) []float32 {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "replica", "gen-*"))
	must(t, err)
	slices.Sort(all)
	f, err := tensor.OpenFile(filepath.Join(all[len(all)-1], "residual.safetensors"))
	must(t, err)
	defer f.Close()
	u := make([]float32, n)
	must(t, f.ReadFloats("girassol.residual", u))
	return u
}

// errDown is a coordinator that is gone for now.
var errDown = status.Error(codes.Unavailable, "down")

// finished is what the trainer was told other than to go on.
func (p *person) finished() []trainerv1.Directive {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.directives), func(d trainerv1.Directive) bool { return d.Action == trainerv1.Continue })
}

func workLeft(t *testing.T, r *rig) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(r.dir, "work", "*.safetensors"))
	must(t, err)
	return left
}
