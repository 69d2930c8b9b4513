package statusview

import (
	"fmt"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// dataParts says how far the pass over the shared corpus is, where one is counted.
func dataParts(s *coordinatorv1.FederationStatus) []string {
	d := s.GetData()
	if d.GetSamples() == 0 {
		return nil
	}
	// Never 100 % before the last sample.
	percent := 100 * (float64(d.GetConsumed()) / float64(d.GetSamples()))
	if d.GetConsumed() < d.GetSamples() {
		percent = min(percent, 99)
	}
	return []string{fmt.Sprintf("pass %d: %.0f %% of %s samples consumed", d.GetPass(), percent, Count(float64(d.GetSamples())))}
}
