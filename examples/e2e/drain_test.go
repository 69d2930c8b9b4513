package e2e

import (
	"context"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func (c *cluster) setMembership(name string, m coordinatorv1.Membership, deadlineMs int64) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.admin.SetMembership(ctx, &coordinatorv1.SetMembershipRequest{Site: name, Membership: m, DeadlineMs: deadlineMs, Message: "maintenance"})
	if err != nil {
		c.t.Fatal(err)
	}
}

// A drained site hands in what it has, is out before the round would have
// ended, and takes part again when it is admitted. Its trainer lives on.
func TestDrainedSiteHandsInItsPartialWorkAndComesBack(t *testing.T) {
	both(t, func(t *testing.T, algorithm string) {
		c := newCluster(t, spec{algorithm: algorithm, sites: 2, rounds: "trainSeconds: 60, collectSeconds: 10, joinSeconds: 60, localSteps: 6000"})
		c.startCoordinator()
		c.startAgent(0)
		c.startAgent(1)
		working := c.until("trained at both sites", func(s *coordinatorv1.FederationStatus) bool {
			for _, name := range []string{"a", "b"} {
				ms := site(s, name).GetMembers()
				if len(ms) == 0 || ms[0].GetSteps() == 0 || ms[0].GetSteps() > 2000 || ms[0].GetState() != coordinatorv1.MemberState_MEMBER_STATE_TRAINING {
					return false
				}
			}
			return s.GetVersion() >= 1
		})
		c.setMembership("a", coordinatorv1.Membership_MEMBERSHIP_DRAIN, 20_000)
		idle := c.until("drained a", func(s *coordinatorv1.FederationStatus) bool { return site(s, "a").GetPhase() == "Idle" })
		if s := site(idle, "a"); s.GetReason() != "Requested" || s.GetMessage() != "maintenance" {
			t.Errorf("a is Idle because %s (%s), want Requested (maintenance)", s.GetReason(), s.GetMessage())
		}
		c.untilVersion(working.GetVersion() + 2)
		c.setMembership("a", coordinatorv1.Membership_MEMBERSHIP_ADMIT, 0)
		c.until("took a back", func(s *coordinatorv1.FederationStatus) bool {
			return site(s, "a").GetRoundsContributed() > site(idle, "a").GetRoundsContributed() && s.GetVersion() > working.GetVersion()+2
		})
		c.stop()
		partial := false
		for _, m := range c.verify() {
			if m.Round != working.GetRound().GetNumber() {
				continue
			}
			for _, x := range m.Members {
				partial = partial || x.Member == "a/n1" && x.Samples > 0 && x.Weight == float64(x.Samples)
			}
		}
		if !partial {
			t.Errorf("the work of a in round %d does not count", working.GetRound().GetNumber())
		}
	})
}
