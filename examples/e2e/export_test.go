package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// export runs a program's export command and returns what it wrote and the digest it
// told.
func (c *cluster) export(role, data string, more ...string) (model []byte, digest string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	out := filepath.Join(c.dir, role+".safetensors")
	text, err := exec.CommandContext(ctx, binary, append([]string{role, "export", "--data", data, "--out", out}, more...)...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s export: %v, %s", role, err, text)
	}
	found := regexp.MustCompile(`digest ([0-9a-f]{64})`).FindSubmatch(text)
	if found == nil {
		c.t.Fatalf("%s export tells no digest: %s", role, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		c.t.Fatal(err)
	}
	return b, string(found[1])
}

// Where the coordinator's store is lost, the state of a site is what a new one goes on
// from: model and momentum, bit for bit.
func TestALostStoreIsMadeAnewFromASitesCopy(t *testing.T) {
	both(t, func(t *testing.T, algorithm string) {
		c := newCluster(t, spec{algorithm: algorithm, sites: 2, rounds: quickRounds})
		c.startCoordinator()
		c.startAgent(0)
		c.startAgent(1)
		c.untilVersion(3)
		if b, _ := c.export("coordinator", c.store()); len(b) == 0 {
			t.Error("nothing was exported while the coordinator is at work")
		}
		if b, _ := c.export("agent", filepath.Join(c.dir, "agent-a")); len(b) == 0 {
			t.Error("nothing was exported while the agent is at work")
		}
		first, _ := c.export("coordinator", c.store(), "--version", "1")
		c.stop()
		want, digest := c.export("coordinator", c.store())
		if bytes.Equal(first, want) {
			t.Error("version 1 has the same bytes as the newest")
		}
		// The other site was drained first and may be a version behind.
		got, held := c.export("agent", filepath.Join(c.dir, "agent-b"))
		if held == digest && !bytes.Equal(got, want) {
			t.Error("coordinator and agent write the same version with different bytes")
		}
		_, held = c.export("agent", filepath.Join(c.dir, "agent-b"), "--momentum")

		if err := os.RemoveAll(c.store()); err != nil {
			t.Fatal(err)
		}
		c.edit("federation.yaml", "  rounds: {", "  model: {source: File, path: "+filepath.Join(c.dir, "agent.safetensors")+"}\n  rounds: {")
		c.startCoordinator()
		c.untilVersion(0)
		if _, seeded := c.export("coordinator", c.store(), "--version", "0"); seeded != held {
			t.Errorf("the new store begins with digest %s, the site held %s", seeded, held)
		}
		c.startAgent(0)
		c.startAgent(1)
		c.untilVersion(2)
		c.stop()
		c.verify()
	})
}
