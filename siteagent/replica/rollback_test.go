package replica

import (
	"testing"

	"girassol.dev/internal/algorithm"
)

// A replica of before the rollback forgets what it has not sent, whether it was
// there when it happened or comes back later; one that is past it keeps its work.
func TestWorkOnAStateThatWasGivenUpIsForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		commits    int    // after version 3, which the work is on
		rolledBack uint64 // as the manifest of the newest version says
		accepted   bool
		forgotten  bool
	}{
		"the rollback follows the work":    {1, 4, false, true},
		"with an update that was accepted": {1, 4, true, true},
		"commits follow the rollback":      {4, 5, false, true},
		"the work is on the rollback":      {2, 3, false, false},
		"the work is on a commit after it": {2, 2, true, false},
		"there was no rollback":            {2, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, algorithm.DecoupledMomentum)
			r := open(t, t.TempDir())
			for range 3 {
				b.commit("others")
			}
			must(t, r.Install(b.man, b.snapshot()))
			b.stage(r, "mine")
			if c.accepted {
				must(t, r.Accept())
			}
			for range c.commits {
				b.commit("others")
			}
			b.man.RolledBack = c.rolledBack
			must(t, r.Install(b.man, b.snapshot()))
			for range 2 {
				b.holdsState(r)
				if r.Pending() != nil {
					t.Error("an update is pending")
				}
				if zero := r.ResidualNorm() == 0; zero != c.forgotten {
					t.Errorf("residual norm %g", r.ResidualNorm())
				}
				r = reopen(t, r)
			}
			rho, err := r.Prepare(b.params.Uplink.Transform, nil, true)
			if err != nil || c.forgotten && rho != 0 {
				t.Errorf("rho %g, %v", rho, err)
			}
		})
	}
}
