package agent

import (
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// warmStart follows the agent from its start, or from the first grant after a
// drain, to the first step of its trainer. Guarded by Agent.mu.
type warmStart struct {
	began time.Time
	// process: until the first session, without opened; 0 in a later start.
	process, pull time.Duration
	connected     bool
	pulled, delta uint64 // bytes
	disk          bool
	// over: the first step was done; drained: the next grant begins another start.
	over, drained bool
}

// sessionBegan ends the process's own part of a start.
func (w *warmStart) sessionBegan(now time.Time) {
	if !w.connected {
		w.connected = true
		w.process = max(0, now.Sub(w.began)-w.pull)
	}
}

// again begins another start if the agent was drained.
func (w *warmStart) again(now time.Time, held bool) {
	if w.drained {
		*w = warmStart{began: now, connected: true, disk: held}
	}
}

// pulledFor counts time spent on reaching a version.
func (a *Agent) pulledFor(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warm.pull += d
}

// pulledBytes counts a download.
func (a *Agent) pulledBytes(kind coordinatorv1.PullRequest_Kind, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warm.pulled += uint64(n)
	if kind == coordinatorv1.PullRequest_KIND_DELTA {
		a.warm.delta += uint64(n)
	}
}

// firstStep ends a start, once; load is the time since the task was handed out.
func (a *Agent) firstStep(now time.Time, load time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &a.warm
	if w.over {
		return
	}
	w.over = true
	total := now.Sub(w.began)
	a.status.warmStart = &coordinatorv1.WarmStart{
		ProcessSeconds: w.process.Seconds(), PullSeconds: w.pull.Seconds(), LoadSeconds: load.Seconds(),
		FirstStepSeconds: total.Seconds(), PulledBytes: w.pulled, DeltaBytes: w.delta, FromDisk: w.disk,
	}
	m := a.metrics
	m.firstStep.Set(total.Seconds())
	for part, d := range map[string]time.Duration{"process": w.process, "pull": w.pull, "load": load} {
		m.startParts.WithLabelValues(part).Set(d.Seconds())
	}
	m.startBytes.WithLabelValues("delta").Set(float64(w.delta))
	m.startBytes.WithLabelValues("state").Set(float64(w.pulled - w.delta))
	a.log.Info("first step", "after", total.Round(time.Millisecond), "process", w.process.Round(time.Millisecond),
		"pull", w.pull.Round(time.Millisecond), "load", load.Round(time.Millisecond),
		"from_disk", w.disk, "pulled_bytes", w.pulled, "delta_bytes", w.delta)
}
