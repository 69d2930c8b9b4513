package e2e

import (
	"context"
	"encoding/base64"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// girassol runs the person's command and returns what it printed.
func (c *cluster) girassol(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, cli, append(args, "--address", c.addr)...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("girassol %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A reading that somebody signs and pushes opens and closes a real site's
// window; an override wins for a while; everything can be explained.
func TestPushedSignalsAdmitAndDrainASite(t *testing.T) {
	t.Parallel()
	push := freeAddr(t)
	c := newCluster(t, spec{algorithm: "DecoupledMomentum", sites: 1, rounds: "trainSeconds: 1, collectSeconds: 10",
		energy: "{enterBelowGrams: 100, leaveAboveGrams: 150, enterConfirmations: 1, leaveConfirmations: 1, webhook: {sources: [{name: meter, secretFiles: [SECRET], sites: [a]}]}}",
		grid:   "{provider: Webhook, source: meter}"})
	secret := filepath.Join(c.dir, "meter.key")
	c.write("meter.key", "whsec_"+base64.StdEncoding.EncodeToString([]byte("a secret of a meter, 32 bytes ok"))+"\n")
	c.edit("federation.yaml", "SECRET", secret)
	c.startCoordinator("--signals-listen", push)
	c.startAgent(0)
	c.until("waited for a signal", func(s *coordinatorv1.FederationStatus) bool {
		return site(s, "a").GetPhase() == "Idle" && site(s, "a").GetReason() == "SignalMissing"
	})
	send := func(value string) string {
		return c.girassol("signal", "send", "--url", "http://"+push, "--secret-file", secret, "--source", "meter", "--site", "a",
			"--kind", "marginal", "--unit", "gCO2/kWh", "--value", value, "--start", "now", "--period", "5m")
	}
	send("42")
	clean := c.until("trained on clean power", func(s *coordinatorv1.FederationStatus) bool {
		return s.GetVersion() >= 1 && site(s, "a").GetSignal().GetValue() == 42
	})
	if s := site(clean, "a"); s.GetSignal().GetUnit() != "gCO2/kWh" || s.GetSignal().GetWindow() != "Open" {
		t.Errorf("signal %v", s.GetSignal())
	}
	if said := c.girassol("explain", "a"); !strings.Contains(said, "42 gCO2/kWh") || !strings.Contains(said, "opens below 100") {
		t.Errorf("explain says\n%s", said)
	}
	send("480")
	c.until("drained on dirty power", func(s *coordinatorv1.FederationStatus) bool {
		return site(s, "a").GetPhase() == "Idle" && site(s, "a").GetReason() == "WaitingForEnergy"
	})
	c.girassol("override", "a", "--admit", "--for", "1h", "--reason", "a test")
	c.until("was overridden", func(s *coordinatorv1.FederationStatus) bool {
		return site(s, "a").GetPhase() == "Active" && site(s, "a").GetReason() == "Training"
	})
	if said := c.girassol("explain", "a"); !strings.Contains(said, "override") || !strings.Contains(said, "a test") {
		t.Errorf("explain says\n%s", said)
	}
	c.girassol("override", "a", "--clear")
	c.until("waited for energy again", func(s *coordinatorv1.FederationStatus) bool {
		return site(s, "a").GetPhase() == "Idle" && site(s, "a").GetReason() == "WaitingForEnergy"
	})
	if rows := strings.Split(c.girassol("report"), "\n"); len(rows) < 4 || !strings.HasPrefix(rows[1], "federation,") || !strings.Contains(rows[0], "marginal_kgco2") {
		t.Errorf("report says\n%s", strings.Join(rows, "\n"))
	}
	// A coordinator that was killed remembers what was pushed.
	c.coord.kill()
	c.startCoordinator("--signals-listen", push)
	c.until("knew the last reading after a restart", func(s *coordinatorv1.FederationStatus) bool {
		return site(s, "a").GetSignal().GetValue() == 480 && site(s, "a").GetReason() == "WaitingForEnergy"
	})
	c.stop()
	c.verify()
}
