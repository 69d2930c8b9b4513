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
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

// rig is a server without a socket, under synctest's clock.
type rig struct {
	*testing.T
	s *Server
	h http.Handler

	mu     sync.Mutex
	stalls []string // by stalled
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t}
	dir := t.TempDir()
	s, err := New(Options{
		SocketPath: filepath.Join(dir, "s", "t.sock"), WorkDir: filepath.Join(dir, "work"),
		Grace: 10 * time.Second, StallTimeout: 20 * time.Second,
		OnStall: func(why string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stalls = append(r.stalls, why)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.s, r.h = s, s.Handler()
	return r
}

// stalled is what OnStall was told.
func (r *rig) stalled() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.stalls)
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
