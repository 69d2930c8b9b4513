package simulate

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/window"
)

var update = flag.Bool("update", false, "write the golden files anew")

// forecasts of the twins that know them, and the study's deadline.
func withForecast(deadline time.Duration, deviation float64) func(*Options) {
	return func(o *Options) {
		o.Made = Made{Every: time.Hour, Horizon: 24 * time.Hour, Error: deviation, Seed: 1}
		o.Plan.Deadline = deadline
	}
}

// The study emitted 1.379 kg in 14.6 h. Bounds are what these twins allow: the
// clairvoyant schedule of 13.53 h needs 0.981 kg.
func TestTheFieldStudysSettingIsDoneSoonerAndCleaner(t *testing.T) {
	for _, tc := range []struct {
		name          string
		change        func(*Options)
		hours, kg     float64
		mostOverBound float64
	}{
		{"reactive", nil, 13.6, 1.04, 1.06},
		{"forecast", withForecast(14*time.Hour+36*time.Minute, 0), 14.65, 0.75, 1.1},
		{"forecast with a deviation of a tenth", withForecast(14*time.Hour+36*time.Minute, 0.1), 14.65, 0.75, 1.1},
	} {
		r := simulated(t, twin(t, tc.change))
		t.Logf("%s: %.2f h, %.3f kg, bound %.3f kg", tc.name, r.Hours, *r.KgCO2e.Marginal, r.Bound.KgCO2e)
		if !r.Done || r.Hours > tc.hours || *r.KgCO2e.Marginal > tc.kg || *r.KgCO2e.Marginal > tc.mostOverBound*r.Bound.KgCO2e {
			t.Errorf("%s: done %v in %.2f h with %.3f kg, bound %.3f", tc.name, r.Done, r.Hours, *r.KgCO2e.Marginal, r.Bound.KgCO2e)
		}
		if *r.KgCO2e.Marginal < r.Bound.KgCO2e {
			t.Errorf("%s: better than the bound", tc.name)
		}
	}
}

func TestTheTwinsResultIsAsRecorded(t *testing.T) {
	text := document(t, simulated(t, twin(t, nil)))
	path := filepath.Join("testdata", "twin.json")
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(golden, &want); err != nil {
		t.Fatal(err)
	}
	same(t, "", got, want)
}

// same compares documents; numbers may differ in their last bits, since not all
// machines round a product before they add to it.
func same(t *testing.T, path string, got, want any) {
	t.Helper()
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			t.Errorf("%s: %v, want %v", path, got, want)
			return
		}
		for k := range w {
			same(t, path+"."+k, g[k], w[k])
		}
	case float64:
		if g, ok := got.(float64); !ok || math.Abs(g-w) > 1e-9*math.Max(1, math.Abs(w)) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	default:
		if got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// shared opens a trace that is not part of the project.
func shared(t *testing.T, name string, kind signals.Kind) *replay.Trace {
	t.Helper()
	path := filepath.Join("..", "..", "..", "..", "shared", "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the trace %s lies beside the project and is not there", name)
	}
	trace, err := replay.ReadFile(path, kind, signals.GramsPerKWh)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func recorded(t *testing.T, trace *replay.Trace, p window.Policy, regions ...string) Config {
	t.Helper()
	c := Config{Federation: "week", Start: trace.Start(), End: trace.End(), Sync: 0.02,
		Round: round.Config{MinSites: 1, Train: 10 * time.Minute, Collect: 2 * time.Minute, Join: 5 * time.Minute, Settle: 5 * time.Second, Grace: time.Minute}}
	for _, region := range regions {
		s, err := trace.Column(region)
		if err != nil {
			t.Fatal(err)
		}
		c.Sites = append(c.Sites, Site{Name: strings.ToLower(region), Region: region, Policy: p, Signal: s, Grid: ledger.Grid{Marginal: s},
			Power: ledger.Power{TrainingWatts: 2024, IdleWatts: 468, PUE: 1}, Provisioning: 240 * time.Second, Step: 3 * time.Second})
	}
	return c
}

// steady is what the decision study recommends for five-minute points.
var steady = window.Policy{Mode: window.Grams, Enter: 100, Leave: 150, EnterConfirmations: 2, LeaveConfirmations: 3,
	MinimumOn: 30 * time.Minute, MinimumOff: 15 * time.Minute, OnStale: v1alpha1.StaleHold, MaxStale: 30 * time.Minute}

// The week has seven, seven and three clean spans that are more than a spike: a
// site needs one start for each, and hours of dirty power in between to need less.
func TestAWeekNeedsOneStartForEachCleanSpanAndUsesThemAll(t *testing.T) {
	c := recorded(t, shared(t, "synthetic_moer_5min_7d.csv", signals.Marginal), steady, "synth-west", "synth-plains", "synth-south", "synth-flat")
	r := simulated(t, c)
	for site, spans := range map[string]int{"synth-west": 7, "synth-plains": 7, "synth-south": 3, "synth-flat": 0} {
		s := r.Sites[site]
		t.Logf("%s: %d starts, %s of the open time", site, s.Starts, percent(s.WindowUse))
		if s.Starts != spans {
			t.Errorf("%s started %d times for %d spans", site, s.Starts, spans)
		}
		if spans > 0 && *s.WindowUse < 0.97 {
			t.Errorf("%s used %s of the open time", site, percent(s.WindowUse))
		}
	}
}

func TestAnHourOfFalseReadingsStartsNothing(t *testing.T) {
	c := recorded(t, shared(t, "eia930_2023-06-10_2023-06-20_avg_intensity_gpkwh.csv", signals.Average),
		window.Policy{Mode: window.Grams, Enter: 100, Leave: 150, EnterConfirmations: 2, LeaveConfirmations: 2, OnStale: v1alpha1.StaleHold, MaxStale: 30 * time.Minute},
		"SWPP", "NYIS")
	r := simulated(t, c)
	if r.Sites["swpp"].Starts != 0 || r.Sites["nyis"].Starts != 0 {
		t.Errorf("starts %d and %d, want none", r.Sites["swpp"].Starts, r.Sites["nyis"].Starts)
	}
}
