package signals

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func value(v float64) *float64 { return &v }

func point(v *float64) Reading {
	return Reading{Kind: Marginal, Unit: GramsPerKWh, Region: "ca", Value: v, PointTime: t0, Period: 5 * time.Minute, Source: "test"}
}

func TestZeroNullAndAbsentSurviveARoundTripDistinctly(t *testing.T) {
	omitted := point(nil)
	omitted.Omitted = true
	for _, c := range []struct {
		name string
		r    Reading
		want string // in the JSON; "" for no value field
	}{
		{"zero", point(value(0)), `"value":0,`},
		{"null", point(nil), `"value":null,`},
		{"absent", omitted, ""},
		{"number", point(value(12.5)), `"value":12.5,`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := json.Marshal(c.r)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && strings.Contains(string(b), `"value"`) || !strings.Contains(string(b), c.want) {
				t.Fatalf("%s", b)
			}
			var back Reading
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			if (back.Value == nil) != (c.r.Value == nil) || back.Omitted != c.r.Omitted ||
				back.Value != nil && *back.Value != *c.r.Value {
				t.Errorf("%+v became %+v", c.r, back)
			}
			if !back.PointTime.Equal(c.r.PointTime) || back.Period != c.r.Period || back.Source != "test" || back.Region != "ca" {
				t.Errorf("%+v became %+v", c.r, back)
			}
		})
	}
}

func TestJSONThatCannotBeRightIsRefused(t *testing.T) {
	for _, body := range []string{
		`{}`,
		`{"kind":"marginal","unit":"EUR/MWh","value":1,"pointTime":"2026-03-01T12:00:00Z","periodSeconds":300}`,
		`{"kind":"marginal","unit":"gCO2/kWh","value":-1,"pointTime":"2026-03-01T12:00:00Z","periodSeconds":300}`,
		`{"kind":"marginal","unit":"gCO2/kWh","value":"1","pointTime":"2026-03-01T12:00:00Z","periodSeconds":300}`,
		`{"kind":"marginal","unit":"gCO2/kWh","value":1,"pointTime":"2026-03-01T12:00:00","periodSeconds":300}`,
		`{"kind":"marginal","unit":"gCO2/kWh","value":1,"pointTime":"2026-03-01T12:00:00Z","periodSeconds":0}`,
		`{"kind":"marginal","unit":"gCO2/kWh","value":1,"pointTime":"2026-03-01T12:00:00Z","periodSeconds":1e300}`,
		`{"kind":"marginal","unit":"gCO2/kWh","value":1,"pointTime":"2026-03-01T12:00:00Z","periodSeconds":300,"quality":"fine"}`,
		`{"kind":"marginal","unit":"gCO2/kWh","value":1,"periodSeconds":300}`,
	} {
		before := point(value(7))
		r := before
		if err := json.Unmarshal([]byte(body), &r); err == nil {
			t.Errorf("accepted: %s", body)
		}
		if r.Value != before.Value {
			t.Errorf("a refused document changed the reading: %s", body)
		}
	}
}

func TestUnitsBelongToTheirKind(t *testing.T) {
	all := []Unit{GramsPerKWh, PoundsPerMWh, PercentileOf, EurosPerMWh, DollarsPerMWh, Percent, ""}
	for kind, allowed := range units {
		for _, u := range all {
			want := false
			for _, a := range allowed {
				want = want || a == u
			}
			if err := CheckUnit(kind, u); (err == nil) != want {
				t.Errorf("%s in %q: %v", kind, u, err)
			}
		}
	}
	if CheckUnit("temperature", Percent) == nil {
		t.Error("an unknown kind was accepted")
	}
}

func TestValuesThatAKindCannotHave(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		value float64
		ok    bool
	}{
		{Marginal, 0, true}, {Marginal, -0.1, false}, {Average, -1, false}, {Price, -50, true},
		{Percentile, 100, true}, {Percentile, 100.1, false}, {RenewableShare, 130, true}, {RenewableShare, -1, false},
		{Price, math.NaN(), false}, {Price, math.Inf(-1), false}, {Marginal, math.Inf(1), false},
	} {
		if err := CheckValue(c.kind, c.value); (err == nil) != c.ok {
			t.Errorf("%s %v: %v", c.kind, c.value, err)
		}
	}
}

func TestPoundsBecomeGrams(t *testing.T) {
	r := point(value(1000))
	r.Unit = PoundsPerMWh
	n := r.Normalized()
	if math.Abs(*n.Value-453.59237) > 1e-9 || n.Unit != GramsPerKWh {
		t.Errorf("1000 lb/MWh became %v %s", *n.Value, n.Unit)
	}
	if *r.Value != 1000 {
		t.Error("the reading itself was changed")
	}
	r.Value = nil
	if n := r.Normalized(); n.Value != nil || n.Unit != GramsPerKWh {
		t.Errorf("no value became %+v", n)
	}
}

func TestFreshnessEndsTwoPeriodsAfterTheValidity(t *testing.T) {
	r := point(value(1))
	for _, c := range []struct {
		after         time.Duration
		covers, fresh bool
	}{
		{-6 * time.Minute, false, false},
		{-5 * time.Minute, false, true},
		{0, true, true},
		{5*time.Minute - 1, true, true},
		{5 * time.Minute, false, true},
		{15*time.Minute - 1, false, true},
		{15 * time.Minute, false, false},
	} {
		at := t0.Add(c.after)
		if r.Covers(at) != c.covers || r.Fresh(at) != c.fresh {
			t.Errorf("after %s: covers %v, fresh %v", c.after, r.Covers(at), r.Fresh(at))
		}
	}
	if point(nil).Fresh(t0) {
		t.Error("a missing value is fresh")
	}
}

func FuzzReadingJSON(f *testing.F) {
	for _, r := range []Reading{point(value(0)), point(nil), point(value(1e300))} {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Reading
		if json.Unmarshal(b, &r) != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("accepted what is invalid: %v", err)
		}
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("cannot write what was read: %v", err)
		}
		var again Reading
		if err := json.Unmarshal(out, &again); err != nil {
			t.Fatalf("cannot read what was written: %v", err)
		}
		if (again.Value == nil) != (r.Value == nil) || again.Omitted != r.Omitted || again.Period != r.Period {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}
