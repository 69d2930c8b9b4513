package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

// Causes to cancel Run's context with. Any other cause counts as ErrAbort.
var (
	// ErrFinish: the trainer is to post what it has; Run keeps waiting for it.
	ErrFinish = errors.New("finish")
	// ErrAbort: the result is not wanted; Run returns at once.
	ErrAbort = errors.New("abort")
	// ErrBusy: a task is running already.
	ErrBusy = errors.New("trainer: a task is running already")
)

// maxTakes is how often a trainer may take the same task, having died with it
// or missed the answer, until the task counts as the culprit.
const maxTakes = 3

// FinishBy is a cause like ErrFinish that gives the trainer until by at the
// latest, which a drain with its own deadline needs.
func FinishBy(by time.Time, reason string) error { return &finishBy{by, reason} }

type finishBy struct {
	by     time.Time
	reason string
}

func (f *finishBy) Error() string        { return f.reason }
func (f *finishBy) Is(target error) bool { return target == ErrFinish }

// FailureError is a task that ended without a result.
type FailureError struct {
	Task  string
	Round uint64
	// Reason is TrainerFailed, TrainerTimeout, or WaitingForTrainer when no
	// trainer ever took the task.
	Reason  v1alpha1.Reason
	Message string
}

func (e *FailureError) Error() string {
	return fmt.Sprintf("trainer: round %d, task %s: %s: %s", e.Round, e.Task, e.Reason, e.Message)
}

// Outcome is a task that ended with a result.
type Outcome struct {
	// Result as the trainer posted it; Path, where given, is absolute, was a
	// regular file, and lies inside the work folder.
	Result trainerv1.Result
	// TakenAt and EndedAt bound the trainer's work.
	TakenAt, EndedAt time.Time
	work             string
}

// Seconds from the moment the trainer took the task to its result.
func (o Outcome) Seconds() float64 { return o.EndedAt.Sub(o.TakenAt).Seconds() }

// Open opens the result's file, refusing to leave the work folder even if the
// trainer has swapped it for a symlink since.
func (o Outcome) Open() (*os.File, error) {
	if o.Result.Path == "" {
		return nil, errors.New("trainer: the result has no file")
	}
	rel, err := filepath.Rel(o.work, o.Result.Path)
	if err != nil {
		return nil, fmt.Errorf("trainer: result %s: %w", o.Result.Path, err)
	}
	return os.OpenInRoot(o.work, rel)
}

// run is a task in flight. Its fields are guarded by Server.mu.
type run struct {
	task     trainerv1.Task
	ctx      context.Context
	takes    int
	takenAt  time.Time
	told     time.Time // when it was first answered finish or abort
	seen     time.Time // last sign of life of the trainer
	progress *trainerv1.Progress
	over     bool
	wake     chan struct{} // cap 1: the deadline or the progress changed
	done     chan verdict  // cap 1
	aborted  chan struct{} // closed by Abort
	reason   string        // why aborted
}

type verdict struct {
	result trainerv1.Result
	at     time.Time
	err    *FailureError
}

// ending is how a task that is no more ended.
type ending int

const (
	endedResult ending = iota + 1
	endedFailure
	endedAborted
	endedLost
)

// endedTasks remembers the last tasks, so that a late answer is told why.
type endedTasks struct {
	order []string
	state map[string]ending
}

func (e *endedTasks) add(id string, how ending) {
	const keep = 64
	if _, known := e.state[id]; !known {
		if e.order = append(e.order, id); len(e.order) > keep {
			delete(e.state, e.order[0])
			e.order = e.order[1:]
		}
	}
	e.state[id] = how
}

var taskID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func (s *Server) check(t trainerv1.Task) error {
	if !taskID.MatchString(t.ID) {
		return fmt.Errorf("trainer: task id %q must match %s", t.ID, taskID)
	}
	if t.Kind != trainerv1.Train && t.Kind != trainerv1.Evaluate {
		return fmt.Errorf("trainer: task %s has unknown kind %q", t.ID, t.Kind)
	}
	if t.StopAt.IsZero() {
		return fmt.Errorf("trainer: task %s has no stop time", t.ID)
	}
	if t.ModelPath == "" || (t.Kind == trainerv1.Train && t.ResultPath == "") {
		return fmt.Errorf("trainer: task %s lacks its model or result path", t.ID)
	}
	return nil
}

// Run hands one task to the trainer and waits for its end. It returns the
// result, a *FailureError (the trainer failed, fell silent, was late or never
// came), ErrBusy, or ctx's cause after an abort.
//
// When ctx is cancelled with ErrFinish (or FinishBy), the next progress is
// answered finish and Run waits on, until the task's StopAt plus Grace at the
// latest. With any other cause the next progress is answered abort and Run
// returns at once. From StopAt on every progress is answered finish.
// onProgress runs on the caller's goroutine; it may miss reports but not the
// order of them. It may be nil.
func (s *Server) Run(ctx context.Context, task trainerv1.Task, onProgress func(trainerv1.Progress)) (Outcome, error) {
	if err := s.check(task); err != nil {
		return Outcome{}, err
	}
	r := &run{
		task: task, ctx: ctx,
		wake: make(chan struct{}, 1), done: make(chan verdict, 1), aborted: make(chan struct{}),
	}
	s.mu.Lock()
	if s.current != nil {
		s.mu.Unlock()
		return Outcome{}, fmt.Errorf("%w: %s", ErrBusy, s.current.task.ID)
	}
	delete(s.ended.state, task.ID)
	s.current = r
	s.wake()
	s.mu.Unlock()

	ended := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case v := <-r.done: // before all else: a posted result is never dropped
			return s.close(r, v)
		default:
		}
		select {
		case v := <-r.done:
			return s.close(r, v)
		case <-r.aborted:
			return Outcome{}, s.drop(r, fmt.Errorf("%w: %s", ErrAbort, r.reason))
		case <-ended:
			if cause := context.Cause(ctx); !errors.Is(cause, ErrFinish) {
				return Outcome{}, s.drop(r, cause)
			}
			ended = nil
		case <-r.wake:
			if p := s.latest(r); p != nil && onProgress != nil {
				onProgress(*p)
			}
		case <-timer.C:
		}
		wait, err := s.judge(r, time.Now())
		if err != nil {
			s.stalled(err)
			return Outcome{}, err
		}
		timer.Reset(wait)
	}
}

// Abort ends the running task, if any, as ErrAbort would. It is for the
// caller that has cancelled with ErrFinish and can wait no longer.
func (s *Server) Abort(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.current; r != nil && !r.over {
		r.over, r.reason = true, reason
		s.ended.add(r.task.ID, endedAborted)
		close(r.aborted)
	}
}

func (s *Server) latest(r *run) *trainerv1.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := r.progress
	r.progress = nil
	return p
}

// close frees the place for the next task and turns the verdict over.
func (s *Server) close(r *run, v verdict) (Outcome, error) {
	s.mu.Lock()
	s.current = nil
	late := v.err != nil && v.err.Reason == v1alpha1.ReasonTrainerTimeout
	if late {
		s.watch(r, true)
	}
	s.mu.Unlock()
	if late {
		s.stalled(v.err)
	}
	if v.err != nil {
		return Outcome{}, v.err
	}
	return Outcome{Result: v.result, TakenAt: r.takenAt, EndedAt: v.at, work: s.work}, nil
}

// drop forgets the task; its trainer hears abort at its next progress.
func (s *Server) drop(r *run, cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.over = true
	s.ended.add(r.task.ID, endedAborted)
	s.current = nil
	s.watch(r, false)
	return fmt.Errorf("trainer: round %d, task %s dropped: %w", r.task.Round, r.task.ID, cause)
}

// judge decides whether the task is lost at now, else how long until it could be.
func (s *Server) judge(r *run, now time.Time) (time.Duration, *FailureError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.over { // the verdict is in r.done or r.aborted already
		return 0, nil
	}
	lost := func(reason v1alpha1.Reason, format string, a ...any) (time.Duration, *FailureError) {
		r.over = true
		s.ended.add(r.task.ID, endedLost)
		s.current = nil
		s.watch(r, reason == v1alpha1.ReasonTrainerTimeout)
		return 0, s.failure(r, reason, fmt.Sprintf(format, a...))
	}
	last := r.task.StopAt.Add(s.opts.Grace)
	finishing := errors.Is(context.Cause(r.ctx), ErrFinish)
	var f *finishBy
	if errors.As(context.Cause(r.ctx), &f) && f.by.Before(last) {
		last = f.by
	}
	if r.takes == 0 {
		if finishing {
			return lost(v1alpha1.ReasonWaitingForTrainer, "the task was called back before a trainer took it")
		}
		if !now.Before(r.task.StopAt) {
			return lost(v1alpha1.ReasonWaitingForTrainer, "no trainer took the task before its stop time: is one connected to %s?", s.opts.SocketPath)
		}
		return r.task.StopAt.Sub(now), nil
	}
	if !now.Before(last) {
		return lost(v1alpha1.ReasonTrainerTimeout, "no result by %s, the last sign of life was %s ago",
			last.UTC().Format(time.RFC3339), now.Sub(r.seen).Round(time.Second))
	}
	silentAt := r.seen.Add(s.opts.StallTimeout)
	if !now.Before(silentAt) {
		return lost(v1alpha1.ReasonTrainerTimeout, "stalled: neither progress nor result for %s", s.opts.StallTimeout)
	}
	return min(last.Sub(now), silentAt.Sub(now)), nil
}

func (r *run) failure(reason v1alpha1.Reason, message string) *FailureError {
	return &FailureError{Task: r.task.ID, Round: r.task.Round, Reason: reason, Message: message}
}

// failure is r.failure with what the trainer wrote last, where it did not say itself
// what is wrong.
func (s *Server) failure(r *run, reason v1alpha1.Reason, message string) *FailureError {
	if s.opts.LastWords != nil && r.takes > 0 {
		if words := s.opts.LastWords(); words != "" {
			message += "; it wrote last: " + strings.ToValidUTF8(words[:min(len(words), maxReason/2)], "")
		}
	}
	return r.failure(reason, message)
}

func (s *Server) stalled(err *FailureError) {
	if err.Reason == v1alpha1.ReasonTrainerTimeout && s.opts.OnStall != nil {
		s.opts.OnStall(err.Message)
	}
}

// directive answers a progress at now.
func (r *run) directive(p trainerv1.Progress, now time.Time) trainerv1.Directive {
	if cause := context.Cause(r.ctx); cause != nil {
		if errors.Is(cause, ErrFinish) {
			return trainerv1.Directive{Action: trainerv1.Finish, Reason: cause.Error()}
		}
		return trainerv1.Directive{Action: trainerv1.Abort, Reason: cause.Error()}
	}
	if !now.Before(r.task.StopAt) {
		return trainerv1.Directive{Action: trainerv1.Finish, Reason: "the stop time is here"}
	}
	if r.task.MaxSteps > 0 && p.Steps >= r.task.MaxSteps {
		return trainerv1.Directive{Action: trainerv1.Finish, Reason: "the step budget is used up"}
	}
	return trainerv1.Directive{Action: trainerv1.Continue}
}

func (r *run) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
