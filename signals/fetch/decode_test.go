package fetch_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

func TestTimesNeedAnOffset(t *testing.T) {
	for in, want := range map[string]time.Time{
		"2026-03-01T12:00:00Z":          t0,
		"2026-03-01T12:00Z":             t0,
		"2026-03-01T17:45:00+05:45":     t0,
		"2026-03-01T17:45+05:45":        t0,
		"2026-03-01T12:00:00.000+00:00": t0,
		"2026-03-01T12:00:00":           {},
		"2026-03-01T12:00":              {},
		"2026-03-01 12:00:00Z":          {},
		"2026-03-01":                    {},
		"":                              {},
		"0001-01-01T00:00:00Z":          {},
		"9999-12-31T23:59:59Z":          {},
		"2026-03-01T12:00:00Zusammen":   {},
		"2026-02-30T12:00:00Z":          {},
	} {
		got, err := fetch.ParseTime(in)
		if want.IsZero() != (err != nil) || err == nil && !got.Equal(want) {
			t.Errorf("%q is %s, %v", in, got, err)
		}
	}
}

func TestWhatAnErrorBodySaysIsShownShort(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":"rate","msg":"too many"}`:                               "status 400: rate: too many",
		`{"error":{"code":"400","message":"Please enter a valid date"}}`:  "status 400: Please enter a valid date",
		`{"status":"error","errorType":"bad_data","error":"parse error"}`: "status 400: parse error: bad_data",
		`{"detail":[{"loc":["query"],"msg":"field required"}]}`:           `status 400: [{"loc":["query"],"msg":"field required"}]`,
		"Jwt is missing":          "status 400: Jwt is missing",
		"<!DOCTYPE html><html>":   "status 400 with a page instead of data",
		"":                        "status 400",
		"a\x00b\n\n  c":           "status 400: a b c",
		strings.Repeat("x", 5000): "status 400: " + strings.Repeat("x", 200) + "…",
	} {
		if got := fetch.Remark(fetch.Answer{Status: 400, Header: http.Header{}, Body: []byte(body)}); got != want {
			t.Errorf("%q becomes %q, want %q", body, got, want)
		}
	}
}

func value(v float64) *float64 { return &v }

func TestReadingsAreOrderedAndTheLastOfEachTimeStands(t *testing.T) {
	at := func(minute int, v float64) signals.Reading {
		return signals.Reading{PointTime: t0.Add(time.Duration(minute) * time.Minute), Value: value(v)}
	}
	got := fetch.Ordered([]signals.Reading{at(10, 1), at(0, 2), at(5, 3), at(0, 4)})
	if len(got) != 3 || *got[0].Value != 4 || *got[1].Value != 3 || *got[2].Value != 1 {
		t.Errorf("%v", got)
	}
	points := fetch.OrderedPoints([]signals.ForecastPoint{
		{Start: t0.Add(time.Hour), Duration: time.Hour, Value: value(2)}, {Start: t0, Duration: 2 * time.Hour, Value: value(1)},
		{Start: t0.Add(time.Hour), Duration: time.Hour, Value: value(3)}})
	if len(points) != 2 || points[0].Duration != time.Hour || *points[1].Value != 3 {
		t.Errorf("%v", points)
	}
	r, ok := fetch.Present(got, t0.Add(7*time.Minute))
	if !ok || *r.Value != 3 {
		t.Errorf("%v", r)
	}
	*r.Value = 99
	if *got[1].Value != 3 {
		t.Error("a copy shares its value")
	}
	if r, _ := fetch.Present(got, t0.Add(-time.Hour)); *r.Value != 4 {
		t.Errorf("%v", r)
	}
	if _, ok := fetch.Present(nil, t0); ok {
		t.Error("something is present in nothing")
	}
}

func TestPiecesMeetWithoutOverlap(t *testing.T) {
	got := fetch.Pieces(t0, t0.Add(70*time.Hour), 32*time.Hour)
	if len(got) != 3 || got[0][1] != got[1][0] || got[2][1] != t0.Add(70*time.Hour) {
		t.Errorf("%v", got)
	}
	if fetch.Pieces(t0, t0, time.Hour) != nil || fetch.Pieces(t0, t0.Add(-1), time.Hour) != nil {
		t.Error("an empty span has pieces")
	}
}

func TestImpossibleValuesAreNoValues(t *testing.T) {
	if v, q := fetch.Usable(signals.Average, value(-3), signals.Good); v != nil || q != signals.Suspect {
		t.Errorf("%v %s", v, q)
	}
	if v, q := fetch.Usable(signals.Average, value(0), signals.Good); v == nil || *v != 0 || q != signals.Good {
		t.Errorf("%v %s", v, q)
	}
	if v, q := fetch.Usable(signals.Average, nil, signals.Estimated); v != nil || q != signals.Estimated {
		t.Errorf("%v %s", v, q)
	}
}

func FuzzErrorBodies(f *testing.F) {
	f.Add([]byte(`{"error":{"message":"top secret inside"}}`), "secret")
	f.Add([]byte("<html>"), "x")
	f.Add([]byte{0xff, 0, '{'}, "\xff")
	f.Fuzz(func(t *testing.T, body []byte, secret string) {
		got := fetch.Remark(fetch.Answer{Status: 500, Body: body})
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b") || utf8.RuneCountInString(got) > 2000 {
			t.Fatalf("%q", got)
		}
		const mark = "[redacted]"
		if inside := strings.Contains(mark, secret); len(secret) >= 3 && !inside {
			clean := fetch.Scrub(string(body), []string{secret})
			for _, part := range strings.Split(clean, mark) {
				if strings.Contains(part, secret) {
					t.Fatalf("%q holds %q", clean, secret)
				}
			}
		}
		if at, err := fetch.ParseTime(secret); err == nil && (at.Year() < 1970 || at.Location() != time.UTC) {
			t.Fatalf("%q is %s", secret, at)
		}
	})
}
