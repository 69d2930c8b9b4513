package e2e

import (
	"strings"
	"syscall"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

const quickRounds = "trainSeconds: 2, collectSeconds: 10, joinSeconds: 60, minSites: 1"

// both runs a test with sparse and with dense updates.
func both(t *testing.T, f func(t *testing.T, algorithm string)) {
	for _, a := range []string{"DecoupledMomentum", "DiLoCo"} {
		t.Run(a, func(t *testing.T) { t.Parallel(); f(t, a) })
	}
}

func TestCoordinatorKilledInMidRoundLosesAtMostThatRound(t *testing.T) {
	both(t, func(t *testing.T, algorithm string) {
		c := newCluster(t, spec{algorithm: algorithm, sites: 2, rounds: quickRounds})
		c.startCoordinator()
		c.startAgent(0)
		c.startAgent(1)
		before := c.untilCollecting(2, "a/n1", "b/n1")
		c.coord.kill()
		c.startCoordinator()
		after := c.untilVersion(before.GetVersion() + 3)
		if after.GetRoundsCommitted() < before.GetRoundsCommitted()+3 {
			t.Errorf("rounds committed went from %d to %d", before.GetRoundsCommitted(), after.GetRoundsCommitted())
		}
		c.stop()
		manifests := c.verify()
		for _, m := range []string{"a/n1", "b/n1"} {
			if !contributed(manifests, m, before.GetVersion()) {
				t.Errorf("%s never contributed after the restart", m)
			}
		}
		// Round numbers are never given twice: the round in flight at the kill is gone.
		lost := before.GetRound().GetNumber()
		for _, m := range manifests {
			if m.Version > before.GetVersion() && m.Round <= lost {
				t.Errorf("version %d of round %d was committed after round %d was lost", m.Version, m.Round, lost)
			}
		}
	})
}

func TestAgentKilledInMidRoundComesBackFromItsDisk(t *testing.T) {
	both(t, func(t *testing.T, algorithm string) {
		c := newCluster(t, spec{algorithm: algorithm, sites: 2, rounds: quickRounds})
		c.startCoordinator()
		c.startAgent(0)
		victim := c.startAgent(1)
		killed := c.untilCollecting(2, "a/n1", "b/n1")
		victim.kill()
		// The others go on.
		alone := c.untilVersion(killed.GetVersion() + 2)
		c.startAgent(1)
		back := c.until("took b back", func(s *coordinatorv1.FederationStatus) bool {
			return site(s, "b").GetRoundsContributed() > site(alone, "b").GetRoundsContributed()
		})
		if back.GetRoundsVoid() > 1 {
			t.Errorf("%d void rounds, at most the one in flight may be lost", back.GetRoundsVoid())
		}
		c.stop()
		c.verify()
	})
}

func TestTrainerKilledInMidRoundIsStartedAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, spec{algorithm: "DecoupledMomentum", sites: 2, rounds: quickRounds})
	c.startCoordinator()
	c.startAgent(0)
	agent := c.startAgent(1)
	killed := c.untilCollecting(2, "a/n1", "b/n1")
	trainers := agent.children()
	if len(trainers) != 1 {
		t.Fatalf("agent b has children %v, want its trainer", trainers)
	}
	if err := syscall.Kill(trainers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.until("took b back", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetVersion() > killed.GetVersion() && site(s, "b").GetRoundsContributed() > site(killed, "b").GetRoundsContributed()
	})
	c.stop()
	c.verify()
}

func TestAnAgentStartedTwiceFencesTheOlderOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t, spec{algorithm: "DecoupledMomentum", sites: 1, rounds: quickRounds})
	c.startCoordinator()
	older := c.startAgent(0)
	first := c.untilVersion(1)
	c.startAgentAs(0, "a-again")
	if code := older.wait(); code != 3 {
		t.Errorf("the older agent ended with code %d, want 3 (fenced)", code)
	}
	now := c.untilVersion(first.GetVersion() + 2)
	if e0, e1 := site(first, "a").GetMembers()[0].GetEpoch(), site(now, "a").GetMembers()[0].GetEpoch(); e1 <= e0 {
		t.Errorf("epoch %d after %d", e1, e0)
	}
	c.stop()
	c.verify()
}

func TestTwoOfThreeSitesTrainAfterTheJoinDeadline(t *testing.T) {
	t.Parallel()
	c := newCluster(t, spec{algorithm: "DecoupledMomentum", sites: 3, rounds: "trainSeconds: 1, collectSeconds: 10, joinSeconds: 5, minSites: 2"})
	c.startCoordinator()
	c.startAgent(0)
	c.startAgent(1)
	c.until("said that it waits for c", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetPhase() == "WaitingForSites" && strings.Contains(s.GetMessage(), "c")
	})
	st := c.untilVersion(2)
	if s := site(st, "c"); s.GetPhase() != "Joining" || s.GetReason() != "WaitingForAgent" {
		t.Errorf("c is %s because %s, want Joining because WaitingForAgent", s.GetPhase(), s.GetReason())
	}
	c.stop()
	c.verify()
}
