package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	trainerv1 "girassol.dev/api/trainer/v1"
)

const (
	maxMetrics    = 256
	maxMetricName = 128
	maxReason     = 4 << 10
)

// reply is what a handler decided; it is written without any lock held, so a
// client that does not read holds up nobody else.
type reply struct {
	status int
	body   any
}

var noContent = reply{status: http.StatusNoContent}

func refuse(status int, format string, a ...any) reply {
	return reply{status, trainerv1.Problem{Error: fmt.Sprintf(format, a...)}}
}

func (r reply) write(w http.ResponseWriter) {
	if r.body == nil {
		w.WriteHeader(r.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	// The client is gone if this fails; it asks again.
	_ = json.NewEncoder(w).Encode(r.body)
}

// Handler is the trainer API as an http.Handler.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(method, pattern string, h func(http.ResponseWriter, *http.Request) reply) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			if req.Method != method {
				w.Header().Set("Allow", method)
				refuse(http.StatusMethodNotAllowed, "%s takes %s, not %s", req.URL.Path, method, req.Method).write(w)
				return
			}
			// A writer without deadlines is a test's recorder.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(MaxWait + writeTimeout))
			h(w, req).write(w)
		})
	}
	handle(http.MethodGet, "/v1/task", s.serveTask)
	handle(http.MethodPost, "/v1/tasks/{id}/progress", s.serveProgress)
	handle(http.MethodPost, "/v1/tasks/{id}/result", s.serveResult)
	handle(http.MethodPost, "/v1/tasks/{id}/failure", s.serveFailure)
	handle(http.MethodPut, "/v1/model", s.serveSeed)
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		refuse(http.StatusNotFound, "no such path %q", req.URL.Path).write(w)
	})
	return mux
}

func (s *Server) serveTask(_ http.ResponseWriter, req *http.Request) reply {
	wait := time.Duration(0)
	if q := req.URL.Query().Get("wait"); q != "" {
		d, err := time.ParseDuration(q)
		if err != nil || d < 0 {
			return refuse(http.StatusBadRequest, "wait=%.40q is no duration such as 30s", q)
		}
		wait = min(d, MaxWait)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls++
	s.sign(time.Now())
	seedWanted := s.seedWanted
	s.forget()
	s.abandoned()
	s.wake()
	defer func() {
		s.polls--
		s.lastSeen = time.Now()
	}()
	for {
		now := time.Now()
		if s.stopping {
			return refuse(http.StatusServiceUnavailable, "the agent is stopping")
		}
		if req.Context().Err() != nil { // a client that hung up must not take the task with it
			return noContent
		}
		if t, ok := s.take(now); ok {
			t.StopInSeconds = t.StopAt.Sub(now).Seconds()
			return reply{http.StatusOK, t}
		}
		if s.seedWanted && !seedWanted {
			return noContent
		}
		if expired := s.await(req.Context().Done(), timer.C); expired {
			return noContent
		}
	}
}

// await waits for a change with s.mu released; s.mu is held before and after.
func (s *Server) await(gone <-chan struct{}, expired <-chan time.Time) bool {
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
		return false
	case <-expired:
	case <-gone:
	}
	return true
}

// sign notes a sign of life. s.mu is held.
func (s *Server) sign(now time.Time) {
	s.lastSeen = now
	if s.current != nil {
		s.current.seen = now
	}
}

// abandoned judges a trainer that polls while it should hold a task: it has
// lost it (it died, or the answer did not reach it). With time left it gets it
// again, so only the hopeless cases end here. s.mu is held.
func (s *Server) abandoned() {
	r := s.current
	if r == nil || r.over || r.takes == 0 {
		return
	}
	if callback := r.ctx.Err() != nil || !time.Now().Before(r.task.StopAt); callback || r.takes == maxTakes {
		s.end(r, endedFailure, verdict{err: s.failure(r, v1alpha1.ReasonTrainerFailed,
			fmt.Sprintf("the trainer took the task %d times and asked for another without ending it", r.takes))})
	}
}

// take hands out the task at now, if there is one that can still be worked on.
// s.mu is held.
func (s *Server) take(now time.Time) (trainerv1.Task, bool) {
	r := s.current
	if r == nil || r.over || r.ctx.Err() != nil || !now.Before(r.task.StopAt) {
		return trainerv1.Task{}, false
	}
	if r.takes++; r.takes > 1 {
		s.log.Warn("trainer asks again while it holds a task; handing it out once more",
			"task", r.task.ID, "round", r.task.Round, "take", r.takes)
	}
	r.takenAt, r.seen = now, now
	r.nudge()
	return r.task, true
}

// end gives the task its verdict. s.mu is held.
func (s *Server) end(r *run, how ending, v verdict) {
	r.over = true
	s.ended.add(r.task.ID, how)
	r.done <- v
}

// find is the running task id, else the answer for one that is not.
// s.mu is held.
func (s *Server) find(id string) (*run, reply) {
	if r := s.current; r != nil && r.task.ID == id && !r.over && r.takes > 0 {
		return r, reply{}
	}
	switch s.ended.state[id] {
	case endedResult, endedFailure:
		return nil, refuse(http.StatusConflict, "task %s has ended already", id)
	case endedAborted:
		return nil, refuse(http.StatusConflict, "task %s was aborted, its result is not wanted", id)
	case endedLost:
		return nil, refuse(http.StatusConflict, "task %s is over: the trainer was late or silent", id)
	}
	return nil, refuse(http.StatusNotFound, "no task %.140q", id)
}

func (s *Server) serveProgress(w http.ResponseWriter, req *http.Request) reply {
	var p trainerv1.Progress
	if bad := decode(w, req, &p); bad != nil {
		return *bad
	}
	id := req.PathValue("id")
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.sign(now)
	r, none := s.find(id)
	if r == nil {
		s.toldToDrop(id, now)
		if s.ended.state[id] == endedAborted {
			return reply{http.StatusOK, trainerv1.Directive{Action: trainerv1.Abort, Reason: "the task was aborted"}}
		}
		return none
	}
	p.Trainer = bounded(p.Trainer)
	r.progress = &p
	r.nudge()
	d := r.directive(p, now)
	if d.Action != trainerv1.Continue {
		if r.told.IsZero() {
			r.told = now
		}
		if now.Sub(r.told) >= s.opts.Grace {
			s.end(r, endedLost, verdict{err: s.failure(r, v1alpha1.ReasonTrainerTimeout, fmt.Sprintf(
				"the trainer goes on %s after it was told to finish (%s)", now.Sub(r.told).Round(time.Second), d.Reason))})
			return reply{http.StatusOK, trainerv1.Directive{Action: trainerv1.Abort, Reason: "it has not finished in time"}}
		}
	}
	return reply{http.StatusOK, d}
}

func (s *Server) serveResult(w http.ResponseWriter, req *http.Request) reply {
	var res trainerv1.Result
	if bad := decode(w, req, &res); bad != nil {
		return *bad
	}
	id := req.PathValue("id")
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.sign(now)
	r, none := s.find(id)
	if r == nil {
		if s.ended.state[id] == endedResult { // the answer to the first was lost
			return noContent
		}
		return none
	}
	if err := s.checkResult(r.task, &res); err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	s.end(r, endedResult, verdict{result: res, at: now})
	return noContent
}

// checkResult refuses what is no result of t and resolves its path.
func (s *Server) checkResult(t trainerv1.Task, res *trainerv1.Result) (err error) {
	if len(res.Metrics) > maxMetrics {
		return fmt.Errorf("%d metrics, at most %d", len(res.Metrics), maxMetrics)
	}
	for name := range res.Metrics {
		if name == "" || len(name) > maxMetricName {
			return fmt.Errorf("metric name %.40q must have 1 to %d bytes", name, maxMetricName)
		}
	}
	if err := checkConsumed(t, res); err != nil {
		return err
	}
	if t.Kind == trainerv1.Evaluate {
		if res.Path != "" {
			return errors.New("an evaluate task's result has no path")
		}
		return nil
	}
	if res.Steps == 0 && res.Path == "" {
		return nil // called back before the first step
	}
	if res.Steps > 0 && res.Samples == 0 {
		return fmt.Errorf("%d steps on 0 samples: samples is the update's weight and must be positive", res.Steps)
	}
	if res.Path == "" {
		return fmt.Errorf("a train task's result needs the path of its weights (%s)", t.ResultPath)
	}
	res.Path, err = inside(s.work, res.Path)
	return err
}

func (s *Server) serveFailure(w http.ResponseWriter, req *http.Request) reply {
	var f trainerv1.Failure
	if bad := decode(w, req, &f); bad != nil {
		return *bad
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sign(time.Now())
	r, none := s.find(req.PathValue("id"))
	if r == nil {
		return none
	}
	reason := strings.ToValidUTF8(f.Reason[:min(len(f.Reason), maxReason)], "")
	if reason == "" {
		reason = "the trainer gave no reason"
	}
	s.end(r, endedFailure, verdict{err: r.failure(v1alpha1.ReasonTrainerFailed, reason)})
	return noContent
}

func (s *Server) serveSeed(w http.ResponseWriter, req *http.Request) reply {
	var seed trainerv1.Seed
	if bad := decode(w, req, &seed); bad != nil {
		return *bad
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sign(time.Now())
	path, err := inside(s.work, seed.Path)
	if !s.seedWanted {
		if err == nil && s.offerCheck != nil {
			if err := s.checkOffer(path); err != nil {
				return refuse(http.StatusConflict, "the federation has another model: %v", err)
			}
		}
		return refuse(http.StatusConflict, "no first weights are wanted now: the federation has a model, or it is not known yet")
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	s.seedWanted = false
	s.seeds <- trainerv1.Seed{Path: path} // there is room: SetSeedWanted(true) emptied it
	return noContent
}

// checkOffer reads offered weights with s.mu released; s.mu is held before and after.
func (s *Server) checkOffer(path string) error {
	check := s.offerCheck
	s.mu.Unlock()
	defer s.mu.Lock()
	return check(path)
}
