package signalpush

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestZeroNullAndAbsentSurviveARoundTripDistinctly(t *testing.T) {
	for _, c := range []struct {
		v    Value
		want string
	}{{Number(0), `"value":0`}, {Number(-12.5), `"value":-12.5`}, {Null(), `"value":null`}, {Value{}, ""}} {
		raw, err := json.Marshal(Point{Start: At(noon), DurationSeconds: 300, Value: c.v})
		if err != nil || !strings.Contains(string(raw), c.want) || c.want == "" && strings.Contains(string(raw), "value") {
			t.Errorf("%s %v, want %s", raw, err, c.want)
		}
		var back Point
		if err := json.Unmarshal(raw, &back); err != nil || back.Value.Given != c.v.Given ||
			(back.Value.Number == nil) != (c.v.Number == nil) || c.v.Number != nil && *back.Value.Number != *c.v.Number {
			t.Errorf("%s became %+v, %v", raw, back, err)
		}
	}
}

func TestTimesNeedAnOffset(t *testing.T) {
	for text, want := range map[string]string{
		`"2026-03-01T12:00:00Z"`: "", `"2026-03-01T17:45:00+05:45"`: "", `"2026-03-01T12:00:00.000Z"`: "",
		`"2026-03-01T12:00:00"`: "no offset", `"2026-03-01"`: "RFC 3339", `"noon"`: "RFC 3339", `1772366400`: "a text", `{}`: "a text",
	} {
		var at Time
		err := json.Unmarshal([]byte(text), &at)
		if want == "" && (err != nil || !at.Equal(noon)) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %s %v", text, at, err)
		}
	}
}

func FuzzSignal(f *testing.F) {
	f.Add([]byte(`{"site":"a","kind":"marginal","unit":"gCO2/kWh","points":[{"start":"2026-03-01T12:00:00+01:00","duration_s":300,"value":null}],"valid_until":"2026-03-01T12:00:00Z"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var s Signal
		if json.Unmarshal(raw, &s) != nil {
			return
		}
		out, err := json.Marshal(s)
		if err != nil {
			return // a year that JSON cannot have
		}
		var back Signal
		if err := json.Unmarshal(out, &back); err != nil || len(back.Points) != len(s.Points) {
			t.Fatalf("%s: %v", out, err)
		}
		for i, p := range s.Points {
			if back.Points[i].Value.Given != p.Value.Given || (back.Points[i].Value.Number == nil) != (p.Value.Number == nil) {
				t.Errorf("%s: %+v became %+v", raw, p, back.Points[i])
			}
		}
	})
}
