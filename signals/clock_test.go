package signals

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestAVirtualClockRunsASpanFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := NewVirtual(t0, 540, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(120 * time.Second)
		if got := c.Now().Sub(t0); got != 18*time.Hour {
			t.Errorf("two minutes became %s", got)
		}
	})
}

func TestAVirtualTimerNeverFiresEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, speed := range []float64{0.001, 0.3, 1, 7, 540, 1e6} {
			c, err := NewVirtual(t0, speed, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range []time.Duration{-time.Hour, 0, 1, 999, time.Second, 5 * time.Minute, 77 * time.Hour} {
				due := c.Now().Add(d)
				before := time.Now()
				<-c.NewTimer(d).C()
				if c.Now().Before(due) {
					t.Errorf("speed %v: %s fired at %s, due %s", speed, d, c.Now(), due)
				}
				if d <= 0 && !time.Now().Equal(before) {
					t.Errorf("speed %v: %s took %s", speed, d, time.Since(before))
				}
			}
		}
	})
}

func TestAStoppedTimerDoesNotFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		virtual, _ := NewVirtual(t0, 60, time.Now())
		for _, c := range []Clock{Real{}, virtual} {
			timer := c.NewTimer(time.Minute)
			if !timer.Stop() {
				t.Error("stopped too late")
			}
			time.Sleep(2 * time.Minute)
			select {
			case <-timer.C():
				t.Error("fired after its stop")
			default:
			}
		}
	})
}

func TestAVirtualClockContinuesFromItsAnchor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		anchor := time.Now()
		first, _ := NewVirtual(t0, 60, anchor)
		time.Sleep(time.Minute)
		second, _ := NewVirtual(t0, 60, anchor.Round(0)) // as read back from a file
		if !first.Now().Equal(second.Now()) {
			t.Errorf("%s and %s", first.Now(), second.Now())
		}
	})
}

func TestSpeedsWithoutMeaningAreRefused(t *testing.T) {
	for _, speed := range []float64{0, -1, 1e-4, 1e7, math.NaN(), math.Inf(1)} {
		if _, err := NewVirtual(t0, speed, time.Now()); err == nil {
			t.Errorf("speed %v was accepted", speed)
		}
	}
}
