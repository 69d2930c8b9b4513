package window

import (
	"encoding/json"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
)

// A state comes from a file: whatever it says, deciding goes on.
func FuzzStateJSON(f *testing.F) {
	p := Policy{Mode: Percentile, Enter: 30, Leave: 60, EnterConfirmations: 2, LeaveConfirmations: 2,
		MinimumOn: time.Hour, MinimumOff: time.Hour, MaxStale: time.Hour, OnStale: v1alpha1.StaleHold, Trailing: time.Hour}
	var s State
	for i := range 15 {
		at, v := t0.Add(time.Duration(i)*period), float64(100-i)
		s, _ = Decide(p, s, reading(at, &v), at)
	}
	b, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, 50.0)
	f.Add([]byte(`{"open":true,"last":{"periodNanoseconds":-5},"trailing":[[1,2,3]],"zeros":["2026-01-01T00:00:00Z"]}`), 0.0)
	f.Add([]byte(`{"open":true,"leaveCount":1,"forecast":{"kind":"marginal","unit":"gCO2/kWh","generatedAt":"2026-01-01T00:00:00Z",`+
		`"points":[[1767225600000000000,50,300000000000],[5,300,-7],[1767226200000000000,300,300000000000]]}}`), 50.0)
	f.Fuzz(func(t *testing.T, b []byte, v float64) {
		var s State
		if json.Unmarshal(b, &s) != nil {
			return
		}
		for _, policy := range []Policy{p, {Mode: Grams, Enter: 100, Leave: 100, LeaveConfirmations: 1, OnStale: v1alpha1.StaleDrain, MinWindow: time.Hour, LeaveLead: time.Minute}} {
			now, state := t0, s
			for range 5 {
				var d Decision
				state, d = Decide(policy, state, reading(now, &v), now)
				if !d.NextChange.IsZero() && !d.NextChange.After(now) {
					t.Fatalf("next change %s at %s", d.NextChange, now)
				}
				now = now.Add(period)
			}
		}
	})
}
