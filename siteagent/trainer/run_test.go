package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

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
		if len(r.stalled()) != 1 {
			t.Errorf("stalls %q", r.stalled())
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
