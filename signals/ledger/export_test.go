package ledger_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
)

func round(n uint64) *uint64 { return &n }

func TestRoundsAddUpAndTheOldestGo(t *testing.T) {
	l := book(series(t, signals.Marginal, time.Hour, 100, 200, 300, 400))
	l.KeepRounds(2)
	hour := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Hour) }
	for n := range 3 {
		for half := range 2 {
			from := hour(n).Add(time.Duration(half) * 30 * time.Minute)
			if err := l.Book(ledger.Span{Site: "a", Round: round(uint64(7 + n)), From: from, To: from.Add(30 * time.Minute),
				Watts: 1000, PUE: 1, Measured: half == 0}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Book(ledger.Span{Site: "a", Round: round(3), From: hour(3), To: hour(4), Watts: 1000, PUE: 1}); err != nil {
		t.Fatal(err)
	}
	entries := l.Rounds()
	if len(entries) != 2 || entries[0].Round != 8 || entries[1].Round != 9 || !entries[0].From.Equal(hour(1)) || !entries[0].To.Equal(hour(2)) {
		t.Fatalf("%+v", entries)
	}
	grams(t, "round 8", entries[0].Account.MarginalGrams, 200)
	grams(t, "all", l.Account("a").MarginalGrams, 100+200+300+400)
	if s := entries[0].Account.MeasuredShare(); s != 0.5 {
		t.Errorf("measured %v of round 8", s)
	}
	if s := l.Account("a").MeasuredShare(); s != 1.5/4 {
		t.Errorf("measured %v of all", s)
	}
	b, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	var back []ledger.Entry
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	again := book()
	again.KeepRounds(2)
	if err := again.RestoreRounds(back); err != nil || !reflect.DeepEqual(again.Rounds(), entries) {
		t.Errorf("%v, restored %+v", err, again.Rounds())
	}
	if again.RestoreRounds([]ledger.Entry{{Account: ledger.Account{Joules: -1}}}) == nil {
		t.Error("a round of -1 J was restored")
	}
	again.KeepRounds(1)
	if r := again.Rounds(); len(r) != 1 || r[0].Round != 9 {
		t.Errorf("%+v", r)
	}
	none := book()
	if err := none.Book(ledger.Span{Site: "a", Round: round(1), From: hour(0), To: hour(1), Watts: 1, PUE: 1}); err != nil || len(none.Rounds()) != 0 {
		t.Errorf("%v, %+v", err, none.Rounds())
	}
}

func TestMeasuredEnergyIsLabelled(t *testing.T) {
	l := book()
	if err := l.AddEnergy("a", t0, t0.Add(time.Hour), ledger.JoulesPerKWh, 1.5); err != nil {
		t.Fatal(err)
	}
	add(t, l, 60, 120, 1500, 1)
	if a := l.Account("a"); a.KWh() != 3 || a.MeasuredShare() != 0.5 {
		t.Errorf("%+v", a)
	}
}

// An unknown figure is an empty cell or null, a zero is a 0.
func TestReportsTellUnknownFromZero(t *testing.T) {
	l := book(series(t, signals.Marginal, time.Hour, 0, 100))
	l.KeepRounds(10)
	if err := l.Book(ledger.Span{Site: "a", Round: round(1), From: t0, To: t0.Add(time.Hour), Watts: 1000, PUE: 1, Uncertainty: 300}); err != nil {
		t.Fatal(err)
	}
	if err := l.Add("b", t0, t0.Add(time.Hour), 500, 1); err != nil {
		t.Fatal(err)
	}
	if err := l.Add("=b", t0, t0.Add(time.Hour), 500, 1); err != nil {
		t.Fatal(err)
	}
	r := ledger.NewReport("demo", t0, t0.Add(time.Hour), l.Snapshot(), l.Rounds())
	tr := series(t, signals.Marginal, time.Hour, 0, 100)
	base, err := ledger.AlwaysOn("r", tr, t0, 2*time.Hour, 1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	r.AddBaseline(base)
	least, err := ledger.Clairvoyant([]ledger.Place{{Site: "a", Trace: tr, Watts: 1000, PUE: 1}}, t0, t0.Add(2*time.Hour), 90*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	r.AddBound(least)
	var table bytes.Buffer
	if err := r.WriteCSV(&table); err != nil {
		t.Fatal(err)
	}
	want := `scope,round,site,from,to,kwh,measured_share,marginal_kgco2,marginal_share,average_kgco2,average_share,uncertainty_kwh
federation,,,,,2,0,0,0.5,,0,0.3
site,,'=b,,,0.5,0,,0,,0,0
site,,a,,,1,0,0,1,,0,0.3
site,,b,,,0.5,0,,0,,0,0
round,1,a,2026-03-02T00:00:00Z,2026-03-02T01:00:00Z,1,0,0,1,,0,0.3
baseline,,r,2026-03-02T00:00:00Z,2026-03-02T02:00:00Z,2,0,0.1,1,,0,0
bound,,,2026-03-02T00:00:00Z,2026-03-02T02:00:00Z,1.5,0,0.05,1,,0,0
`
	if table.String() != want {
		t.Errorf("%s", table.String())
	}
	if rows, err := csv.NewReader(strings.NewReader(table.String())).ReadAll(); err != nil || len(rows) != 8 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	var text bytes.Buffer
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back ledger.Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("%v\n%+v\n%+v", err, back, r)
	}
	if !strings.Contains(text.String(), `"averageKgCO2": null`) || !strings.Contains(text.String(), `"marginalKgCO2": 0`) {
		t.Errorf("%s", text.String())
	}
}

func TestABoundTakesTheCheapestPieces(t *testing.T) {
	a := series(t, signals.Marginal, time.Hour, 300, 0, 100, none)
	b := series(t, signals.Marginal, 30*time.Minute, 50, 400, 400, 400, 400, 400, 20)
	places := []ledger.Place{{Site: "a", Trace: a, Watts: 1000, PUE: 1}, {Site: "b", Trace: b, Watts: 500, PUE: 2}}
	for _, c := range []struct {
		work, grams float64
		deadline    float64
		a, b        float64
		complete    bool
	}{
		{0, 0, 4, 0, 0, true},
		{1, 0, 4, 1, 0, true},
		{1.25, 5, 4, 1, 0.25, true},
		{3, 0 + 10 + 25 + 100, 4, 2, 1, true},
		{1.5, 25, 3, 1, 0.5, true},
		{50, 300 + 0 + 25 + 3*200, 2, 2, 2, false},
	} {
		got, err := ledger.Clairvoyant(places, t0, t0.Add(time.Duration(c.deadline*float64(time.Hour))), time.Duration(c.work*float64(time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		grams(t, "bound", &got.Grams, c.grams)
		if got.Complete != c.complete || got.Sites["a"].Hours() != c.a || got.Sites["b"].Hours() != c.b {
			t.Errorf("%v h: %+v", c.work, got)
		}
	}
	for _, bad := range []ledger.Place{{Site: "c", Trace: a, PUE: 1}, {Site: "c", Trace: a, Watts: 1}} {
		if _, err := ledger.Clairvoyant([]ledger.Place{bad}, t0, t0.Add(time.Hour), time.Hour); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if _, err := ledger.Clairvoyant(places, t0, t0.Add(-time.Hour), time.Hour); err == nil {
		t.Error("a deadline before the start was accepted")
	}
}
