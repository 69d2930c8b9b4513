package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/tensor"
	siteapp "girassol.dev/siteagent/app"
	"girassol.dev/siteagent/trainer/client"
)

// The other roles in which the binary executes itself: a site's agent, and the
// trainer that it starts.
const (
	roleAgent   = "agent"
	roleTrainer = "trainer"
)

// runAgent is the child: a site agent that ends when its standard input does.
func runAgent(args []string, stderr io.Writer) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	cmd := siteapp.Command()
	cmd.SetArgs(args)
	cmd.SetErr(stderr)
	return siteapp.ExitCode(cmd.ExecuteContext(context.Background()))
}

// runTrainer is the grandchild, until SIGTERM: its steps take a time with noise.
func runTrainer(args []string, stderr io.Writer) int {
	t, err := newSlowed(args)
	if err != nil {
		fmt.Fprintln(stderr, "trainer:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := client.New(os.Getenv(trainerv1.EnvSocket))
	defer c.Close()
	_ = client.Loop{Client: c, Handle: t.handle}.Run(ctx) // it ends with ctx only
	return 0
}

// slowed is a trainer that waits instead of computing.
type slowed struct {
	step  time.Duration
	noise float64
	rng   *rand.Rand
}

// newSlowed takes the step time, the relative deviation and a seed.
func newSlowed(args []string) (*slowed, error) {
	if len(args) != 3 {
		return nil, fmt.Errorf("%d arguments, want a step time, a deviation and a seed", len(args))
	}
	step, err := time.ParseDuration(args[0])
	noise, err2 := strconv.ParseFloat(args[1], 64)
	seed, err3 := strconv.ParseUint(args[2], 10, 64)
	return &slowed{step: step, noise: noise, rng: rand.New(rand.NewPCG(seed, 1))}, errors.Join(err, err2, err3)
}

const (
	samplesPerStep = 8
	reportEvery    = 100 * time.Millisecond
)

func (t *slowed) handle(ctx context.Context, task trainerv1.Task, report client.Report) (trainerv1.Result, error) {
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
	res := trainerv1.Result{Path: task.ResultPath}
	reported := time.Now()
	due := reported
	for (task.MaxSteps == 0 || res.Steps < task.MaxSteps) && time.Until(task.StopAt) > 2*t.step {
		due = due.Add(time.Duration(float64(t.step) * max(0.1, 1+t.noise*t.rng.NormFloat64())))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return res, client.ErrAborted
		}
		res.Steps++
		res.Samples += samplesPerStep
		if time.Since(reported) < reportEvery {
			continue
		}
		reported = time.Now()
		d := report(trainerv1.Progress{Steps: res.Steps, Samples: res.Samples})
		if d.Action == trainerv1.Abort {
			return res, client.ErrAborted
		}
		if d.Action == trainerv1.Finish {
			break
		}
	}
	for i := range st.Theta {
		st.Theta[i] += float32(1e-4 * t.rng.NormFloat64())
	}
	return res, tensor.WriteFileAtomic(task.ResultPath, func(w io.Writer) error { return tensor.SaveState(w, st, false) })
}

// agentProcess is a running agent with its trainer.
type agentProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed when it has ended

	mu     sync.Mutex
	killed bool
}

// startAgent starts an agent with a slowed trainer; ended hears of its end unless
// it is killed.
func startAgent(ctx context.Context, addr, site, data string, ended context.CancelCauseFunc, trainer ...string) (*agentProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{roleAgent, "--coordinator", addr, "--federation", federationName, "--site", site, "--node", node, "--data", data,
		"--log-level", "warn", "--", self, roleTrainer}
	p := &agentProcess{cmd: exec.CommandContext(ctx, self, append(args, trainer...)...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the benchmark's
	var log bytes.Buffer
	p.cmd.Stderr = &log
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.killed {
			ended(fmt.Errorf("the agent of %s ended: %w\n%s", site, err, log.String()))
		}
	}()
	return p, nil
}

// kill ends the agent, and with it its trainer, at once.
func (p *agentProcess) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
	<-p.done
	_ = p.stdin.Close()
}
