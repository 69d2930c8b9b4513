package main

import "time"

// virtualClock tells the signals' time from outside the coordinator: it runs on
// from where it was set, and the points that statuses show keep it honest.
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

// see takes in that a point of the trace was the newest at a real time: the
// virtual time is not before it, and not long after the end of its period.
func (c *virtualClock) see(point, real time.Time, period time.Duration) {
	now := c.at(real)
	late := period + time.Duration(float64(latency)*c.speed)
	if point.After(now) || now.Sub(point) > late+period {
		c.virtual, c.real = point, real
	}
}

// stretch is real time as virtual.
func (c *virtualClock) stretch(real time.Duration) time.Duration {
	return time.Duration(float64(real) * c.speed)
}
