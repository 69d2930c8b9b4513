package signals

import (
	"fmt"
	"math"
	"time"
)

// Clock is the time that signals are read in. Real is the machine's; Virtual
// runs a recorded span faster.
type Clock interface {
	Now() time.Time
	// NewTimer fires once, when Now is at or after d from now. A d of zero or
	// less fires at once.
	NewTimer(d time.Duration) Timer
}

// Timer is the part of time.Timer that a Clock can offer.
type Timer interface {
	// C receives one value when the timer fires.
	C() <-chan time.Time
	// Stop ends the timer and says whether it had not fired yet.
	Stop() bool
}

// Real is the machine's clock.
type Real struct{}

// Now is time.Now.
func (Real) Now() time.Time { return time.Now() }

// NewTimer is time.NewTimer.
func (Real) NewTimer(d time.Duration) Timer { return timer{time.NewTimer(d)} }

type timer struct{ t *time.Timer }

func (t timer) C() <-chan time.Time { return t.t.C }
func (t timer) Stop() bool          { return t.t.Stop() }

// Virtual is a clock that showed start at the real instant anchor and has run
// speed times as fast as the machine's since. Keeping the three over a restart
// continues the same virtual time. It uses package time only, so it also works
// in a testing/synctest bubble.
type Virtual struct {
	start, anchor time.Time
	speed         float64
}

// NewVirtual returns a clock; speed is virtual seconds per real second, from
// 0.001 to 1,000,000.
func NewVirtual(start time.Time, speed float64, anchor time.Time) (*Virtual, error) {
	if !(speed >= 1e-3 && speed <= 1e6) {
		return nil, fmt.Errorf("signals: speed %v of the virtual clock is outside 0.001 to 1000000", speed)
	}
	return &Virtual{start: start.Round(0), anchor: anchor, speed: speed}, nil
}

// Now is start plus the real time since the anchor times the speed.
func (v *Virtual) Now() time.Time {
	return v.start.Add(time.Duration(float64(time.Since(v.anchor)) * v.speed))
}

// Speed is virtual seconds per real second.
func (v *Virtual) Speed() float64 { return v.speed }

// Real is how long a virtual duration takes on the machine's clock, rounded up,
// so that a timer never fires before its virtual time.
func (v *Virtual) Real(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	ticks := math.Ceil(float64(d)/v.speed) + math.Ceil(1/v.speed)
	if ticks >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ticks)
}

// NewTimer fires when d of virtual time have passed.
func (v *Virtual) NewTimer(d time.Duration) Timer { return timer{time.NewTimer(v.Real(d))} }
