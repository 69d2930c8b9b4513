package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

func TestSessionIsLostBySilenceButNotByTheCoordinatorsOwnAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
		cfg.LossAfter = 3 * time.Second
		r := newRig(t, cfg)
		a := r.join("a")
		// The engine is away, as in a stopped process or on a slow disk.
		if err := r.engine.do(r.ctx(), func() { time.Sleep(10 * time.Second) }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-a.s.Done():
			t.Fatal("the session was given up for a silence that was the coordinator's own")
		default:
		}
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_IDLE, 0)
		heard := time.Now()
		<-a.s.Done()
		if silence := time.Since(heard); a.s.Reason() != v1alpha1.ReasonHeartbeatMissed || silence < 3*time.Second || silence > 4*time.Second {
			t.Fatalf("lost after %s for %s", silence, a.s.Reason())
		}
	})
}

func TestSiteHasABoundedNumberOfSessions(t *testing.T) {
	r := newRig(t, testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a", "b"))
	open := func(site, node string) error {
		_, err := r.engine.OpenSession(r.ctx(), &coordinatorv1.Hello{Federation: "fed", Site: site, Node: node})
		return err
	}
	for i := range 256 {
		if err := open("a", fmt.Sprint("n", i)); err != nil {
			t.Fatal(err)
		}
	}
	var full *QuotaError
	if err := open("a", "one-more"); !errors.As(err, &full) || full.Reason != v1alpha1.ReasonMembersQuota || full.RetryIn <= 0 || !strings.Contains(err.Error(), "spec.admission.quotas.members") {
		t.Fatalf("one more: %v", err)
	}
	for _, ok := range [][2]string{{"a", "n0"}, {"b", "n0"}} { // a reconnect, another site
		if err := open(ok[0], ok[1]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatAMemberSaysOfItselfIsCut(t *testing.T) {
	r := newRig(t, testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a"))
	long := strings.Repeat("ä", 1<<20)
	devices := make([]string, 1000)
	s, err := r.engine.OpenSession(r.ctx(), &coordinatorv1.Hello{Federation: "fed", Site: "a", Node: "n", AgentVersion: long,
		Hardware: &coordinatorv1.Hardware{Vendor: long, Driver: long, Runtime: long, Problems: append([]string{long}, devices...), Devices: append([]string{long}, devices...)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.engine.Heartbeat(r.ctx(), s, &coordinatorv1.Heartbeat{Detail: long, Link: &coordinatorv1.Link{Mode: long}}); err != nil {
		t.Fatal(err)
	}
	m := r.status().GetSites()[0].GetMembers()[0]
	if n := len(m.GetDetail()) + len(m.GetAgentVersion()) + len(m.GetHardware().GetVendor()) + len(m.GetHardware().GetDevices()[0]); n > 5*maxText {
		t.Errorf("status carries %d bytes of one member", n)
	}
	if n := proto.Size(m); n > 10*maxText {
		t.Errorf("status carries %d bytes of one member", n)
	}
	if n := len(m.GetHardware().GetDevices()); n > maxDevices {
		t.Errorf("%d devices", n)
	}
}
