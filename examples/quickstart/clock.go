package main

import "time"

// virtualClock tells the signals' time between two statuses, which say it.
type virtualClock struct {
	speed   float64
	virtual time.Time
	real    time.Time
}

// latency is how old a status may be, in real time.
const latency = time.Second

// at is the virtual time at a real one.
func (c *virtualClock) at(real time.Time) time.Time {
	return c.virtual.Add(time.Duration(float64(real.Sub(c.real)) * c.speed))
}

// see takes over what a status received at a real time says. One that is only
// late, within latency, does not put the clock back.
func (c *virtualClock) see(virtual, real time.Time) {
	behind := c.at(real).Sub(virtual)
	if behind < 0 || behind > time.Duration(float64(latency)*c.speed) {
		c.virtual, c.real = virtual, real
	}
}
