package e2e

import (
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// A killed agent reads its replica from disk and pulls the deltas that it missed,
// and the status tells so, with the time to its first step in parts.
func TestAgentThatReturnsStartsFromDiskAndPullsDeltasOnly(t *testing.T) {
	both(t, func(t *testing.T, algorithm string) {
		c := newCluster(t, spec{algorithm: algorithm, sites: 2, rounds: quickRounds})
		c.startCoordinator()
		c.startAgent(0)
		victim := c.startAgent(1)
		start := func(s *coordinatorv1.FederationStatus) *coordinatorv1.WarmStart {
			if members := site(s, "b").GetMembers(); len(members) == 1 {
				return members[0].GetWarmStart()
			}
			return nil
		}
		first := c.until("b's first step", func(s *coordinatorv1.FederationStatus) bool {
			return start(s) != nil && s.GetVersion() >= 2
		})
		cold := start(first)
		if cold.GetFromDisk() || cold.GetPulledBytes() < 4*first.GetParameters() || cold.GetPulledBytes() == cold.GetDeltaBytes() {
			t.Errorf("the first start: %v", cold)
		}
		if s := site(first, "b"); s.FirstStepSeconds == nil || !(s.GetFirstStepSeconds() > 0) {
			t.Errorf("no time from the admission of b to its first step: %v", s)
		}
		if facts := site(first, "b").GetMembers()[0].GetTrainer(); facts["precision"] != "fp32" || facts["batchSize"] == "" {
			t.Errorf("the trainer says of itself %v", facts)
		}
		victim.kill()
		killed := c.until("anything", func(*coordinatorv1.FederationStatus) bool { return true })
		c.untilVersion(killed.GetVersion() + 2)
		c.startAgent(1)
		warm := start(c.until("b's first step after its return", func(s *coordinatorv1.FederationStatus) bool {
			return start(s).GetFromDisk()
		}))
		if warm.GetDeltaBytes() == 0 || warm.GetPulledBytes() != warm.GetDeltaBytes() {
			t.Errorf("the return pulled more than deltas: %v", warm)
		}
		if algorithm == "DecoupledMomentum" && warm.GetPulledBytes() > cold.GetPulledBytes()/4 {
			t.Errorf("the return pulled %d bytes, the first start %d", warm.GetPulledBytes(), cold.GetPulledBytes())
		}
		parts := warm.GetProcessSeconds() + warm.GetPullSeconds() + warm.GetLoadSeconds()
		if !(warm.GetProcessSeconds() > 0) || !(warm.GetPullSeconds() > 0) || !(warm.GetLoadSeconds() > 0) || parts > warm.GetFirstStepSeconds()*(1+1e-9) {
			t.Errorf("parts of the return: %v", warm)
		}
		t.Logf("cold %v; warm %v", cold, warm)
		c.stop()
		c.verify()
	})
}
