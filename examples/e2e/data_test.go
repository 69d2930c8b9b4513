package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/checkpoint"
)

// TestEverySampleOfASharedCorpusIsCommittedOncePerPassOverKills trains two passes
// while agents and the coordinator are killed, and agents are drained, at random.
func TestEverySampleOfASharedCorpusIsCommittedOncePerPassOverKills(t *testing.T) {
	both(t, func(t *testing.T, algorithm string) {
		const samples, passes, sites = 6000, 2, 3
		c := newCluster(t, spec{algorithm: algorithm, sites: sites, rounds: "localSteps: 100, trainSeconds: 5, collectSeconds: 10, joinSeconds: 60, minSites: 1"})
		c.edit("federation.yaml", "  algorithm:", fmt.Sprintf("  data: {samples: %d, leaseSamples: 64, passes: %d}\n  algorithm:", samples, passes))
		for i := range sites { // the corpus is the same at all sites
			c.write(filepath.Join("text", siteName(i), "a.txt"), strings.Repeat("all sites read the same words, each its own part of them.\n", 4000))
		}
		c.startCoordinator()
		for i := range sites {
			c.startAgent(i)
		}
		rng := rand.New(rand.NewPCG(uint64(len(algorithm)), 0))
		disturbed := 0
		for version := uint64(1); ; {
			st := c.until("went on", func(s *coordinatorv1.FederationStatus) bool {
				return s.GetPhase() == "Completed" || s.Version != nil && s.GetVersion() >= version && s.GetRound().GetState() == "Collecting"
			})
			if st.GetPhase() == "Completed" {
				break
			}
			// A pass has a few dozen rounds; there must be an end to disturbing it.
			if version = st.GetVersion() + 1; disturbed == 12 {
				continue
			}
			disturbed++
			i := rng.IntN(sites)
			switch a := c.agents[siteName(i)]; rng.IntN(4) {
			case 0:
				c.coord.kill()
				c.startCoordinator()
			case 1:
				a.signal(syscall.SIGTERM)
				a.wait()
				c.startAgent(i)
			default:
				a.kill()
				c.startAgent(i)
			}
		}
		t.Logf("%d kills and drains", disturbed)
		if disturbed < 5 {
			t.Errorf("only %d kills and drains in the whole run", disturbed)
		}
		st := c.until("was complete", func(s *coordinatorv1.FederationStatus) bool { return s.GetPhase() == "Completed" })
		if d := st.GetData(); d.GetPass() != passes-1 || d.GetConsumed() != samples || !strings.Contains(st.GetMessage(), "all 2 passes over the 6000 samples") {
			t.Errorf("%v, %s", d, st.GetMessage())
		}
		c.stop()
		checkSamples(t, c.verify(), samples, passes)
	})
}

// checkSamples: the commits have used each sample of each pass once.
func checkSamples(t *testing.T, manifests []checkpoint.Manifest, samples, passes uint64) {
	t.Helper()
	counts := make([][]uint8, passes)
	for p := range counts {
		counts[p] = make([]uint8, samples)
	}
	for _, m := range manifests {
		for _, mm := range m.Members {
			if len(mm.Consumed) == 0 || mm.Samples != 32*mm.Consumed.Size() {
				t.Errorf("version %d: %s has %d tokens of %s", m.Version, mm.Member, mm.Samples, mm.Consumed)
			}
			for _, r := range mm.Consumed {
				if r.Pass >= passes || r.End > samples {
					t.Fatalf("version %d: %s used %s", m.Version, mm.Member, r)
				}
				for i := r.Begin; i < r.End; i++ {
					if counts[r.Pass][i]++; counts[r.Pass][i] > 1 {
						t.Fatalf("version %d: %s used sample %d of pass %d again", m.Version, mm.Member, i, r.Pass)
					}
				}
			}
		}
		if n := len(m.Data.Consumed); n > 2*64 {
			t.Errorf("version %d: what is consumed is in %d pieces", m.Version, n)
		}
	}
	for p, c := range counts {
		for i, n := range c {
			if n == 0 {
				t.Fatalf("sample %d of pass %d is missing", i, p)
			}
		}
	}
}
