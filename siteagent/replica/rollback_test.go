package replica

import (
	"testing"

	"girassol.dev/internal/algorithm"
)

// A replica of before the rollback forgets what it has not sent, whether it was
// there when it happened or comes back later; one that is past it keeps its work.
func TestWorkOnAStateThatWasGivenUpIsForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		commits    int    // after the version that the work is on
		rolledBack uint64 // as the manifest of the newest version says
		accepted   bool
		forgotten  bool
	}{
		"the rollback follows the work":            {1, 1, false, true},
		"with an update that was accepted":         {1, 1, true, true},
		"commits follow the rollback":              {4, 2, false, true},
		"the rollback is older than the work":      {2, 0, false, false},
		"an update passed over that was not taken": {2, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, algorithm.DecoupledMomentum)
			r := open(t, t.TempDir())
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
