package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

func TestTrainerThatGoesOnThoughToldToFinishIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.s.opts.LastWords = func() string { return "epoch 3 of 9" }
		ctx, cancel := context.WithCancelCause(context.Background())
		end := r.start(ctx, r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		cancel(fmt.Errorf("the round is void: %w", ErrFinish))
		for range 10 { // seconds, the grace
			if a := r.progress("a", 1); a != trainerv1.Finish {
				t.Fatalf("action %s", a)
			}
			time.Sleep(time.Second)
		}
		if a := r.progress("a", 1); a != trainerv1.Abort {
			t.Errorf("action %s after the grace", a)
		}
		e := <-end
		r.lost(e, v1alpha1.ReasonTrainerTimeout, "goes on 10s after it was told to finish")
		r.lost(e, v1alpha1.ReasonTrainerTimeout, "it wrote last: epoch 3 of 9")
		if len(r.stalled()) != 1 || !strings.Contains(r.s.Fault(), "told to drop") {
			t.Errorf("stalls %q, fault %q", r.stalled(), r.s.Fault())
		}
		r.want(204, "GET", "/v1/task", "") // another process
		if why := r.s.Fault(); why != "" {
			t.Errorf("fault %q of a trainer that asks for work", why)
		}
	})
}

func TestTrainerThatIgnoresAnAbortIsReportedAfterTheGrace(t *testing.T) {
	for name, tc := range map[string]struct {
		told  bool
		after time.Duration // grace 10 s after it was told; silence of 20 s before
		says  string
	}{
		"told":   {true, 10 * time.Second, "told to drop"},
		"silent": {false, 20 * time.Second, "neither answers nor ends"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				ctx, cancel := context.WithCancelCause(context.Background())
				end := r.start(ctx, r.task("a", time.Hour), nil)
				r.want(200, "GET", "/v1/task", "")
				cancel(ErrAbort)
				<-end
				if tc.told && r.progress("a", 1) != trainerv1.Abort {
					t.Error("it was not told")
				}
				time.Sleep(tc.after - time.Millisecond)
				if tc.told && r.progress("a", 2) != trainerv1.Abort {
					t.Error("it was not told again")
				}
				if why := r.s.Fault(); why != "" || len(r.stalled()) > 0 {
					t.Errorf("too early: %q %q", why, r.stalled())
				}
				time.Sleep(time.Millisecond)
				synctest.Wait()
				if why := r.s.Fault(); !strings.Contains(why, tc.says) || len(r.stalled()) != 1 {
					t.Errorf("fault %q, stalls %q", why, r.stalled())
				}
				time.Sleep(time.Hour)
				if len(r.stalled()) != 1 {
					t.Errorf("reported again: %q", r.stalled())
				}
			})
		})
	}
}

func TestTrainerThatComesBackFromADroppedTaskIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		end := r.start(ctx, r.task("a", time.Hour), nil)
		r.want(200, "GET", "/v1/task", "")
		cancel(ErrAbort)
		<-end
		for range 30 { // a long step with signs of life, or one that is told late
			time.Sleep(15 * time.Second)
			r.want(404, "POST", "/v1/tasks/x/progress", `{"steps":1,"samples":1}`)
		}
		r.progress("a", 1)
		time.Sleep(9 * time.Second)
		r.want(204, "GET", "/v1/task", "")
		time.Sleep(time.Hour)
		synctest.Wait()
		if why := r.s.Fault(); why != "" || len(r.stalled()) > 0 {
			t.Errorf("fault %q, stalls %q", why, r.stalled())
		}
	})
}

func TestOfferOfAnotherModelIsAnsweredWithTheDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		path := r.weights("seed")
		var asked []string
		r.s.SetOfferCheck(func(path string) error {
			asked = append(asked, filepath.Base(path))
			if len(asked) > 1 {
				return nil
			}
			return errors.New("head.weight: is F32 [10 64], want F32 [12 64]")
		})
		offer := fmt.Sprintf(`{"path":%q}`, path)
		if body := r.want(409, "PUT", "/v1/model", offer); !strings.Contains(body, "head.weight: is F32 [10 64]") {
			t.Errorf("answer %s", body)
		}
		if body := r.want(409, "PUT", "/v1/model", offer); !strings.Contains(body, "no first weights are wanted") {
			t.Errorf("answer %s", body)
		}
		r.want(409, "PUT", "/v1/model", `{"path":"nowhere"}`)
		if !slices.Equal(asked, []string{"seed", "seed"}) {
			t.Errorf("looked at %v", asked)
		}
	})
}

func TestWhatATrainerSaysOfItselfIsHandedOnWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var seen trainerv1.Progress
		end := r.start(context.Background(), r.task("a", time.Hour), func(p trainerv1.Progress) { seen = p })
		r.want(200, "GET", "/v1/task", "")
		facts := map[string]string{"precision": "bf16", strings.Repeat("n", 65): "v", "a": strings.Repeat("x", 100)}
		for i := range 20 {
			facts[fmt.Sprintf("z%02d", i)] = ""
		}
		body, err := json.Marshal(trainerv1.Progress{Steps: 1, Samples: 1, Trainer: facts})
		if err != nil {
			t.Fatal(err)
		}
		r.want(200, "POST", "/v1/tasks/a/progress", string(body))
		synctest.Wait()
		if len(seen.Trainer) != 16 || seen.Trainer["precision"] != "bf16" || len(seen.Trainer["a"]) != 64 {
			t.Errorf("handed on %v", seen.Trainer)
		}
		r.want(204, "POST", "/v1/tasks/a/failure", `{"reason":"done"}`)
		<-end
	})
}

// The real thing: a process that takes a task and heeds nothing is killed, and the
// next one works.
func TestProcessThatIgnoresEverythingIsKilledAndStartedAgain(t *testing.T) {
	dir, err := os.MkdirTemp("", "g") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var mu sync.Mutex
	var supervisor *Supervisor
	s, err := New(Options{
		SocketPath: filepath.Join(dir, "run", "s"), WorkDir: filepath.Join(dir, "work"),
		Grace: 100 * time.Millisecond, StallTimeout: time.Hour,
		OnStall: func(why string) {
			mu.Lock()
			defer mu.Unlock()
			supervisor.Restart(why)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	defer func() { cancel(); <-served }()
	mu.Lock()
	supervisor, _ = supervise(t, "deaf "+filepath.Join(dir, "mark"), func(o *SupervisorOptions) {
		o.SocketPath, o.WorkDir, o.StopGrace = s.SocketPath(), s.WorkDir(), 10*time.Millisecond
	})
	mu.Unlock()
	task := func(id string, left time.Duration) trainerv1.Task {
		return trainerv1.Task{ID: id, Kind: trainerv1.Evaluate, Round: 1, StopAt: time.Now().Add(left), ModelPath: "m"}
	}
	if err := s.WaitAttached(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first process's name", says(supervisor, "first"))
	first := supervisor.State().PID
	_, err = s.Run(ctx, task("a", time.Second), nil)
	var f *FailureError
	if !errors.As(err, &f) || f.Reason != v1alpha1.ReasonTrainerTimeout {
		t.Fatalf("ended with %v", err)
	}
	eventually(t, "the end of the first process", func() bool { return !alive(first) })
	out, err := s.Run(ctx, task("b", time.Hour), nil)
	if err != nil || out.Result.Samples != 5 {
		t.Errorf("the next process: %+v, %v", out, err)
	}
	if st := supervisor.State(); st.Restarts != 1 || !strings.Contains(st.Reason, "no result by") {
		t.Errorf("%+v", st)
	}
}
