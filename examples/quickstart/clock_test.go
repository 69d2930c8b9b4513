package main

import (
	"testing"
	"time"
)

func TestVirtualClockRunsOnAndCorrectsItself(t *testing.T) {
	real := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	start := time.Date(2026, 5, 4, 17, 0, 0, 0, time.UTC)
	c := virtualClock{speed: 60, virtual: start, real: real}
	if got := c.at(real.Add(10 * time.Second)); !got.Equal(start.Add(10 * time.Minute)) {
		t.Errorf("ten seconds later it is %v", got)
	}
	c.see(start.Add(5*time.Minute), real.Add(9*time.Second), 5*time.Minute)
	if got := c.at(real); !got.Equal(start) {
		t.Errorf("a point that fits moved the clock to %v", got)
	}
	c.see(start.Add(15*time.Minute), real.Add(10*time.Second), 5*time.Minute)
	if got := c.at(real.Add(10 * time.Second)); !got.Equal(start.Add(15 * time.Minute)) {
		t.Errorf("a point from the future left the clock at %v", got)
	}
	c.see(start, real.Add(10*time.Second), 5*time.Minute)
	if got := c.at(real.Add(10 * time.Second)); !got.Equal(start) {
		t.Errorf("a coordinator that went back left the clock at %v", got)
	}
}
