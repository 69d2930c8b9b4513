package wire

import (
	"crypto/x509"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnAlarmFollowsItsClockAndNotTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set, rung atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(set.Load())) }
		AlarmAt(now().Add(48*time.Hour), now, func() { rung.Add(1) })
		stopped := AlarmAt(now().Add(48*time.Hour), now, func() { t.Error("it rings after Stop") })
		time.Sleep(24 * time.Hour)
		if rung.Load() != 0 {
			t.Fatal("it rings early")
		}
		if !stopped.Stop() || stopped.Stop() {
			t.Error("Stop does not say whether it was in time")
		}
		set.Store(int64(24 * time.Hour)) // the clock was set, or the machine slept
		time.Sleep(longestWait)
		synctest.Wait()
		if rung.Load() != 1 {
			t.Errorf("it rang %d times, want once", rung.Load())
		}
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		if rung.Load() != 1 {
			t.Errorf("it rang %d times, want once", rung.Load())
		}
	})
}

// A client whose certificate has ended dials again, with a newer one if it has that:
// its connection does not stay for calls that are all refused.
func TestAConnectionEndsSoonAfterItsClientsCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		long := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(30 * time.Minute) }
		server, client := a.issue(t, "server", func(c *x509.Certificate) { c.DNSNames = []string{"server"} }), a.issue(t, "client", long)
		client.ServerName = "server"
		near, far := net.Pipe()
		done := make(chan error, 1)
		go func() {
			c, err := Secured(t.Context(), far, server, true)
			if err == nil {
				_, err = c.Read(make([]byte, 1)) // until it is closed
				_ = c.Close()
			}
			done <- err
		}()
		c, err := Secured(t.Context(), near, client, false)
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan struct{})
		go func() { defer close(heard); _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		time.Sleep(30*time.Minute + ClockTolerance)
		synctest.Wait()
		if len(done) != 0 {
			t.Fatalf("it ended before its calls could be told: %v", <-done)
		}
		time.Sleep(expiryGrace)
		synctest.Wait()
		if len(done) != 1 {
			t.Fatal("it goes on")
		}
		<-heard
	})
}
