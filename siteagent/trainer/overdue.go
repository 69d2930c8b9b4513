package trainer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// dropped is a task that is no longer wanted and that its trainer may still be at:
// until it asks for another one, it cannot be given any.
type dropped struct {
	task trainerv1.Task
	told time.Time // when it was first told to drop it; zero before
	// overdue: it had the time to hear and to stop, and was reported.
	overdue bool
	timer   *time.Timer
}

// watch looks after a trainer whose task has ended without it. s.mu is held.
func (s *Server) watch(r *run, overdue bool) {
	s.forget()
	if r.takes == 0 {
		return
	}
	d := &dropped{task: r.task, overdue: overdue}
	if overdue {
		d.told = r.told
	}
	s.dropped = d
	d.timer = time.AfterFunc(max(0, time.Until(s.patience(d))), func() { s.lookAfter(d) })
}

// forget ends the watch: the trainer is free. s.mu is held.
func (s *Server) forget() {
	if s.dropped != nil {
		s.dropped.timer.Stop()
		s.dropped = nil
	}
}

// patience is how long a trainer may be at a dropped task: a long silent step is
// alive, but none goes on past the task's own end. s.mu is held.
func (s *Server) patience(d *dropped) time.Time {
	limits := []time.Time{d.task.StopAt.Add(s.opts.Grace), s.lastSeen.Add(s.opts.StallTimeout)}
	if !d.told.IsZero() {
		limits = append(limits, d.told.Add(s.opts.Grace))
	}
	return slices.MinFunc(limits, time.Time.Compare)
}

// lookAfter reports a trainer that does not come back from a dropped task.
func (s *Server) lookAfter(d *dropped) {
	s.mu.Lock()
	if s.dropped != d || d.overdue || s.stopping {
		s.mu.Unlock()
		return
	}
	if left := time.Until(s.patience(d)); left > 0 {
		d.timer.Reset(left)
		s.mu.Unlock()
		return
	}
	d.overdue = true
	why := s.faultLocked()
	s.mu.Unlock()
	s.log.Error("trainer does not come back", "task", d.task.ID, "round", d.task.Round, "cause", why)
	if s.opts.OnStall != nil {
		s.opts.OnStall(why)
	}
}

// toldToDrop notes that the trainer has heard that a task is not wanted. s.mu is
// held.
func (s *Server) toldToDrop(id string, now time.Time) {
	if d := s.dropped; d != nil && d.task.ID == id && d.told.IsZero() {
		d.told = now
		d.timer.Reset(max(0, time.Until(s.patience(d))))
	}
}

// Fault is why the trainer on the socket cannot take work, "" if nothing is known.
func (s *Server) Fault() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faultLocked()
}

func (s *Server) faultLocked() string {
	d := s.dropped
	switch {
	case d == nil || !d.overdue:
		return ""
	case d.told.IsZero():
		return fmt.Sprintf("the trainer neither answers nor ends its task of round %d, last heard of %s ago: restart it",
			d.task.Round, time.Since(s.lastSeen).Round(time.Second))
	}
	return fmt.Sprintf("the trainer goes on with its task of round %d, which it was told to drop: heed the action abort in the answer to a progress, and restart it", d.task.Round)
}

// The bounds of what a trainer says of itself.
const (
	maxFacts = 16
	maxFact  = 64 // bytes
)

// bounded is what is kept of it: the first entries by name, values cut.
func bounded(facts map[string]string) map[string]string {
	var out map[string]string
	for _, k := range slices.Sorted(maps.Keys(facts)) {
		if k == "" || len(k) > maxFact {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		v := facts[k]
		if out[k] = strings.ToValidUTF8(v[:min(len(v), maxFact)], ""); len(out) == maxFacts {
			break
		}
	}
	return out
}
