package client

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	trainerv1 "girassol.dev/api/trainer/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent answers on a real socket as the test likes.
func agent(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	c := New(path)
	t.Cleanup(func() { c.Close(); s.Close() })
	return c
}

func put(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func TestStopTimeIsTheEarlierOfClockAndSpan(t *testing.T) {
	for name, c := range map[string]struct {
		clock, span, want time.Duration
	}{
		"they agree":          {time.Minute, time.Minute, time.Minute},
		"the clock was set":   {time.Hour, time.Minute, time.Minute},
		"the answer was slow": {time.Minute, time.Hour, time.Minute},
	} {
		start := time.Now()
		cl := agent(t, func(w http.ResponseWriter, _ *http.Request) {
			put(w, trainerv1.Task{ID: "a", StopAt: start.Add(c.clock), StopInSeconds: c.span.Seconds()})
		})
		task, err := cl.NextTask(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		// Within what the call took, at the most.
		if d := task.StopAt.Sub(start.Add(c.want)); d < -time.Millisecond || d > time.Since(start)+time.Millisecond {
			t.Errorf("%s: off by %v", name, d)
		}
	}
}

func TestProblemsBecomeStatusErrors(t *testing.T) {
	c := agent(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		if r.Method == http.MethodPut {
			put(w, trainerv1.Problem{Error: "not wanted"})
			return
		}
		_, _ = w.Write([]byte("<html>"))
	})
	if err := c.Seed(context.Background(), "x"); !Refused(err, 404, 409) || !strings.Contains(err.Error(), "not wanted") {
		t.Errorf("seed: %v", err)
	}
	if err := c.Failure(context.Background(), "a", "x"); !Refused(err, 409) {
		t.Errorf("failure: %v", err)
	}
	if Refused(errors.New("x"), 409) {
		t.Error("any error is a refusal")
	}
}

func TestAnswersThatMakeNoSenseAreErrors(t *testing.T) {
	c := agent(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("garbage")) })
	if _, err := c.NextTask(context.Background(), 0); err == nil {
		t.Error("a task was read from garbage")
	}
	if err := c.Result(context.Background(), "a", trainerv1.Result{}); err == nil {
		t.Error("garbage after a result passed")
	}
	c = agent(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	if _, err := c.Progress(context.Background(), "a", trainerv1.Progress{}); err == nil {
		t.Error("a progress without a directive passed")
	}
}

// script is an agent with one task that notes what is posted.
type script struct {
	taken  atomic.Bool
	posts  chan string
	result func(http.ResponseWriter)
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v1/task" && !s.taken.Swap(true):
		put(w, trainerv1.Task{ID: "a", StopAt: time.Now().Add(time.Hour), StopInSeconds: 3600})
	case r.URL.Path == "/v1/task":
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/progress"):
		w.WriteHeader(http.StatusNotFound)
		put(w, trainerv1.Problem{Error: "no task"})
	default:
		s.posts <- r.URL.Path
		s.result(w)
	}
}

// loop runs h on the script's task until the wanted posts have been seen.
func loop(t *testing.T, s *script, h Handler, want ...string) {
	t.Helper()
	s.posts = make(chan string, 10)
	if s.result == nil {
		s.result = func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }
	}
	c := agent(t, s.ServeHTTP)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Loop{Client: c, Handle: h, Wait: time.Minute}.Run(ctx) }()
	for _, w := range want {
		if got := <-s.posts; got != w {
			t.Errorf("posted to %s, want %s", got, w)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(s.posts) > 0 {
		t.Errorf("posted to %s as well", <-s.posts)
	}
}

func TestHandlersErrorIsPostedAsFailure(t *testing.T) {
	loop(t, &script{}, func(context.Context, trainerv1.Task, Report) (trainerv1.Result, error) {
		return trainerv1.Result{}, errors.New("out of memory")
	}, "/v1/tasks/a/failure")
}

func TestResultIsPostedAgainWhileTheAgentIsAway(t *testing.T) {
	n := 0
	loop(t, &script{result: func(w http.ResponseWriter) {
		if n++; n < 3 {
			panic(http.ErrAbortHandler) // hangs up
		}
		w.WriteHeader(http.StatusNoContent)
	}}, func(context.Context, trainerv1.Task, Report) (trainerv1.Result, error) {
		return trainerv1.Result{Steps: 1, Samples: 1}, nil
	}, "/v1/tasks/a/result", "/v1/tasks/a/result", "/v1/tasks/a/result")
}

func TestResultThatIsRefusedEndsTheTaskAsFailure(t *testing.T) {
	loop(t, &script{result: func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusBadRequest)
		put(w, trainerv1.Problem{Error: "no"})
	}}, func(context.Context, trainerv1.Task, Report) (trainerv1.Result, error) {
		return trainerv1.Result{}, nil
	}, "/v1/tasks/a/result", "/v1/tasks/a/failure")
}

func TestProgressOfATaskThatIsOverMeansAbort(t *testing.T) {
	heard := make(chan trainerv1.Action, 1)
	s := &script{}
	s.posts = make(chan string, 10)
	c := agent(t, s.ServeHTTP)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Loop{Client: c, Wait: time.Minute, Handle: func(_ context.Context, _ trainerv1.Task, report Report) (trainerv1.Result, error) {
			heard <- report(trainerv1.Progress{}).Action
			return trainerv1.Result{}, ErrAborted
		}}.Run(ctx)
	}()
	if got := <-heard; got != trainerv1.Abort {
		t.Errorf("heard %s", got)
	}
	cancel()
	<-done
	if len(s.posts) > 0 {
		t.Error("an aborted task was posted")
	}
}

func TestSeedThatIsRefusedDoesNotKeepTheTrainerFromItsTasks(t *testing.T) {
	for _, status := range []int{http.StatusConflict, http.StatusBadRequest} {
		taken := make(chan struct{})
		s := &script{posts: make(chan string, 10)}
		c := agent(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				w.WriteHeader(status)
				put(w, trainerv1.Problem{Error: "no"})
				return
			}
			s.ServeHTTP(w, r)
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- Loop{
				Client: c, Wait: time.Minute, Seed: func() (string, error) { return "/elsewhere/seed", nil },
				Handle: func(context.Context, trainerv1.Task, Report) (trainerv1.Result, error) {
					close(taken)
					return trainerv1.Result{}, ErrAborted
				},
			}.Run(ctx)
		}()
		<-taken
		cancel()
		<-done
	}
}
