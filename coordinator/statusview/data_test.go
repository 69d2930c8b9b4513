package statusview

import (
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func TestATableTellsHowFarThePassIs(t *testing.T) {
	for want, d := range map[string]*coordinatorv1.DataStatus{
		"":                                       nil,
		"pass 0: 61 % of 100 samples consumed":   {Samples: 100, Consumed: 61},
		"pass 3: 99 % of 1.20M samples consumed": {Pass: 3, Samples: 1_200_000, Consumed: 1_199_999},
		"pass 1: 100 % of 9 samples consumed":    {Pass: 1, Samples: 9, Consumed: 9},
	} {
		var b strings.Builder
		Table(&b, &coordinatorv1.FederationStatus{Data: d}, 0)
		if !strings.Contains(b.String(), want) || want == "" && strings.Contains(b.String(), "consumed") {
			t.Errorf("%v shows as:\n%swant %q", d, b.String(), want)
		}
	}
}
