package agent

import trainerv1 "girassol.dev/api/trainer/v1"

// leased is a grant's data for the trainer. What it has not used by the round's
// end, or of an update that does not count, the coordinator leases again; work of
// such an update stays in the residual all the same.
func leased(g *grant) []trainerv1.DataRange {
	var out []trainerv1.DataRange
	for _, r := range g.GetData() {
		out = append(out, trainerv1.DataRange{Begin: r.GetBegin(), End: r.GetEnd(), Pass: r.GetPass()})
	}
	return out
}
