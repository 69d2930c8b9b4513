package wire

import (
	"io"
	"sync"
	"time"
)

// closeAt closes a connection at a time of the given clock.
func closeAt(end time.Time, now func() time.Time, c io.Closer) *Alarm {
	return AlarmAt(end, now, func() { _ = c.Close() })
}

// Alarm is a call at a time of a clock.
type Alarm struct {
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// longestWait bounds for how long a clock is not looked at: it may be set, and a
// machine may sleep.
const longestWait = time.Hour

// AlarmAt calls ring once, when the clock now has come to end.
func AlarmAt(end time.Time, now func() time.Time, ring func()) *Alarm {
	a := &Alarm{}
	var look func()
	look = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.stopped {
			return
		}
		if left := end.Sub(now()); left > 0 {
			a.timer = time.AfterFunc(min(left, longestWait), look)
			return
		}
		a.stopped = true
		go ring() // it may call Stop
	}
	look()
	return a
}

// Stop says whether it had not rung yet.
func (a *Alarm) Stop() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return false
	}
	a.stopped = true
	a.timer.Stop()
	return true
}
