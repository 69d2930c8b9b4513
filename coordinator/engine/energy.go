package engine

import (
	"math"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// MemberEnergy is what a member's own counter tells.
type MemberEnergy struct {
	Member   string
	Training bool
	// Counter is nil without one.
	Counter *coordinatorv1.Energy
	// Silent: no heartbeat of the session has come yet, so that it is not known
	// whether there is a counter.
	Silent bool
}

// counted is a heartbeat's energy, nil if it is no counter: not finite, negative,
// or with more of it metered than there is.
func counted(e *coordinatorv1.Energy) *coordinatorv1.Energy {
	if e == nil || len(e.GetSource()) > maxName {
		return nil
	}
	for _, v := range []float64{e.GetJoules(), e.GetUncertaintyJoules(), e.GetMeteredJoules()} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return nil
		}
	}
	if e.GetMeteredJoules() > e.GetJoules() {
		return nil
	}
	return e
}
