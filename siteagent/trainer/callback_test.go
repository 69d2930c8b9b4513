package trainer

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

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
