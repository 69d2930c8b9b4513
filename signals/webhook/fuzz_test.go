package webhook

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// FuzzBody reads any body in any form: what is taken can be shown, stored, read
// back the same and put into valid readings.
func FuzzBody(f *testing.F) {
	const data = `{"site":"a","kind":"marginal","unit":"gCO2/kWh","points":[{"start":"2026-03-01T12:00:00Z","duration_s":300,"value":0}],"generated_at":"2026-03-01T12:00:00+01:00"}`
	const event = `{"specversion":"1.0","id":"1","source":"/a","type":"energy.signal.forecast","data":` + data + `}`
	f.Add("application/json", "", "", "", "", []byte(`{"type":"energy.signal.observed","data":`+data+`}`))
	f.Add("application/json", "1.0", "1", "/a%20b", "energy.signal.observed", []byte(data))
	f.Add("application/cloudevents+json; charset=utf-8", "", "", "", "", []byte(event))
	f.Add("application/cloudevents-batch+json", "", "", "", "", []byte("["+event+","+event+"]"))
	for _, data := range []string{
		`{"type":"energy.curtailment.started","timestamp":"2026-03-01T12:00:00Z","data":{"region":"r","id":"x","limit_w":1e3}}`,
		`{"type":"energy.curtailment.ended","timestamp":"2026-03-01T12:00:00Z","data":{"region":"r"}}`,
		`{"type":"energy.override","timestamp":"2026-03-01T12:00:00Z","data":{"site":"r","action":"on","valid_until":"2026-03-01T13:00:00Z"}}`,
		`{"type":"energy.signal.forecast","timestamp":"2026-03-01T12:00:00Z","data":{"site":"r","kind":"available_power","unit":"kW","points":[{"start":"2026-03-01T12:00:00Z","duration_s":1,"value":null}]}}`,
		`{"type":"energy.signal.observed","data":{"points":[{"value":NaN}]}}`, `-NaN`, `[-Inf`, `nul`, "\xff", "",
	} {
		f.Add("application/json", "", "", "", "", []byte(data))
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, contentType, version, id, source, kind string, body []byte) {
		h := http.Header{}
		h.Set("Content-Type", contentType)
		for name, value := range map[string]string{"ce-specversion": version, "ce-id": id, "ce-source": source, "ce-type": kind} {
			if value != "" {
				h.Set(name, value)
			}
		}
		form := formatOf(h)
		es, err := events(form, h, body)
		if err != nil {
			return
		}
		for _, e := range es {
			m, err := e.message(now, limits{4 * time.Hour, 7 * 24 * time.Hour})
			if err != nil {
				continue
			}
			if err := m.check(); err != nil {
				t.Fatalf("taken: %v", err)
			}
			for _, r := range m.readings("s", now) {
				if err := r.Validate(); err != nil {
					t.Fatal(err)
				}
			}
			if m.Type == TypeForecast {
				if err := m.forecast("s").Validate(); err != nil {
					t.Fatal(err)
				}
			}
			_ = m.expired(now)
			raw, err := json.Marshal(m)
			if err != nil {
				t.Fatalf("cannot be stored: %v", err)
			}
			var back Message
			if err := json.Unmarshal(raw, &back); err != nil {
				t.Fatal(err)
			}
			again, err := json.Marshal(back)
			if err != nil || string(again) != string(raw) || back.stream() != m.stream() || back.check() != nil {
				t.Fatalf("%s became %s, %v", raw, again, err)
			}
		}
	})
}
