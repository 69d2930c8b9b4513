package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/checkpoint"
)

func TestASiteThatSpoilsTheModelIsRolledBackAndTheRunRecovers(t *testing.T) {
	both(t, func(t *testing.T, algorithm string) {
		// Few steps a round: the toy's first versions must not be worse than no training.
		c := newCluster(t, spec{algorithm: algorithm, sites: 2, rounds: quickRounds + ", localSteps: 60", evaluation: `{every: 1, site: a, gate: {margin: "1", maxRollbacks: 100}}`})
		c.startCoordinator()
		c.startAgent(0)
		b := c.startAgent(1)
		good := c.until("judged a version with work of both", func(s *coordinatorv1.FederationStatus) bool {
			return s.GetGate().GetReferenceVersion() >= 2 && site(s, "b").GetRoundsContributed() > 1
		})
		b.kill()
		c.trainer = []string{"--lr", "10", "--warmup", "0"}
		b = c.startAgent(1)
		back := c.until("rolled back", func(s *coordinatorv1.FederationStatus) bool { return s.GetLastRollback() != nil })
		rb, bad := back.GetLastRollback(), back.GetGate()
		if rb.GetReason() != "EvaluationWorse" || rb.GetToVersion() >= rb.GetFromVersion() || rb.GetVersion() != rb.GetFromVersion()+1 || bad.Loss == nil {
			t.Fatalf("rolled back %v, gate %v", rb, bad)
		}
		b.kill()
		c.trainer = nil
		c.startAgent(1)
		well := c.until("recovered", func(s *coordinatorv1.FederationStatus) bool {
			at := s.GetLastRollback().GetVersion()
			return s.GetVersion() >= at+3 && s.GetGate().GetVerdict() == "Passed" && s.GetGate().GetVersion() >= at+2 &&
				site(s, "b").GetRoundsContributed() > site(back, "b").GetRoundsContributed()
		})
		if loss := well.GetEvaluation().GetLoss(); !(loss < bad.GetLoss()) {
			t.Errorf("held-out loss %g in the end, %g in the bad version", loss, bad.GetLoss())
		}
		if well.GetCommittedSamples() <= good.GetCommittedSamples() {
			t.Error("samples were taken back")
		}
		c.stop()
		manifests := c.verify()
		i := slices.IndexFunc(manifests, func(m checkpoint.Manifest) bool { return m.Version == rb.GetVersion() })
		if manifests[0].Version > rb.GetVersion() {
			return // pruned as soon as its snapshot is one of the two that stay
		}
		if i < 0 || manifests[i].Kind != checkpoint.KindRollback || manifests[i].Rollback.To != rb.GetToVersion() {
			t.Errorf("the commit log does not tell rollback %v", rb)
		}
	})
}

func TestAPersonRollsBackAndAKilledCoordinatorKeepsIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t, spec{algorithm: "DecoupledMomentum", sites: 2, rounds: quickRounds})
	c.startCoordinator()
	c.startAgent(0)
	c.startAgent(1)
	c.untilVersion(3)
	girassol := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, cli, append(args, "--address", c.addr)...).CombinedOutput()
		return string(out), err
	}
	if out, err := girassol("rollback", "--to", "999"); err == nil || !strings.Contains(out, "those that can be had: 0-") {
		t.Errorf("to a version that is not: %v, %s", err, out)
	}
	out, err := girassol("rollback", "--to", "1", "--message", "try again")
	if err != nil || !strings.Contains(out, "has the state of version 1 ") {
		t.Fatalf("rollback: %v, %s", err, out)
	}
	c.coord.kill()
	c.startCoordinator()
	st := c.until("told of the rollback", func(s *coordinatorv1.FederationStatus) bool { return s.GetLastRollback() != nil })
	rb := st.GetLastRollback()
	if rb.GetToVersion() != 1 || rb.GetReason() != "RolledBack" || rb.GetMessage() != "try again" || !strings.Contains(out, fmt.Sprint("version ", rb.GetVersion(), " ")) {
		t.Errorf("status after the kill: %v; it said %s", rb, out)
	}
	c.until("trained with both on top of it", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetVersion() >= rb.GetVersion()+2 && site(s, "a").GetRoundsContributed() > site(st, "a").GetRoundsContributed() && site(s, "b").GetRoundsContributed() > site(st, "b").GetRoundsContributed()
	})
	c.stop()
	c.verify()
}
