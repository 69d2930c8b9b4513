package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"girassol.dev/signals"
)

const small = `time,ca,tx
2026-03-02T00:00:00Z,421.88,621.66
2026-03-02T00:05:00Z,0,
2026-03-02T00:10:00Z,,7.22

2026-03-02T00:20:00Z,90,100
`

func read(t *testing.T, text string) *Trace {
	t.Helper()
	tr, err := Read(strings.NewReader(text), "test.csv", signals.Marginal, signals.GramsPerKWh)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func column(t *testing.T, tr *Trace, region string) *Series {
	t.Helper()
	s, err := tr.Column(region)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var start = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

func at(minutes float64) time.Time { return start.Add(time.Duration(minutes * float64(time.Minute))) }

// want is a value or -1 for none.
func checkStep(t *testing.T, s *Series, minute float64, from, until time.Time, want float64) {
	t.Helper()
	step := s.At(at(minute))
	if !step.From.Equal(from) || !step.Until.Equal(until) {
		t.Errorf("minute %v: step %s to %s, want %s to %s", minute, step.From, step.Until, from, until)
	}
	switch {
	case want < 0 && step.Value != nil:
		t.Errorf("minute %v: %v, want no value", minute, *step.Value)
	case want >= 0 && (step.Value == nil || *step.Value != want):
		t.Errorf("minute %v: %v, want %v", minute, step.Value, want)
	}
}

func TestValuesAreHeldOverTheirValidityAndNotLonger(t *testing.T) {
	s := column(t, read(t, small), "ca")
	none := time.Time{}
	checkStep(t, s, -1, none, at(0), -1)
	checkStep(t, s, 0, at(0), at(5), 421.88)
	checkStep(t, s, 4.999, at(0), at(5), 421.88)
	checkStep(t, s, 5, at(5), at(10), 0)    // a zero is a zero
	checkStep(t, s, 10, at(10), at(15), -1) // an empty cell is not
	checkStep(t, s, 17, at(15), at(20), -1) // a missing row neither
	checkStep(t, s, 24, at(20), at(25), 90)
	checkStep(t, s, 25, at(25), none, -1)
}

func TestARepeatingSeriesWrapsInBothDirections(t *testing.T) {
	s := column(t, read(t, small), "tx").Repeat() // 25 minutes long
	checkStep(t, s, 25, at(25), at(30), 621.66)
	checkStep(t, s, 45+25*1000, at(45+25*1000), at(50+25*1000), 100)
	checkStep(t, s, -1, at(-5), at(0), 100)
	checkStep(t, s, -25, at(-25), at(-20), 621.66)
	checkStep(t, s, 42, at(40), at(45), -1)
}

func TestOneRowHoldsForTheDefaultPeriod(t *testing.T) {
	s := column(t, read(t, "time,ca\n2026-03-02T00:00:00Z,1\n"), "ca")
	checkStep(t, s, 4, at(0), at(5), 1)
	checkStep(t, s, 5, at(5), time.Time{}, -1)
}

func TestAPointEndsWhereAnEarlierNextOneBegins(t *testing.T) {
	s := column(t, read(t, `time,ca
2026-03-02T00:00:00Z,1
2026-03-02T01:00:00Z,2
2026-03-02T01:15:00Z,3
2026-03-02T02:15:00Z,4
`), "ca")
	checkStep(t, s, 70, at(60), at(75), 2)
	checkStep(t, s, 80, at(75), at(135), 3)
}

func TestOffsetsAreHonoured(t *testing.T) {
	utc := read(t, "time,ca\n2026-03-02T00:00:00Z,1\n2026-03-02T00:05:00Z,2\n")
	kathmandu := read(t, "time_utc,ca\n2026-03-02T05:45:00+05:45,1\n2026-03-02T05:50:00+05:45,2\n")
	minutes := read(t, "from_utc,ca\n2026-03-02T00:00Z,1\n2026-03-02T00:05Z,2\n")
	for _, tr := range []*Trace{kathmandu, minutes} {
		for i := range 2 {
			a, _ := column(t, utc, "ca").Point(i)
			if b, _ := column(t, tr, "ca").Point(i); !a.Equal(b) {
				t.Errorf("point %d: %s and %s", i, a, b)
			}
		}
	}
}

func TestErrorsNameLineAndColumn(t *testing.T) {
	for _, c := range []struct {
		name, text   string
		line, column int
		says         string
	}{
		{"empty", "", 1, 0, "header"},
		{"no points", "time,ca\n", 2, 0, "no points"},
		{"no time column", "hour,ca\n", 1, 1, "hour"},
		{"no region", "time\n2026-03-02T00:00:00Z\n", 1, 0, "0 regions"},
		{"region twice", "time,ca,ca\n", 1, 3, "twice"},
		{"empty region", "time,ca,\n", 1, 3, "empty"},
		{"padded region", "time, ca\n", 1, 2, "padded"},
		{"short row", "time,ca,tx\n2026-03-02T00:00:00Z,1\n", 2, 0, "2 cells"},
		{"naive time", "time,ca\n2026-03-02T00:00:00,1\n", 2, 1, "offset"},
		{"date only", "time,ca\n2026-03-02,1\n", 2, 1, "offset"},
		{"year 9999", "time,ca\n9999-03-02T00:00:00Z,1\n", 2, 1, "9999"},
		{"time twice", "time,ca\n2026-03-02T00:00:00Z,1\n2026-03-02T00:00:00Z,1\n", 3, 1, "not after"},
		{"time backwards", "time,ca\n2026-03-02T00:05:00Z,1\n2026-03-02T00:00:00Z,1\n", 3, 1, "not after"},
		{"word", "time,ca,tx\n2026-03-02T00:00:00Z,1,clean\n", 2, 3, "(tx)"},
		{"NaN", "time,ca\n2026-03-02T00:00:00Z,NaN\n", 2, 2, "NaN"},
		{"Inf", "time,ca\n2026-03-02T00:00:00Z,-Inf\n", 2, 2, "Inf"},
		{"overflow", "time,ca\n2026-03-02T00:00:00Z,1e999\n", 2, 2, "1e999"},
		{"hexadecimal", "time,ca\n2026-03-02T00:00:00Z,0x10\n", 2, 2, "0x10"},
		{"space is no empty cell", "time,ca\n2026-03-02T00:00:00Z, \n", 2, 2, "decimal"},
		{"negative", "time,ca\n2026-03-02T00:00:00Z,-1\n", 2, 2, "negative"},
		{"decimal comma", "time,ca\n2026-03-02T00:00:00Z,\"1,5\"\n", 2, 2, "1,5"},
		{"open quote", "time,ca\n2026-03-02T00:00:00Z,\"1\n", 2, 0, "quote"},
		{"long cell", "time,ca\n2026-03-02T00:00:00Z," + strings.Repeat("1", MaxCell+1) + "\n", 2, 2, "bytes"},
		{"long line", "time,ca\n" + strings.Repeat(",", MaxLine+1) + "\n", 2, 0, "longer"},
		{"many regions", "time" + strings.Repeat(",x", MaxRegions+1) + "\n", 1, 0, "regions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.text), "test.csv", signals.Marginal, signals.GramsPerKWh)
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("%v, want a *SyntaxError", err)
			}
			if syntax.Line != c.line || syntax.Column != c.column || !strings.Contains(err.Error(), c.says) ||
				!strings.Contains(err.Error(), "test.csv") {
				t.Errorf("%v, want line %d, column %d, %q", err, c.line, c.column, c.says)
			}
		})
	}
}

func TestPricesMayBeNegative(t *testing.T) {
	tr, err := Read(strings.NewReader("time,de\n2026-03-02T00:00:00Z,-12.5\n"), "p.csv", signals.Price, signals.EurosPerMWh)
	if err != nil {
		t.Fatal(err)
	}
	if _, v := column(t, tr, "de").Point(0); *v != -12.5 {
		t.Errorf("%v", *v)
	}
	if _, err := Read(strings.NewReader(small), "p.csv", signals.Price, signals.GramsPerKWh); err == nil {
		t.Error("a price in grams was accepted")
	}
}

func TestSpreadsheetsAreRead(t *testing.T) {
	tr := read(t, "\ufeff\"time\",\"ca, north\"\r\n2026-03-02T00:00:00Z,\"5\"\r\n2026-03-02T00:05:00Z,6")
	if got := tr.Regions(); len(got) != 1 || got[0] != "ca, north" || tr.Rows() != 2 {
		t.Errorf("%q, %d rows", got, tr.Rows())
	}
}

func TestAFailingReaderIsNoSyntaxError(t *testing.T) {
	boom := errors.New("boom")
	_, err := Read(io.MultiReader(strings.NewReader("time,ca\n"), iotest.ErrReader(boom)), "x", signals.Marginal, signals.GramsPerKWh)
	if !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
}

// endless is a trace that never stops.
type endless struct{ sent bool }

func (e *endless) Read(p []byte) (int, error) {
	if !e.sent {
		e.sent = true
		return copy(p, "time,ca\n"), nil
	}
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

func TestAnEndlessFileIsRefused(t *testing.T) {
	_, err := Read(&endless{}, "x", signals.Marginal, signals.GramsPerKWh)
	if err == nil || !strings.Contains(err.Error(), "lines") {
		t.Errorf("%v", err)
	}
}

func TestUnknownRegionsListTheKnownOnes(t *testing.T) {
	_, err := read(t, small).Column("eastus")
	if err == nil || !strings.Contains(err.Error(), "ca, tx") {
		t.Errorf("%v", err)
	}
}

func TestAppendGoesOnByName(t *testing.T) {
	a := read(t, "time,ca,tx\n2026-03-02T00:00:00Z,1,2\n2026-03-02T00:05:00Z,3,4\n")
	b := read(t, "time,tx,ca\n2026-03-02T00:10:00Z,6,5\n")
	both, err := a.Append(b)
	if err != nil {
		t.Fatal(err)
	}
	checkStep(t, column(t, both, "ca"), 10, at(10), at(15), 5)
	checkStep(t, column(t, both, "tx"), 10, at(10), at(15), 6)
	for name, next := range map[string]*Trace{
		"overlap":       read(t, "time,ca,tx\n2026-03-02T00:05:00Z,1,2\n"),
		"other regions": read(t, "time,ca,de\n2026-03-02T00:10:00Z,1,2\n"),
		"fewer":         read(t, "time,ca\n2026-03-02T00:10:00Z,1\n"),
	} {
		if _, err := a.Append(next); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestGramsOfPounds(t *testing.T) {
	tr, err := Read(strings.NewReader("time,ca\n2026-03-02T00:00:00Z,1000\n2026-03-02T00:05:00Z,\n"), "x",
		signals.Marginal, signals.PoundsPerMWh)
	if err != nil {
		t.Fatal(err)
	}
	g, err := column(t, tr, "ca").Grams()
	if err != nil {
		t.Fatal(err)
	}
	if _, v := g.Point(0); *v != 453.59237 || g.Unit != signals.GramsPerKWh {
		t.Errorf("%v %s", *v, g.Unit)
	}
	if _, v := g.Point(1); v != nil {
		t.Errorf("no value became %v", *v)
	}
}

func TestASourceServesThePointOfTheMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, err := signals.NewVirtual(start, 60, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		series := column(t, read(t, small), "ca")
		once, forever := NewSource(series, clock, "test.csv"), NewSource(series.Repeat(), clock, "test.csv")
		for _, c := range []struct {
			minute, point, value float64 // value -1 is none, -2 outside
		}{
			{0, 0, 421.88}, {4, 0, 421.88}, {5, 5, 0}, {12, 10, -1}, {18, 10, -1}, {24, 20, 90}, {26, 25, -2}, {31, 30, -2},
		} {
			time.Sleep(time.Until(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(c.minute * float64(time.Second)))))
			r, err := forever.Latest(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
			if !r.PointTime.Equal(at(c.point)) || r.Period != 5*time.Minute || r.Region != "ca" {
				t.Errorf("minute %v: %+v", c.minute, r)
			}
			if c.value != -2 && (r.Value == nil) != (c.value == -1) || r.Value != nil && c.value >= 0 && *r.Value != c.value {
				t.Errorf("minute %v: %v, want %v", c.minute, r.Value, c.value)
			}
			if _, err := once.Latest(context.Background()); errors.Is(err, ErrOutside) != (c.value == -2) {
				t.Errorf("minute %v without repeat: %v", c.minute, err)
			}
		}
	})
}

func TestSharedTracesAreRead(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "traces")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no traces beside the checkout: %v", err)
	}
	for _, c := range []struct {
		file string
		kind signals.Kind
		rows int
	}{
		{"synthetic_moer_5min_7d.csv", signals.Marginal, 2016},
		{"eia930_2023-06-10_2023-06-20_avg_intensity_gpkwh.csv", signals.Average, 241},
		{"gb_neso_revisions_2023-03-14.csv", signals.Average, 0},
		{"gb_neso_forecast_2023-05-04T1230Z.csv", signals.Average, 96},
	} {
		tr, err := ReadFile(filepath.Join(dir, c.file), c.kind, signals.GramsPerKWh)
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		if c.rows > 0 && tr.Rows() != c.rows {
			t.Errorf("%s: %d rows, want %d", c.file, tr.Rows(), c.rows)
		}
	}
	eia, err := ReadFile(filepath.Join(dir, "eia930_2023-06-10_2023-06-20_avg_intensity_gpkwh.csv"), signals.Average, signals.GramsPerKWh)
	if err != nil {
		t.Fatal(err)
	}
	if v := column(t, eia, "NYIS").At(time.Date(2023, 6, 11, 20, 30, 0, 0, time.UTC)).Value; v != nil {
		t.Errorf("an empty cell became %v", *v)
	}
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	tr := read(t, small)
	var b bytes.Buffer
	if err := tr.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(small, "\n\n", "\n")
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("time,ca\n2026-03-02T05:45:00+05:45,1\n2026-03-02T05:50:00+05:45,2\n"))
	f.Add([]byte("\ufefftime,\"a,b\"\r\n2026-03-02T00:00Z,1e3\r\n"))
	f.Add([]byte("time,ca\n2026-03-02T00:00:00Z,0x1p-2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := Read(bytes.NewReader(b), "fuzz", signals.Marginal, signals.GramsPerKWh)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := tr.WriteCSV(&out); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&out, "fuzz", signals.Marginal, signals.GramsPerKWh)
		if err != nil {
			t.Fatalf("cannot read what was written: %v\n%q", err, out.String())
		}
		if again.Rows() != tr.Rows() || len(again.Regions()) != len(tr.Regions()) || again.Period() != tr.Period() {
			t.Fatal("another trace came back")
		}
		for _, region := range tr.Regions() {
			a, _ := tr.Column(region)
			c, err := again.Column(region)
			if err != nil {
				t.Fatal(err)
			}
			for i := range a.Len() {
				at, v := a.Point(i)
				atAgain, vAgain := c.Point(i)
				if !at.Equal(atAgain) || (v == nil) != (vAgain == nil) || v != nil && *v != *vAgain {
					t.Fatalf("%s point %d: %s %v and %s %v", region, i, at, v, atAgain, vAgain)
				}
				step := a.At(at)
				if !step.From.Equal(at) || !step.Until.After(at) || (step.Value == nil) != (v == nil) {
					t.Fatalf("%s at %s: %+v", region, at, step)
				}
				a.Repeat().At(at.Add(-1e6 * time.Hour))
			}
		}
	})
}
