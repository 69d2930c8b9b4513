package director

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/webhook"
)

var errBroken = errors.New("503 Service Unavailable")

// price of the present quarter of an hour.
func price(clock signals.Clock, v float64) signals.Reading {
	now := clock.Now()
	return signals.Reading{Kind: signals.Price, Unit: signals.EurosPerMWh, Region: "r", Source: "exchange", Value: &v,
		PointTime: now.Truncate(15 * time.Minute), ReceivedTime: now, Period: 15 * time.Minute}
}

// golden compares with a file of testdata; with GOLDEN=write it writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("GOLDEN") == "write" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestAnExplanationTellsAllThatCountsUnderStableNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 1)
		members := &recorder{clock: clock}
		grams, limit, priority := 1000.0, 500.0, 3
		second := sourceFunc(func(context.Context) (signals.Reading, error) { return signals.Reading{}, errBroken })
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Facts: alike, Random: func() float64 { return 0.5 },
			Planner: &planner.Config{Wanted: 1}, Round: func() uint64 { return 4 + uint64(clock.Now().Sub(t0)/(5*time.Minute)) },
			BudgetGrams: &grams, Spent: func() (float64, float64) { return 250, 3 },
			Sites: []Site{
				{Name: "full", Policy: below100(1, 2), Sanity: &sanity.Policy{}, Provisioning: 4 * time.Minute, Round: 6 * time.Minute, Drain: time.Minute,
					Source:   &scripted{clock: clock, values: v(500, 80, 80)},
					Second:   &scripted{clock: clock, values: v(490, 90, 90)},
					Price:    sourceFunc(func(context.Context) (signals.Reading, error) { return price(clock, 0), nil }),
					Share:    second,
					Forecast: foresees(clock, 80, 500, 500, 80),
					Curtailments: demands{{Source: "dso", ID: "7", Priority: &priority, Demands: []webhook.Demand{
						{Start: t0.Add(6 * time.Minute), Until: t0.Add(30 * time.Minute), LimitWatts: &limit, Reason: "IMPORT_CAPACITY_LIMIT"}}}}},
				{Name: "bare", Policy: below100(1, 1), Source: second},
				{Name: "plain", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(50, 50, 50)}},
			}})
		until(clock, 0.5) // after the first plan
		if err := d.Override("full", true, t0.Add(time.Hour), "a demonstration"); err != nil {
			t.Fatal(err)
		}
		until(clock, 7)
		for _, name := range []string{"full", "bare", "plain"} {
			e, err := d.Explain(name)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := json.MarshalIndent(e, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".json", string(raw)+"\n")
			var back Explanation
			if err := json.Unmarshal(raw, &back); err != nil || back.Signal.Value == nil != (e.Signal.Value == nil) {
				t.Errorf("%s: does not come back: %v", name, err)
			}
			var text strings.Builder
			for _, f := range e.Facts() {
				text.WriteString(f.Name + ": " + f.Value + "\n")
			}
			golden(t, name+".txt", text.String())
		}
		stop()
	})
}
