package simulate

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/window"
)

// file writes a file of the test.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheUnitOfATraceIsInItsHeaderOrSaid(t *testing.T) {
	const rows = "\n2026-03-02T00:00Z,1000,\n2026-03-02T00:05Z,0,7\n"
	for _, tc := range []struct {
		name, header, unit string
		kind               signals.Kind
		value              float64 // of region A in normal units
		fails              string
	}{
		{"said in grams", "time,A,B", "g/kWh", signals.Marginal, 1000, ""},
		{"said in pounds", "time,A,B", "lb/MWh", signals.Marginal, 453.59237, ""},
		{"the header goes before what is said", "time_utc,A [lb/MWh],B [lb/MWh]", "g/kWh", signals.Marginal, 453.59237, ""},
		{"one header speaks for the file", "time_utc,A [lb/MWh],B", "g/kWh", signals.Marginal, 453.59237, ""},
		{"a byte order mark", "\ufefftime,A,B", "g/kWh", signals.Marginal, 1000, ""},
		{"two units in one file", "time,A [lb/MWh],B [g/kWh]", "g/kWh", "", 0, `units "lb/MWh" and "g/kWh"`},
		{"an unknown unit", "time,A [t/GWh],B", "g/kWh", "", 0, `unit "t/GWh": want g/kWh, lb/MWh or percentile`},
		{"a percentile above 100", "time,A,B", "percentile", "", 0, "outside 0 to 100"},
		{"no time column", "A,B,C", "g/kWh", "", 0, `the first column is "A"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var all traces
			err := all.read(file(t, "trace.csv", tc.header+rows), tc.unit, false)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("error is %v, want one that says %s", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s := all.grams(tc.kind, "A")
			_, v := s.Point(0)
			near(t, "value", v, tc.value)
			if _, none := all.grams(tc.kind, "B").Point(0); none != nil {
				t.Errorf("an empty cell is %v", *none)
			}
		})
	}
}

func TestSeveralFilesOfARegionFollowOneAnother(t *testing.T) {
	first := file(t, "a.csv", "time,A\n2026-03-02T00:00Z,1\n2026-03-02T00:05Z,2\n")
	second := file(t, "b.csv", "time,B,A\n2026-03-02T00:10Z,9,3\n2026-03-02T00:15Z,9,4\n")
	for _, order := range [][]string{{first, second}, {second, first}} {
		var all traces
		for _, path := range order {
			if err := all.read(path, "g/kWh", false); err != nil {
				t.Fatal(err)
			}
		}
		if s := all.series(signals.Marginal, "A"); s.Len() != 4 {
			t.Errorf("%d points of A, want 4", s.Len())
		}
	}
	var all traces
	if err := all.read(first, "g/kWh", false); err != nil {
		t.Fatal(err)
	}
	if err := all.read(first, "g/kWh", false); err == nil || !strings.Contains(err.Error(), "both have region A") {
		t.Errorf("the same points twice: %v", err)
	}
}

func TestForecastFilesAreReadAsIssued(t *testing.T) {
	const text = "generated_at,point_time,A [lb/MWh],B\n" +
		"2026-03-02T00:00:00Z,2026-03-02T00:00:00Z,1000,\n" +
		"2026-03-02T00:00:00Z,2026-03-02T00:05:00Z,,7\n" +
		"2026-03-02T01:00:00+01:00,2026-03-02T00:10:00Z,3,7\n" + // the same issue in another zone
		"2026-03-02T00:30Z,2026-03-02T00:35Z,5,7\n"
	got, err := parseForecasts(strings.NewReader(text), "f", "g/kWh")
	if err != nil {
		t.Fatal(err)
	}
	a := got["A"]
	if len(a) != 2 || len(a[0].Points) != 3 || len(a[1].Points) != 1 || a[0].Unit != signals.PoundsPerMWh {
		t.Fatalf("issues %+v", a)
	}
	if a[0].Points[1].Value != nil || a[0].Points[1].Duration != 5*time.Minute || a[0].Points[2].Duration != 5*time.Minute {
		t.Errorf("points %+v", a[0].Points)
	}
	for _, f := range a {
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
	}
	for want, text := range map[string]string{
		"its header must be":     "issued,point_time,A\n",
		"its header: EOF":        "",
		"there twice":            "generated_at,point_time,A,A\n",
		"sort the rows":          "generated_at,point_time,A\n2026-03-02T01:00Z,2026-03-02T01:00Z,1\n2026-03-02T00:00Z,2026-03-02T01:00Z,1\n",
		"is not after":           "generated_at,point_time,A\n2026-03-02T01:00Z,2026-03-02T01:00Z,1\n2026-03-02T01:00Z,2026-03-02T01:00Z,1\n",
		"line 2 point_time":      "generated_at,point_time,A\n2026-03-02T01:00Z,2026-03-02 01:00,1\n",
		"line 2 A: \"-3\"":       "generated_at,point_time,A\n2026-03-02T01:00Z,2026-03-02T01:00Z,-3\n",
		"line 2 A: \"NaN\"":      "generated_at,point_time,A\n2026-03-02T01:00Z,2026-03-02T01:00Z,NaN\n",
		"wrong number of fields": "generated_at,point_time,A\n2026-03-02T01:00Z,2026-03-02T01:00Z\n",
	} {
		if _, err := parseForecasts(strings.NewReader(text), "f", "g/kWh"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
}

func FuzzForecasts(f *testing.F) {
	f.Add("generated_at,point_time,A [lb/MWh],B\n2026-03-02T00:00:00Z,2026-03-02T00:00:00Z,1000,\n2026-03-02T00:00:00Z,2026-03-02T00:05:00Z,,7\n")
	f.Add("generated_at,point_time,A [percentile\n2026-03-02T00:00Z,2026-03-02T00:00Z,1")
	f.Add("generated_at,point_time,A,A\n2026-03-02T00:00Z,2026-03-02T00:00Z,1,2\n")
	f.Add("generated_at,point_time,\"A\nB\"\n2026-03-02T00:00Z,2026-03-02T00:00Z,1\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseForecasts(bytes.NewReader([]byte(text)), "f", "g/kWh")
		if err != nil {
			return
		}
		for region, issued := range got {
			for i, one := range issued {
				if err := one.Validate(); err != nil {
					t.Fatalf("region %q: %v", region, err)
				}
				if i > 0 && !one.GeneratedAt.After(issued[i-1].GeneratedAt) {
					t.Fatalf("region %q: issue %d is not after the one before", region, i)
				}
			}
		}
	})
}

// The middle one of three recorded forecasts sees the evening clean two hours
// before it was.
func TestAForecastThatIsTwoHoursEarlyOpensNothing(t *testing.T) {
	shared(t, "gb_neso_revisions_2023-03-14.csv", signals.Average) // skips where it is not there
	rows := strings.Split(strings.TrimSpace(readShared(t, "gb_neso_revisions_2023-03-14.csv")), "\n")
	var actual, issues strings.Builder
	actual.WriteString("from_utc,gb\n")
	issues.WriteString("generated_at,point_time,gb\n")
	for column, issued := range []string{"2023-03-14T03:31Z", "2023-03-14T09:31Z", "2023-03-14T21:01Z"} {
		for _, row := range rows[1:] {
			if cells := strings.Split(strings.TrimSpace(row), ","); cells[column+1] != "" {
				issues.WriteString(issued + "," + cells[0] + "," + cells[column+1] + "\n")
			}
		}
	}
	for _, row := range rows[1:] {
		cells := strings.Split(strings.TrimSpace(row), ",")
		actual.WriteString(cells[0] + "," + cells[4] + "\n")
	}
	var all traces
	if err := all.read(file(t, "actual.csv", actual.String()), "g/kWh", false); err != nil {
		t.Fatal(err)
	}
	published, err := parseForecasts(strings.NewReader(issues.String()), "gb", "g/kWh")
	if err != nil {
		t.Fatal(err)
	}
	s := place("gb", all.series(signals.Marginal, "gb"))
	s.Policy = window.Policy{Mode: window.Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1,
		MinWindow: 90 * time.Minute, LeaveLead: 10 * time.Minute, OnStale: v1alpha1.StaleHold, MaxStale: 30 * time.Minute}
	s.Forecasts = published["gb"]
	c := config(s)
	c.Start, c.End = s.Signal.Start(), s.Signal.End()
	changes := simulated(t, c).Changes("gb")
	evening := time.Date(2023, time.March, 15, 18, 0, 0, 0, time.UTC)
	for _, change := range changes {
		t.Log(change.At.Format(time.RFC3339), change.Admit, change.Reason, change.Message)
		if change.Admit && change.At.After(evening) && change.At.Before(evening.Add(4*time.Hour+30*time.Minute)) {
			t.Errorf("opened at %s, when the electricity was dirty: %s", change.At, change.Message)
		}
	}
	if len(changes) == 0 {
		t.Error("nothing was decided")
	}
}

func readShared(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "shared", "traces", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAReportNeedsNothingElseAndNamesAreText(t *testing.T) {
	c := config(place("a", series(t, "a", signals.Marginal, repeat(50, 12)...)))
	c.Federation = `<script>alert("x")</script>`
	r := simulated(t, c)
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(page.String(), "http://www.w3.org/2000/svg", "")
	for _, bad := range []string{"<script", "http:", "https:", "src=", "@import", "url("} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if strings.Count(text, "<svg") != 2 || !strings.Contains(text, "always on in a") {
		t.Error("pictures or comparisons are missing")
	}
}
