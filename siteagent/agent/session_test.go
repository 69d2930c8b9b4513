package agent

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
)

func TestAFencedAgentEndsRatherThanFights(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.newest().end <- status.Error(codes.Aborted, "Superseded: a newer session of porto/n1 has taken over")
	if err := r.ended(); !errors.Is(err, ErrFenced) {
		t.Fatalf("ended with %v, want ErrFenced", err)
	}
	if n := len(c.members); n != 1 {
		t.Fatalf("%d sessions", n)
	}
}

func TestAnUndeclaredSiteIsTriedAgainUntilItIsDeclared(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	c.refuse = status.Error(codes.NotFound, "UnknownSite: porto")
	refused := make(chan struct{}, 1)
	launch(t, c, "", &person{t: t}, func(cfg *Config) {
		dial := cfg.Dial
		tries := 0
		cfg.Dial = func() (*grpc.ClientConn, error) {
			if tries++; tries == 3 {
				refused <- struct{}{}
			}
			return dial()
		}
	})
	<-refused
	c.do(func() { c.refuse = nil })
	c.waitReady(0)
}

func TestASilentCoordinatorIsLeftForANewConnection(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	c.loss = time.Second
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.do(func() { c.mute = true })
	c.wait("a second session", func() bool { return len(c.members) >= 2 })
	c.do(func() { c.mute = false })
	c.waitReady(0)
}

func TestTrainingGoesOnWhileTheSessionIsBroken(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	p := &person{t: t}
	launch(t, c, "", p)
	c.waitReady(0)
	c.tell(c.grant(1, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 1 })
	c.newest().end <- errDown
	c.wait("a second session", func() bool { return len(c.members) == 2 })
	c.waitBeat("still at work", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_TRAINING && h.GetRound() == 1
	})
	c.tell(c.grant(1, 0, long)) // the new session's grant for the round at work
	c.tell(&coordinatorv1.Stop{Round: 1})
	if u := c.waitPushes(1)[0].header; u.GetRound() != 1 || u.GetEpoch() != 2 || u.GetSteps() < 2 {
		t.Fatalf("header %v", u)
	}
	if n := len(p.taken()); n != 1 {
		t.Fatalf("%d tasks", n)
	}
}

func TestClocksMayDifferByMinutes(t *testing.T) {
	for _, skew := range []time.Duration{90 * time.Second, -90 * time.Second, 10 * time.Minute} {
		t.Run(skew.String(), func(t *testing.T) {
			c := newCoordinator(t, algorithm.DecoupledMomentum, small)
			c.skew = skew
			r := launch(t, c, "", &person{t: t})
			c.waitReady(0)
			c.tell(c.grant(1, 2, long))
			if u := c.waitPushes(1)[0].header; u.GetSteps() != 2 {
				t.Fatalf("header %v", u)
			}
			offset, ok := r.agent.clock.estimate()
			if !ok || (offset-skew).Abs() > 30*time.Second {
				t.Fatalf("offset %s (%v), want about %s", offset, ok, skew)
			}
		})
	}
}

func TestTheStopTimeIsTheEarlierOfBothForms(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	for name, tc := range map[string]struct {
		offset time.Duration // of the coordinator's clock
		known  bool
		in     time.Duration
		at     int64
		want   time.Duration
	}{
		"the same":                  {0, true, 10 * time.Second, at(10 * time.Second), 10 * time.Second},
		"the grant was delayed":     {0, true, 10 * time.Second, at(4 * time.Second), 4 * time.Second},
		"the span is shorter":       {0, true, 3 * time.Second, at(10 * time.Second), 3 * time.Second},
		"coordinator ahead":         {90 * time.Second, true, 10 * time.Second, at(98 * time.Second), 8 * time.Second},
		"coordinator behind":        {-90 * time.Second, true, 10 * time.Second, at(-82 * time.Second), 8 * time.Second},
		"no estimate of the offset": {0, false, 10 * time.Second, at(-50 * time.Second), 10 * time.Second},
		"over already":              {0, true, 10 * time.Second, at(-time.Second), -time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var c clockOffset
			if tc.known {
				c.observe(now, now, now.Add(tc.offset).UnixMilli())
			}
			got := c.stopTime(now, &coordinatorv1.Grant{StopInMs: tc.in.Milliseconds(), StopAtUnixMs: tc.at}).Sub(now)
			if (got - tc.want).Abs() > 2*time.Millisecond { // both forms are in milliseconds
				t.Fatalf("stops in %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTheQuickestExchangeSetsTheClockOffset(t *testing.T) {
	var c clockOffset
	now := time.Now()
	c.observe(now, now.Add(10*time.Second), now.Add(9*time.Second).UnixMilli())              // off by its detour
	c.observe(now, now.Add(10*time.Millisecond), now.Add(2005*time.Millisecond).UnixMilli()) // 2 s
	c.observe(now, now.Add(-time.Second), now.UnixMilli())                                   // impossible
	got, ok := c.estimate()
	if !ok || (got-2*time.Second).Abs() > 2*time.Millisecond {
		t.Fatalf("offset %s, want 2s", got)
	}
}

func TestRetriesNeverGiveUp(t *testing.T) {
	cfg := Config{RetryInitial: time.Second, RetryMax: time.Minute}
	b := cfg.newBackOff()
	if b.MaxElapsedTime != 0 {
		t.Fatalf("gives up after %s", b.MaxElapsedTime)
	}
	for range 1000 {
		if d := b.NextBackOff(); d == backoff.Stop || d > 90*time.Second || d <= 0 {
			t.Fatalf("pause of %s", d)
		}
	}
}

func TestLeaveFinishesUploadsAndEnds(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 0 })
	r.agent.Leave("terminated", time.Minute)
	c.wait("the wish to leave", func() bool { return len(c.members[0].leaves) == 1 })
	c.tell(&coordinatorv1.Drain{DeadlineInMs: 60_000, Reason: "AgentLeaving"})
	u := c.waitPushes(1)[0].header
	if err := r.ended(); err != nil {
		t.Fatal(err)
	}
	if l := c.members[0].leaves[0]; l.GetReason() != "terminated" || l.GetGraceMs() != 60_000 {
		t.Fatalf("leave %v", l)
	}
	if u.GetSteps() == 0 || u.GetWeight() != float64(u.GetSamples()) {
		t.Fatalf("header %v", u)
	}
}

func TestAnIdleAgentLeavesAtOnce(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	c.refuse = errDown
	r := launch(t, c, "", nil)
	r.agent.Leave("terminated", time.Minute)
	if err := r.ended(); err != nil {
		t.Fatal(err)
	}
}

func TestALeaveEndsByItsDeadlineAndSaysSo(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	c.pushDown = true
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 2, long))
	c.waitBeat("uploading", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_UPLOADING
	})
	r.agent.Leave("terminated", 50*time.Millisecond)
	if err := r.ended(); !errors.Is(err, ErrGraceExpired) {
		t.Fatalf("ended with %v, want ErrGraceExpired", err)
	}
	if r.agent.cfg.Replica.Pending() == nil {
		t.Fatal("the update is gone")
	}
}

func TestADrainedMemberStaysAndTakesALaterGrant(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 0 })
	c.tell(&coordinatorv1.Drain{DeadlineInMs: 60_000, Reason: "WaitingForEnergy"})
	if u := c.waitPushes(1)[0].header; u.GetRound() != 1 || u.GetSteps() == 0 {
		t.Fatalf("header %v", u)
	}
	c.tell(c.grant(2, 1, long))
	if u := c.waitPushes(2)[1].header; u.GetRound() != 2 {
		t.Fatalf("header %v", u)
	}
	if n := len(c.members); n != 1 {
		t.Fatalf("%d sessions", n)
	}
}

func TestShutdownUploadsAndEnds(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 0 })
	c.tell(&coordinatorv1.Shutdown{Reason: "Completed"})
	if err := r.ended(); err != nil {
		t.Fatal(err)
	}
	if len(c.pushes) != 1 || math.IsNaN(c.pushes[0].header.GetWeight()) {
		t.Fatalf("%d pushes", len(c.pushes))
	}
}

// A coordinator that is upgraded, moved or gives up comes back, and finds its
// agents there: they neither end nor lose what they have trained.
func TestACoordinatorThatStopsFindsItsAgentsWhenItIsBack(t *testing.T) {
	for _, reason := range []string{"CoordinatorStopped", "CommitLogFailed", "SomethingNewer"} {
		t.Run(reason, func(t *testing.T) {
			c := newCoordinator(t, algorithm.DecoupledMomentum, small)
			launch(t, c, "", &person{t: t})
			c.waitReady(0)
			c.tell(c.grant(1, 0, long))
			c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 0 })
			c.tell(&coordinatorv1.Shutdown{Reason: reason})
			if u := c.waitPushes(1)[0].header; u.GetRound() != 1 || u.GetSteps() == 0 {
				t.Fatalf("the work of the round at the stop is offered: %v", u)
			}
			c.newest().end <- nil
			c.wait("a second session", func() bool { return len(c.members) == 2 })
			c.tell(c.grant(2, 1, long))
			if u := c.waitPushes(2)[1].header; u.GetRound() != 2 {
				t.Fatalf("header %v", u)
			}
		})
	}
}

func TestWithoutATrainerTheMemberSaysWhatItWaitsFor(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", nil)
	h := c.waitBeat("waits for a trainer", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER
	})
	if h.GetDetail() == "" {
		t.Fatal("no detail")
	}
	c.tell(c.grant(1, 2, 100*time.Millisecond))
	c.waitBeat("nothing to report", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 1 && h.GetSteps() == 0
	})
}

// A hello is on its way while the replica moves on.
func TestAHelloKeepsTheDigestThatItWasMadeWith(t *testing.T) {
	a := &Agent{}
	a.status.held, a.status.digest = true, [32]byte{1}
	h := a.hello()
	a.status.digest = [32]byte{2}
	if d := h.GetModelDigest(); len(d) != 32 || d[0] != 1 {
		t.Errorf("%x", d)
	}
}

// A site that waits for its trainer says so from the start, with the trainer's
// own last words: an idle site without a model waits for it too.
func TestAMissingTrainerIsToldBeforeThereIsAModel(t *testing.T) {
	c := newCoordinator(t, algorithm.FedAvg, small)
	c.hasModel = false
	launch(t, c, "", nil, func(cfg *Config) { cfg.TrainerFault = func() string { return "exit status 1: unknown flag" } })
	c.waitBeat("told of the trainer", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER && strings.Contains(h.GetDetail(), "exit status 1: unknown flag")
	})
}
