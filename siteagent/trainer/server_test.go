package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

// rig is a server without a socket, under synctest's clock.
type rig struct {
	*testing.T
	s      *Server
	h      http.Handler
	stalls []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t}
	dir := t.TempDir()
	s, err := New(Options{
		SocketPath: filepath.Join(dir, "s", "t.sock"), WorkDir: filepath.Join(dir, "work"),
		Grace: 10 * time.Second, StallTimeout: 20 * time.Second,
		OnStall: func(why string) { r.stalls = append(r.stalls, why) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.s, r.h = s, s.Handler()
	return r
}

func (r *rig) call(method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

// want calls and checks the status; it returns the body.
func (r *rig) want(status int, method, path, body string) string {
	r.Helper()
	w := r.call(method, path, body)
	if w.Code != status {
		r.Fatalf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, status)
	}
	if status >= 400 {
		var p trainerv1.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Error == "" {
			r.Fatalf("%s %s: no problem in %q", method, path, w.Body)
		}
	}
	return w.Body.String()
}

func (r *rig) progress(id string, steps int) trainerv1.Action {
	r.Helper()
	var d trainerv1.Directive
	body := r.want(200, "POST", "/v1/tasks/"+id+"/progress", fmt.Sprintf(`{"steps":%d,"samples":%d}`, steps, steps))
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		r.Fatal(err)
	}
	return d.Action
}

func (r *rig) weights(name string) string {
	r.Helper()
	path := filepath.Join(r.s.WorkDir(), name)
	if err := os.WriteFile(path, []byte("weights"), 0o600); err != nil {
		r.Fatal(err)
	}
	return path
}

func (r *rig) task(id string, stopIn time.Duration) trainerv1.Task {
	return trainerv1.Task{
		ID: id, Kind: trainerv1.Train, Round: 7, StopAt: time.Now().Add(stopIn),
		ModelPath: filepath.Join(r.s.WorkDir(), "m"), ResultPath: filepath.Join(r.s.WorkDir(), "r"),
	}
}

type ended struct {
	Outcome
	err error
	at  time.Time
}

// start runs the task in the background.
func (r *rig) start(ctx context.Context, t trainerv1.Task, seen func(trainerv1.Progress)) <-chan ended {
	c := make(chan ended, 1)
	go func() {
		o, err := r.s.Run(ctx, t, seen)
		c <- ended{o, err, time.Now()}
	}()
	synctest.Wait()
	return c
}

func (r *rig) lost(e ended, reason v1alpha1.Reason, in string) {
	r.Helper()
	var f *FailureError
	if !errors.As(e.err, &f) || f.Reason != reason || f.Round != 7 || !strings.Contains(f.Message, in) {
		r.Fatalf("ended with %v, want %s with %q", e.err, reason, in)
	}
}

func TestTaskGoesOutAndItsResultComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		poll := make(chan string, 1)
		go func() { poll <- r.want(200, "GET", "/v1/task?wait=30s", "") }()
		synctest.Wait()
		if !r.s.Attached() {
			t.Error("a polling trainer is not attached")
		}
		var seen []trainerv1.Progress
		end := r.start(context.Background(), r.task("r7", time.Minute), func(p trainerv1.Progress) { seen = append(seen, p) })
		var got trainerv1.Task
		if err := json.Unmarshal([]byte(<-poll), &got); err != nil {
			t.Fatal(err)
		}
		if got.ID != "r7" || got.StopInSeconds != 60 {
			t.Errorf("task %+v", got)
		}
		time.Sleep(5 * time.Second)
		if a := r.progress("r7", 3); a != trainerv1.Continue {
			t.Errorf("action %s", a)
		}
		synctest.Wait()
		path := r.weights("r")
		body := fmt.Sprintf(`{"path":%q,"steps":4,"samples":9,"loss":1.5,"metrics":{"x":1}}`, path)
		r.want(204, "POST", "/v1/tasks/r7/result", body)
		e := <-end
		if e.err != nil || e.Result.Path != path || e.Result.Samples != 9 || e.Seconds() != 5 {
			t.Errorf("%+v, %v", e.Outcome, e.err)
		}
		if len(seen) != 1 || seen[0].Steps != 3 {
			t.Errorf("progress seen: %v", seen)
		}
		f, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		r.want(204, "POST", "/v1/tasks/r7/result", body) // the answer may have been lost
		r.want(409, "POST", "/v1/tasks/r7/progress", `{"steps":5,"samples":5}`)
		r.want(409, "POST", "/v1/tasks/r7/failure", `{"reason":"late"}`)
		r.want(404, "POST", "/v1/tasks/other/progress", `{"steps":5,"samples":5}`)
	})
}

func TestNoTaskIsNoContentAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for wait, want := range map[string]time.Duration{"": 0, "?wait=3s": 3 * time.Second, "?wait=5h": MaxWait} {
			start := time.Now()
			r.want(204, "GET", "/v1/task"+wait, "")
			if got := time.Since(start); got != want {
				t.Errorf("%q waited %v, want %v", wait, got, want)
			}
		}
		r.want(400, "GET", "/v1/task?wait=soon", "")
		r.want(400, "GET", "/v1/task?wait=-1s", "")
	})
}

func TestEveryProgressFromTheStopTimeOnIsAnsweredFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		end := r.start(context.Background(), r.task("a", 10*time.Second), nil)
		r.want(200, "GET", "/v1/task", "")
		time.Sleep(9999 * time.Millisecond)
		if a := r.progress("a", 1); a != trainerv1.Continue {
			t.Errorf("before: %s", a)
		}
		time.Sleep(time.Millisecond)
		if a := r.progress("a", 2); a != trainerv1.Finish {
			t.Errorf("at the stop time: %s", a)
		}
		r.want(204, "POST", "/v1/tasks/a/result", fmt.Sprintf(`{"path":%q,"steps":2,"samples":2}`, r.weights("r")))
		if e := <-end; e.err != nil {
			t.Error(e.err)
		}
	})
}

func TestStepBudgetUsedUpIsAnsweredFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		task := r.task("a", time.Minute)
		task.MaxSteps = 5
		end := r.start(context.Background(), task, nil)
		r.want(200, "GET", "/v1/task", "")
		if a, b := r.progress("a", 4), r.progress("a", 5); a != trainerv1.Continue || b != trainerv1.Finish {
			t.Errorf("%s, %s", a, b)
		}
		r.want(204, "POST", "/v1/tasks/a/failure", `{"reason":"enough"}`)
		r.lost(<-end, v1alpha1.ReasonTrainerFailed, "enough")
	})
}

func TestTrainerThatPostsNothingByStopPlusGraceIsTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		task := r.task("a", 15*time.Second)
		end := r.start(context.Background(), task, nil)
		r.want(200, "GET", "/v1/task", "")
		time.Sleep(10 * time.Second)
		r.progress("a", 1)
		e := <-end
		r.lost(e, v1alpha1.ReasonTrainerTimeout, "no result by")
		if got := e.at.Sub(task.StopAt); got != 10*time.Second {
			t.Errorf("%v after the stop time", got)
		}
		if len(r.stalls) != 1 {
			t.Errorf("stalls %q", r.stalls)
		}
		r.want(409, "POST", "/v1/tasks/a/progress", `{"steps":1,"samples":1}`)
		r.want(409, "POST", "/v1/tasks/a/result", `{"steps":0,"samples":0}`)
		// The place is free again.
		end = r.start(context.Background(), r.task("b", 15*time.Second), nil)
		r.want(200, "GET", "/v1/task", "")
		r.want(204, "POST", "/v1/tasks/b/failure", `{"reason":"x"}`)
		<-end
	})
}

func TestSilentTrainerIsStalledLongBeforeItsStopTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		start := time.Now()
		end := r.start(context.Background(), r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		time.Sleep(15 * time.Second)
		r.progress("a", 1)
		if !r.s.Attached() {
			t.Error("a trainer at work is not attached")
		}
		e := <-end
		r.lost(e, v1alpha1.ReasonTrainerTimeout, "stalled")
		if got := e.at.Sub(start); got != 35*time.Second {
			t.Errorf("stalled after %v", got)
		}
		if r.s.Attached() {
			t.Error("a silent trainer is attached")
		}
	})
}

func TestTaskThatNobodyTakesWaitsUntilItsStopTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		task := r.task("a", 15*time.Second)
		e := <-r.start(context.Background(), task, nil)
		r.lost(e, v1alpha1.ReasonWaitingForTrainer, r.s.SocketPath())
		if !e.at.Equal(task.StopAt) {
			t.Errorf("ended at %v", e.at)
		}
		r.want(204, "GET", "/v1/task", "")
	})
}

func TestFinishKeepsWaitingForTheResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		end := r.start(ctx, r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		cancel(fmt.Errorf("site drains: %w", ErrFinish))
		body := r.want(200, "POST", "/v1/tasks/a/progress", `{"steps":1,"samples":1}`)
		if !strings.Contains(body, `"finish"`) || !strings.Contains(body, "site drains") {
			t.Errorf("directive %s", body)
		}
		time.Sleep(19 * time.Second)
		r.want(204, "POST", "/v1/tasks/a/result", fmt.Sprintf(`{"path":%q,"steps":1,"samples":1}`, r.weights("r")))
		if e := <-end; e.err != nil || e.Result.Steps != 1 {
			t.Errorf("%+v", e)
		}
	})
}

func TestFinishByBoundsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		end := r.start(ctx, r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		by := time.Now().Add(4 * time.Second)
		cancel(FinishBy(by, "drain"))
		e := <-end
		r.lost(e, v1alpha1.ReasonTrainerTimeout, "no result")
		if !e.at.Equal(by) {
			t.Errorf("ended at %v, want %v", e.at, by)
		}
	})
}

func TestFinishBeforeAnyTrainerTookTheTaskReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		start := time.Now()
		end := r.start(ctx, r.task("a", time.Hour), nil)
		cancel(ErrFinish)
		e := <-end
		r.lost(e, v1alpha1.ReasonWaitingForTrainer, "called back")
		if !e.at.Equal(start) {
			t.Error("it waited")
		}
	})
}

func TestAbortReturnsAtOnceAndTheTrainerHearsIt(t *testing.T) {
	for name, abort := range map[string]func(*rig, context.CancelCauseFunc){
		"cause":        func(_ *rig, cancel context.CancelCauseFunc) { cancel(ErrAbort) },
		"plain cancel": func(_ *rig, cancel context.CancelCauseFunc) { cancel(nil) },
		"after finish": func(r *rig, cancel context.CancelCauseFunc) { cancel(ErrFinish); synctest.Wait(); r.s.Abort("late") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				ctx, cancel := context.WithCancelCause(context.Background())
				start := time.Now()
				end := r.start(ctx, r.task("a", time.Hour), nil)
				r.want(200, "GET", "/v1/task", "")
				abort(r, cancel)
				e := <-end
				if e.err == nil || errors.As(e.err, new(*FailureError)) || !e.at.Equal(start) {
					t.Errorf("%v after %v", e.err, e.at.Sub(start))
				}
				if a := r.progress("a", 1); a != trainerv1.Abort {
					t.Errorf("action %s", a)
				}
				r.want(409, "POST", "/v1/tasks/a/result", fmt.Sprintf(`{"path":%q,"steps":1,"samples":1}`, r.weights("r")))
			})
		})
	}
}

func TestTrainerThatLostItsTaskGetsItAgainButNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		end := r.start(context.Background(), r.task("a", time.Hour), nil)
		for range maxTakes {
			r.want(200, "GET", "/v1/task", "")
		}
		r.want(204, "GET", "/v1/task", "")
		r.lost(<-end, v1alpha1.ReasonTrainerFailed, "3 times")
	})
}

func TestTrainerThatDiedWhileFinishingDoesNotHoldUpTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		start := time.Now()
		end := r.start(ctx, r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		cancel(ErrFinish)
		r.want(204, "GET", "/v1/task", "") // a new process asks
		e := <-end
		r.lost(e, v1alpha1.ReasonTrainerFailed, "without ending it")
		if !e.at.Equal(start) {
			t.Error("it waited")
		}
	})
}

func TestOneTaskAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancel(context.Background())
		end := r.start(ctx, r.task("a", time.Hour), nil)
		if _, err := r.s.Run(ctx, r.task("b", time.Hour), nil); !errors.Is(err, ErrBusy) {
			t.Errorf("second task: %v", err)
		}
		cancel()
		<-end
	})
}

func TestTasksThatCannotBeServedAreRefused(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(*trainerv1.Task){
		"id":     func(t *trainerv1.Task) { t.ID = "a/b" },
		"no id":  func(t *trainerv1.Task) { t.ID = "" },
		"kind":   func(t *trainerv1.Task) { t.Kind = "dance" },
		"stop":   func(t *trainerv1.Task) { t.StopAt = time.Time{} },
		"model":  func(t *trainerv1.Task) { t.ModelPath = "" },
		"result": func(t *trainerv1.Task) { t.ResultPath = "" },
	} {
		task := r.task("a", time.Hour)
		change(&task)
		if _, err := r.s.Run(context.Background(), task, nil); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestFirstWeightsAreTakenOnlyWhenWantedAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		path := r.weights("seed")
		body := fmt.Sprintf(`{"path":%q}`, path)
		r.want(409, "PUT", "/v1/model", body)
		poll := make(chan time.Duration, 1)
		go func() {
			start := time.Now()
			r.want(204, "GET", "/v1/task?wait=30s", "")
			poll <- time.Since(start)
		}()
		time.Sleep(time.Second)
		r.s.SetSeedWanted(true)
		if got := <-poll; got != time.Second {
			t.Errorf("the poll ended after %v, so the offer is late", got)
		}
		r.want(400, "PUT", "/v1/model", `{"path":"/etc/passwd"}`)
		r.want(204, "PUT", "/v1/model", body)
		r.want(409, "PUT", "/v1/model", body)
		r.s.SetSeedWanted(true) // the first was never fetched
		r.want(204, "PUT", "/v1/model", body)
		if got := <-r.s.Seeds(); got.Path != path {
			t.Errorf("seed %+v", got)
		}
	})
}

func TestWaitAttachedReturnsWithTheFirstPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.s.WaitAttached(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a trainer: %v", err)
		}
		waited := make(chan error, 1)
		go func() { waited <- r.s.WaitAttached(context.Background()) }()
		synctest.Wait()
		r.want(204, "GET", "/v1/task", "")
		if err := <-waited; err != nil {
			t.Error(err)
		}
		time.Sleep(attachGap)
		if r.s.Attached() {
			t.Error("still attached long after the last poll")
		}
	})
}

func TestPollThatHungUpDoesNotTakeTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, hangUp := context.WithCancel(context.Background())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			r.h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/v1/task?wait=30s", nil))
		}()
		synctest.Wait()
		hangUp()
		<-gone
		end := r.start(context.Background(), r.task("a", 3*time.Second), nil)
		r.lost(<-end, v1alpha1.ReasonWaitingForTrainer, "no trainer took")
	})
}
