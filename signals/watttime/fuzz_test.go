package watttime

import (
	"testing"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

// Whatever a server sends, what is taken is valid and in order.
func FuzzDecode(f *testing.F) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Add([]byte(`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":870,"imputed_data_used":true},{"point_time":"2026-03-01T11:55:00+00:00","value":null}],"meta":{"region":"DE","signal_type":"co2_moer","units":"lbs_co2_per_mwh","data_point_period_seconds":300,"generated_at":"2026-03-01T12:00:00Z","generated_at_period_seconds":300,"model":{"date":"2025-01-01"},"warnings":[{"type":"a","message":"b"},"c"]}}`), 0)
	f.Add([]byte(`{"data":[{"point_time":"2026-03-01T12:00:00Z","value":50}],"meta":{"units":"percentile"}}`), 2)
	f.Add([]byte(`{"region":"DE","token":"a.b.c"}`), 1)
	f.Fuzz(func(t *testing.T, body []byte, which int) {
		s := []Signal{Marginal, Average, Index}[uint(which)%3]
		d, err := decode(body, "DE", s, signals.Good, at)
		if err == nil {
			for i, r := range d.readings {
				if err := r.Validate(); err != nil {
					t.Fatal(err)
				}
				if i > 0 && !d.readings[i-1].PointTime.Before(r.PointTime) {
					t.Fatal("out of order")
				}
			}
			if d.period <= 0 || d.refresh <= 0 {
				t.Fatalf("periods %s, %s", d.period, d.refresh)
			}
		}
		if got, err := decodeToken(fetch.Answer{Body: body, Received: at}); err == nil && got.Value == "" {
			t.Fatal("an empty token")
		}
		if got, err := decodeRegion(fetch.Answer{Body: body, Received: at}); err == nil && got.Value == "" {
			t.Fatal("an empty region")
		}
	})
}
