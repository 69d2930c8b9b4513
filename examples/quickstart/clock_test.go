package main

import (
	"testing"
	"time"
)

func TestVirtualClockFollowsTheStatuses(t *testing.T) {
	real := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	start := time.Date(2026, 5, 4, 17, 0, 0, 0, time.UTC)
	c := virtualClock{speed: 60, virtual: start, real: real}
	after := func(s int) time.Time { return real.Add(time.Duration(s) * time.Second) }
	want := func(what string, s int, minutes float64) {
		t.Helper()
		if got := c.at(after(s)).Sub(start).Minutes(); got != minutes {
			t.Errorf("%s: %v minutes after %d s, want %v", what, got, s, minutes)
		}
	}
	want("it runs on", 10, 10)
	c.see(start.Add(12*time.Minute), after(10))
	want("a status from ahead", 10, 12)
	c.see(start.Add(13*time.Minute+30*time.Second), after(12))
	want("a late status", 12, 14)
	c.see(start.Add(10*time.Minute), after(13))
	want("a coordinator that was started again", 13, 10)
}
