package trainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/siteagent/environ"
)

// Phase is what a supervised trainer does.
type Phase string

// The phases of a supervised trainer.
const (
	Stopped Phase = "Stopped"
	Running Phase = "Running"
	// Backoff: it ended and is started again after a pause.
	Backoff Phase = "Backoff"
)

// SupervisorOptions say what to run and how patiently.
type SupervisorOptions struct {
	// Command and its arguments; never a shell line.
	Command []string
	// Env is added to the agent's own environment, of which nothing GIRASSOL_ is
	// handed on.
	Env []string
	// OnStart, where given, is called with each trainer's process number at once.
	OnStart func(pid int)
	// Dir to run in; empty: the agent's own.
	Dir string
	// SocketPath and WorkDir are handed on in the environment.
	SocketPath, WorkDir string
	Log                 *slog.Logger
	// StopGrace between SIGTERM and SIGKILL. 0: 10 s.
	StopGrace time.Duration
	// StableAfter so much time without an end the backoff starts anew. 0: 1 min.
	StableAfter time.Duration
	// MemoryLimit of all the trainer's processes together, in bytes of RAM; above it
	// they are killed and started again. It is looked at every MemoryEvery (0: 1 s).
	// 0: none. Linux only.
	MemoryLimit int64
	MemoryEvery time.Duration
	// InitialBackoff and MaxBackoff of the pause after an end. 0: 0.5 s and 30 s.
	InitialBackoff, MaxBackoff time.Duration
}

// State is a snapshot of a supervised trainer.
type State struct {
	Phase Phase
	// Reason says why it is not running, or why it was started again last.
	Reason string
	// Restarts so far, wanted ones included.
	Restarts uint64
	// Failures in a row, none of them after a stable run.
	Failures int
	PID      int
	Since    time.Time
	// Tail is the last lines that the trainer wrote.
	Tail []string
}

// Supervisor keeps one trainer process alive, in a process group of its own.
// The trainer dies with the agent, even when that is killed (Linux; elsewhere
// it notices the closed socket).
type Supervisor struct {
	opts SupervisorOptions
	log  *slog.Logger
	tail tail

	mu      sync.Mutex
	state   State
	cancel  context.CancelFunc // ends Run; nil while it does not run
	done    chan struct{}      // closed when Run has ended
	restart chan string        // cap 1
	hurry   chan struct{}      // cap 1: Stop's caller can wait no longer
}

// NewSupervisor checks the options; Run starts the trainer.
func NewSupervisor(o SupervisorOptions) (*Supervisor, error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return nil, errors.New("trainer: no command to run")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&o.StopGrace, 10 * time.Second}, {&o.StableAfter, time.Minute},
		{&o.MemoryEvery, time.Second}, {&o.InitialBackoff, 500 * time.Millisecond}, {&o.MaxBackoff, 30 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	return &Supervisor{opts: o, log: o.Log, restart: make(chan string, 1), hurry: make(chan struct{}, 1), state: State{Phase: Stopped}}, nil
}

// Run starts the trainer and starts it again whenever it ends, for ever, until
// ctx ends or Stop is called; then it ends the trainer's process group (SIGTERM,
// after StopGrace SIGKILL) and returns nil. It may run once at a time.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.cancel != nil {
		s.mu.Unlock()
		return errors.New("trainer: the supervisor runs already")
	}
	done := make(chan struct{})
	s.cancel, s.done = cancel, done
	s.mu.Unlock()
	defer func() {
		s.set(func(st *State) { st.Phase, st.PID = Stopped, 0 })
		s.mu.Lock()
		s.cancel = nil
		s.mu.Unlock()
		close(done)
	}()

	// The child's death signal is tied to the thread that forked it, so this
	// goroutine keeps its thread for as long as there are children.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(s.opts.InitialBackoff), backoff.WithMaxInterval(s.opts.MaxBackoff),
		backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.2), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		started := time.Now()
		why, wanted := s.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		stable := time.Since(started) >= s.opts.StableAfter
		if stable || wanted {
			pause.Reset()
		}
		wait := pause.NextBackOff()
		if wanted {
			wait = 0
		}
		s.set(func(st *State) {
			st.Phase, st.PID = Backoff, 0
			st.Restarts++
			switch {
			case wanted:
				st.Failures = 0
			case stable:
				st.Failures = 1
			default:
				st.Failures++
			}
			st.Reason = why
			if st.Failures > 1 {
				st.Reason = fmt.Sprintf("crash loop: ended %d times in a row, last: %s", st.Failures, why)
			}
		})
		st := s.State()
		s.log.Warn("trainer ended, starting it again", "reason", st.Reason, "pause", wait, "wrote_last", st.Tail)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// once runs the trainer until it ends or is ended, and says why and whether a
// restart was asked for.
func (s *Supervisor) once(ctx context.Context) (why string, wanted bool) {
	select { // a request that came while nothing ran is fulfilled by this start
	case <-s.restart:
	default:
	}
	select {
	case <-s.hurry:
	default:
	}
	s.tail.reset()
	cmd := exec.Command(s.opts.Command[0], s.opts.Command[1:]...)
	cmd.Dir = s.opts.Dir
	cmd.Env = append(environ.ForChildren(), s.opts.Env...)
	cmd.Env = append(cmd.Env, trainerv1.EnvSocket+"="+s.opts.SocketPath, trainerv1.EnvWorkDir+"="+s.opts.WorkDir)
	mark := markOf(s.opts.SocketPath, s.opts.WorkDir)
	if mark != "" {
		cmd.Env = append(cmd.Env, mark)
	}
	if n := killMarked(mark); n > 0 {
		s.log.Warn("an earlier trainer of this agent had left processes behind, they were killed", "processes", n)
	}
	out := &lines{each: func(l string) { s.line("stdout", l) }}
	errs := &lines{each: func(l string) { s.line("stderr", l) }}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = groupOf()
	// A grandchild that keeps the pipes open must not hold up the restart.
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Sprintf("cannot start %s: %v", s.opts.Command[0], err), false
	}
	pid := cmd.Process.Pid
	if s.opts.OnStart != nil {
		s.opts.OnStart(pid)
	}
	s.set(func(st *State) { st.Phase, st.PID = Running, pid })
	s.log.Info("trainer started", "pid", pid, "command", s.opts.Command[0])

	exited := make(chan exit, 1)
	go func() {
		err := reap(cmd, mark)
		out.flush()
		errs.flush()
		exited <- exit{err}
	}()
	for memory := s.weigh(); ; {
		select {
		case e := <-exited:
			return s.describe(e.err), false
		case why := <-s.restart:
			s.end(pid, exited)
			return "restarted: " + why, true
		case <-ctx.Done():
			s.end(pid, exited)
			return "stopped", true
		case <-memory:
			if over := s.overweight(pid); over != "" {
				kill(family(pid))
				_ = syscall.Kill(-pid, syscall.SIGKILL)
				<-exited
				return over, false
			}
			memory = s.weigh()
		}
	}
}

// weigh is when to look at the trainer's memory; never without a limit.
func (s *Supervisor) weigh() <-chan time.Time {
	if s.opts.MemoryLimit <= 0 {
		return nil
	}
	return time.After(s.opts.MemoryEvery)
}

// overweight says so if the trainer takes more memory than it may.
func (s *Supervisor) overweight(pid int) string {
	used := memory(pid, s.opts.MemoryLimit)
	if used <= s.opts.MemoryLimit {
		return ""
	}
	const gib = 1 << 30
	return fmt.Sprintf("killed: its processes took %.2f GiB of memory, allowed are %.2f: use smaller batches or fewer loader workers, or raise the limit",
		float64(used)/gib, float64(s.opts.MemoryLimit)/gib)
}

// exit is how a trainer ended; nil is exit code 0.
type exit struct{ err error }

// end asks the group to leave, then makes it. Processes that have left the group,
// as torchrun's workers do, go with it.
func (s *Supervisor) end(pid int, exited <-chan exit) {
	all := family(pid)
	defer func() { kill(all) }()
	_ = syscall.Kill(-pid, syscall.SIGTERM)
	grace := time.NewTimer(s.opts.StopGrace)
	defer grace.Stop()
	select {
	case <-exited:
		return
	case <-s.hurry:
	case <-grace.C:
	}
	s.log.Warn("trainer ignores SIGTERM, killing it", "pid", pid, "grace", s.opts.StopGrace)
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	<-exited
}

func (s *Supervisor) describe(err error) string {
	why := "exit status 0"
	if err != nil {
		why = err.Error()
	}
	if t := s.tail.lines(); len(t) > 0 {
		why += ": " + t[len(t)-1]
	}
	return why
}

// LastWords is how the trainer ended last, if it did, and what it wrote since.
func (s *Supervisor) LastWords() string {
	const most = 5
	st := s.State()
	words := strings.Join(st.Tail[max(0, len(st.Tail)-most):], " | ")
	switch {
	case st.Reason == "":
		return words
	case words == "":
		return st.Reason
	}
	return st.Reason + "; since then: " + words
}

// Restart ends the running trainer and starts a new one without a pause; for
// one that has stalled. It does not wait, and does nothing while none runs.
func (s *Supervisor) Restart(reason string) {
	select {
	case s.restart <- reason:
	default: // one is on its way
	}
}

// Stop ends the trainer and Run and waits for both. The group is killed after
// StopGrace, or when ctx ends if that is sooner.
func (s *Supervisor) Stop(ctx context.Context) {
	s.mu.Lock()
	cancel, done := s.cancel, s.done
	s.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	select {
	case s.hurry <- struct{}{}:
	default:
	}
	<-done
}

// State is what the trainer does now and why.
func (s *Supervisor) State() State {
	s.mu.Lock()
	st := s.state
	s.mu.Unlock()
	st.Tail = s.tail.lines()
	return st
}

func (s *Supervisor) set(change func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
	s.state.Since = time.Now()
}

func (s *Supervisor) line(stream, text string) {
	s.tail.add(text)
	s.log.Info("trainer says", "stream", stream, "line", strings.ToValidUTF8(text, "\uFFFD"))
}
